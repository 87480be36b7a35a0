"""What the hosts said, as types, and everything that is known at one moment."""
