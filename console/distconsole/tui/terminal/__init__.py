"""The terminal itself: output, input priority, leaving."""
