"""The place of every rank of a run, and the rank that the others wait for."""
