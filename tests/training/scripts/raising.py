"""Raises on rank 1 while rank 0 waits for it."""

from distconsole_training import barrier, setup

with setup() as world:
    barrier()
    if world.rank == 1:
        raise LookupError("lost on rank 1")
    barrier()
