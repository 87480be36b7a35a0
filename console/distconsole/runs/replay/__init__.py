"""A past run at any moment."""
