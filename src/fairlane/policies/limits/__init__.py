"""What an engine may be given: limits that find themselves."""
