"""Where a request runs, and when its first token will come there."""
