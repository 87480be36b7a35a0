"""The present state of each rank of a run on this node: stacks, collectives, waits."""
