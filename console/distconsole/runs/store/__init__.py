"""Kept runs: one SQLite file each, and its writer."""
