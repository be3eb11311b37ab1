"""What a run shows, as numbers, as a table and as a picture."""
