"""Formats of a run for other programs and for people."""
