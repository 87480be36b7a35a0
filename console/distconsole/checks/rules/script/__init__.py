"""Checks of the launch that is planned: its script, imports, paths and options."""
