"""What a request will use: tokens of its prompt and of its answer, learned from the requests before it. Pure, like the core."""
