"""Which engines there are, and how much of each is used while they come and go."""
