"""The agent as a server: bridges join it, their requests are answered."""
