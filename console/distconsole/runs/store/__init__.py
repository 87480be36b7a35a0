"""Kept runs: one SQLite file each, and who writes it."""
