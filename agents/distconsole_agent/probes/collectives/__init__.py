"""A short job that runs collectives, verifies them to the last bit and times them."""
