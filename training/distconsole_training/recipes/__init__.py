"""Training scripts to start from."""
