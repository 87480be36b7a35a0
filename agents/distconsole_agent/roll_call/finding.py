"""Ranks that an engine started and that have said nothing yet: found by their environment."""

from __future__ import annotations

from distconsole_agent.supervisor.proctree import pids_of_run, read_environ

RANK_VARIABLES = (
    b"RANK",
    b"HOROVOD_RANK",
    b"OMPI_COMM_WORLD_RANK",
    b"MV2_COMM_WORLD_RANK",
    b"PMI_RANK",
    b"SLURM_PROCID",
)
"""Nearest engine first, as the hook reads them (``distconsole_training.identity``)."""


def find_ranks(run_dir: str) -> dict[int, int]:
    """Return rank -> pid of the run's processes on this node: of those with one rank the one that began first."""
    found: dict[int, int] = {}
    begun = pids_of_run(run_dir)
    for pid in sorted(begun, key=lambda pid: (begun[pid].starttime, pid)):
        environment = read_environ(pid)
        told = next((environment[name] for name in RANK_VARIABLES if name in environment), b"")
        if told.isdigit() and len(told) < 10:
            found.setdefault(int(told), pid)
    return found
