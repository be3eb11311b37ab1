"""The edge: clients on one side, engines on the other, the scheduler between them."""
