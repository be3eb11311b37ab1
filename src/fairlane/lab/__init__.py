"""Work on recorded traffic, away from the gateway: how well lengths are predicted, and models that predict them."""
