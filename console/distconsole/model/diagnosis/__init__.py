"""Where every rank of a run is, and which one the others wait for."""
