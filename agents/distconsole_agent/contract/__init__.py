"""Contracts of the agent: the wire protocol, a run's specification, and its limits."""
