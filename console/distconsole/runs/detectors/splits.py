"""Whether hosts train one model each though they were to train one together. Pure.

A script that starts its own ranks and names its own host as their meeting place (``127.0.0.1``)
does so, and nothing fails: every host has a rank 0, and is that much slower than all together.
"""

from __future__ import annotations

from typing import NamedTuple

MOVED_SECONDS = 5.0
"""A rank that an elastic engine has moved to another host makes no step on the first one for so long."""


class Split(NamedTuple):
    """A rank that makes steps on two hosts at once."""

    rank: int
    hosts: tuple[str, str]


class SplitWatch:
    """Notices a rank that goes on making steps on a host after it has appeared on another one."""

    def __init__(self) -> None:
        self._moved: dict[int, float] = {}
        self._told = False

    def moved(self, rank: int, t: float) -> None:
        """Take that a rank has appeared on another host, at ``t`` in UNIX seconds."""
        self._moved[rank] = t

    def steps(self, rank: int, host: str, known_on: str, t: float) -> Split | None:
        """Take steps of ``rank`` on ``host``, though it was last known on another host.

        Returns:
            What that shows, once for a run.
        """
        if self._told or t - self._moved.get(rank, t) < MOVED_SECONDS:
            return None
        self._told = True
        return Split(rank, (known_on, host))
