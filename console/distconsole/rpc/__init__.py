"""The agent on a node: brought there, started, and talked to."""
