"""How the nodes of a run agree on who failed first, on stops and restarts, and on the verdict."""
