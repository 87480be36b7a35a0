"""The terminal itself: what is written to it, how it is left, what it may be sent."""
