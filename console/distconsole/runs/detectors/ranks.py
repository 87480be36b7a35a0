"""The ranks of a run as its detectors know them, and the findings that they make about ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.run_events import RunFinding
from distconsole.rpc.frames import StateEntry

MAX_RANKS_NAMED = 8


class Ranks:
    """Where the ranks of one run are; the reducer keeps it, its detectors read it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.hosts: dict[int, str] = {}
        self.living: dict[int, StateEntry] = {}
        """Rank -> its last state, of those whose processes live."""

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Return the known hosts of ``ranks``, each once."""
        return tuple(dict.fromkeys(self.hosts[rank] for rank in ranks if rank in self.hosts))

    def finding(
        self,
        t: float,
        check: str,
        summary: str,
        ranks: Sequence[int] = (),
        *,
        hosts: tuple[str, ...] | None = None,
        severity: Severity = Severity.WARN,
        seen: str = "",
        expected: str = "",
        hint: str = "",
    ) -> RunFinding:
        """Return a finding about ``ranks`` at ``t`` (UNIX seconds); ``hosts`` None are theirs."""
        return RunFinding(
            t=t,
            run=self.run,
            check=check,
            severity=severity,
            hosts=self.hosts_of(ranks) if hosts is None else hosts,
            rank=ranks[0] if len(ranks) == 1 else UNSET,
            summary=summary,
            seen=seen,
            expected=expected,
            hint=hint,
        )


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 2, 5 and 7 others``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {first_of(ranks, MAX_RANKS_NAMED)}"


def first_of(words: Sequence[object], limit: int) -> str:
    """Return the first ``limit`` of ``words`` and how many there are besides."""
    shown, more = ", ".join(map(str, words[:limit])), len(words) - limit
    return f"{shown} and {count_text(more, 'other', 'others')}" if more > 0 else shown


def count_text(count: int, one: str, several: str) -> str:
    """Return ``1 other`` or ``2,000 others``."""
    return f"{count:,} {one if count == 1 else several}"
