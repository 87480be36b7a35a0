"""The world that a run's ranks are to make, and what a ring says of the one that they ask for or are in; pure."""

from __future__ import annotations

from typing import Any

from distconsole_agent.journal.rank_states import MAX_RANK
from distconsole_agent.journal.rings import ALONE, PHASES, Record

PLACED = ("rendezvous", "init_process_group")
"""Phases whose record says a place in a world."""

OWN_WORLDS = ("single", "slurm")
"""Launchers of one process a node: what ranks that makes is the script's affair."""


def numbers_itself(spec: dict[str, Any]) -> bool:
    """Return whether the script says which rank a process is, and how many there are."""
    return spec.get("launcher") in OWN_WORLDS and "WORLD_SIZE" not in (spec.get("env") or {})


def planned_world(spec: dict[str, Any]) -> int | None:
    """Return how many ranks are to meet; None where the script or an elastic engine says so."""
    if numbers_itself(spec) or spec.get("min_nodes") is not None:
        return None
    size = spec.get("world_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def world_of(record: Record, planned: int | None) -> dict[str, Any]:
    """Return what the record of a phase adds to its entry.

    Args:
        record: As the rank's own process wrote it.
        planned: The world that the ranks are to make.
    """
    phase = PHASES[record[5]]
    if phase == "first_step" and record[4] & ALONE:
        return {"alone": True}
    if phase not in PLACED:
        return {}
    size, rank = record[6], record[12]
    return {
        "world": size if 0 < size <= MAX_RANK else None,
        "group_rank": int(rank) if 0 <= rank < MAX_RANK else None,
        "planned": planned,
    }
