"""A project's code: the choice of its files, and their way to the nodes."""
