"""What the nodes of a run agree on: who failed first, stop, restart and the verdict."""
