"""What the agent promises to others: the wire protocol, a run's specification, its bounds."""
