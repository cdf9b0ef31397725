"""techniques."""
