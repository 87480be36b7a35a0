"""The node folder: runs, synced code, compiled programs, and the clearing of old ones."""
