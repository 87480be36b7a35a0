"""Journals of a run's nodes, followed: fetched, kept, and told as events."""
