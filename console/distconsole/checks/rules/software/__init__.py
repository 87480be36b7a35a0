"""Checks of Python, torch, Horovod and MPI, and of the collectives that they run."""
