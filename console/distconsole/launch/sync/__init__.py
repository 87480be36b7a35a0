"""A project's code: which files it is, and how they are brought to the nodes."""
