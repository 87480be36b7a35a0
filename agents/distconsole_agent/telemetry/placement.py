"""Puts ranks on GPUs from the last process list, for whichever ranks are asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distconsole_agent.telemetry.mapping import GpuUnit, ranks_by_unit

UNSEEN_SECONDS = 60.0
"""A rank that has no process on any GPU after this long does not use one."""

FORGET_SECONDS = 300.0
"""A rank that nobody asked about for this long is new when it is asked about again."""

MAX_SHOWN = 32
"""Processes of one GPU in a sample."""


@dataclass(frozen=True)
class ListedProcess:
    """A process on a GPU; ``lineage`` holds its pid and those above it, empty if not known here."""

    pid: int
    user: str | None
    command: str | None
    used_bytes: int | None
    lineage: tuple[int, ...]


@dataclass(frozen=True)
class Listing:
    """One list of all processes, by ``GpuUnit.key``; ``complete`` if every pid is of this host."""

    at: float | None = None
    complete: bool = False
    processes: Mapping[str, tuple[ListedProcess, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Which rank each unit is given, and its processes as ``GPU_FIELDS`` has them; by key."""

    ranks: Mapping[str, int]
    processes: Mapping[str, list[dict[str, Any]]]


class KnownRanks:
    """Remembers since when each rank's process is known, over all who ask."""

    def __init__(self) -> None:
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def note(self, ranks: Sequence[Mapping[str, Any]], now: float) -> frozenset[int]:
        """Note the processes of ``ranks`` and return all that are known."""
        for pid in pids(ranks):
            self._first.setdefault(pid, now)
            self._last[pid] = now
        for pid, last in list(self._last.items()):
            if now - last > FORGET_SECONDS:
                del self._first[pid], self._last[pid]
        return frozenset(self._first)

    def since(self, pid: int) -> float | None:
        return self._first.get(pid)


def place(
    units: Sequence[GpuUnit],
    listing: Listing,
    ranks: Sequence[Mapping[str, Any]],
    known: KnownRanks,
) -> Placement:
    """Return where ``ranks`` are, as far as ``listing`` and their variables say."""
    rank_of = {int(entry["pid"]): int(entry["rank"]) for entry in ranks if entry.get("pid")}
    holders: dict[str, set[int]] = {}
    shown: dict[str, list[dict[str, Any]]] = {}
    for key, processes in listing.processes.items():
        owners = [_owner(process, rank_of) for process in processes]
        holders[key] = {owner for owner in owners if owner is not None}
        shown[key] = [
            _entry(process, owner)
            for process, owner in zip(processes[:MAX_SHOWN], owners[:MAX_SHOWN])
        ]
    return Placement(ranks_by_unit(units, ranks, holders, _off_gpu(listing, ranks, known)), shown)


def pids(ranks: Sequence[Mapping[str, Any]]) -> set[int]:
    return {int(entry["pid"]) for entry in ranks if entry.get("pid")}


def _owner(process: ListedProcess, rank_of: Mapping[int, int]) -> int | None:
    return next((rank_of[pid] for pid in process.lineage if pid in rank_of), None)


def _entry(process: ListedProcess, owner: int | None) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "user": process.user,
        "command": process.command,
        "mem_used": process.used_bytes,
        "rank": owner,
    }


def _off_gpu(listing: Listing, ranks: Sequence[Mapping[str, Any]], known: KnownRanks) -> set[int]:
    """Return the ranks that had time to get to a GPU when processes were listed.

    Those found on one are placed before this matters. In a container processes may not be found
    at all, and this says nothing.
    """
    if listing.at is None or not listing.complete:
        return set()
    found = set()
    for entry in ranks:
        since = known.since(int(entry["pid"])) if entry.get("pid") else None
        if since is not None and listing.at - since >= UNSEEN_SECONDS:
            found.add(int(entry["rank"]))
    return found
