"""What a client asks for: reading request bodies, and changing the few members that are the gateway's."""
