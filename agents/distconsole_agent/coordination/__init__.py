"""How the nodes of a run agree on the first failure, on stops and restarts, and on the verdict."""
