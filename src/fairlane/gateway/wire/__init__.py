"""HTTP/1.1 on both sides of the gateway, and the relay between them: bytes go by callback, and no task waits for them."""
