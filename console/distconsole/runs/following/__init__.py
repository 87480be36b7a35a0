"""Follows the journals of a run's nodes: fetches, stores and reads them as events."""
