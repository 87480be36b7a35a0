"""What the ranks of a collective job said and how they ended."""

from __future__ import annotations

from typing import Any

from distconsole.checks.facts.node import Facts


class RankReport(Facts, frozen=True, kw_only=True):
    """What one rank of the collective job said and how it ended (None: killed at the deadline)."""

    rank: int
    exit_code: int | None = None
    seconds: float = 0.0
    said: tuple[dict[str, Any], ...] = ()
    error: tuple[str, ...] = ()


class CollFacts(Facts, frozen=True, kw_only=True):
    """A host's ranks of a collective job, and the job; this one is torch's own.

    ``refused`` says why a run by this launcher would not even be started.
    """

    launcher: str = "torch"
    backend: str = ""
    world_size: int = 0
    planned: tuple[int, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    timeout_seconds: float = 0.0
    engine_said: tuple[str, ...] = ()
    refused: str = ""
    refused_hint: str = ""


class HorovodCollFacts(CollFacts, frozen=True, kw_only=True):
    """The same by Horovod."""


class HorovodMpiFacts(CollFacts, frozen=True, kw_only=True):
    """The same by Horovod over MPI, where it has both controllers."""


class MpiCollFacts(CollFacts, frozen=True, kw_only=True):
    """The same by mpirun; its ranks call MPI itself."""
