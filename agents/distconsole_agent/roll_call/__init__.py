"""Where each rank of a run on this node is now: stacks, collectives, what its process waits for."""
