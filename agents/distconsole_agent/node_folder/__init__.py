"""The node folder: runs, synced code, compiled programs, and what may be removed from it."""
