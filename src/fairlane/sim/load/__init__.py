"""What a gateway has to carry: arrivals, lengths, and how clients behave."""
