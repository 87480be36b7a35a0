"""A pasted command of another launcher, read as a launch."""
