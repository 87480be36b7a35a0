"""The contents of views, derived from events alone."""
