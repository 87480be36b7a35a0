"""The ranks of a run for its detectors, findings about ranks, and bounds for numbers from nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.names import count_text, join_some
from distconsole.model.run_events import GpuKey, GpuSample, NodeSample, RunFinding
from distconsole.rpc.frames import StateEntry

MAX_RANKS_NAMED = 8
UNPLANNED = "run.unplanned"
MAX_RANKS = 1_000_001
"""More than an entry can name."""
MAX_GPUS = 1024
"""GPUs, and slices of them, that one host can have."""


class RanksSeen:
    """Where the ranks of one run are; the reducer keeps it, its detectors read it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.hosts: dict[int, str] = {}
        self.living: dict[int, StateEntry] = {}
        """Rank -> its last state, of those whose processes live."""
        self.sampled: dict[str, float] = {}  # host -> time of its last sample, in UNIX seconds

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
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
    """Return ``rank 3`` or ``ranks 0, 2, 5 and 7 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {join_some(ranks, MAX_RANKS_NAMED)}"


class PlanBounds:
    """Keeps numbers from nodes within the plan: at most ``ranks`` ranks, numbered below that."""

    def __init__(self, known: RanksSeen, ranks: int) -> None:
        self.ranks = ranks
        self._known = known
        self._counts: dict[str, int] = {}
        self._gpus: dict[str, set[GpuKey]] = {}

    def leave_out(self, host: str, what: str, t: float) -> Iterator[RunFinding]:
        """Count an ignored report about ``what``; the first of a host names it."""
        count = self._counts[host] = self._counts.get(host, 0) + 1
        if count == 1:
            yield self._known.finding(
                t,
                UNPLANNED,
                f"{host} reports {what}, which this run does not have: its entries are left out",
                hosts=(host,),
                expected=f"ranks 0 to {self.ranks - 1:,}" if self.ranks > 1 else "rank 0",
                hint=f"look on {host} at which processes write to this run's folder and rings, "
                "and how the script numbers its ranks",
            )

    def within(
        self, host: str, loads: Iterable[NodeSample | GpuSample], t: float
    ) -> Iterator[NodeSample | GpuSample | RunFinding]:
        known = self._gpus.setdefault(host, set())
        for event in loads:
            if not isinstance(event, GpuSample):
                yield event
            elif event.rank is not UNSET and event.rank >= self.ranks:
                yield from self.leave_out(host, f"rank {event.rank:,}", t)
            elif event.key not in known and len(known) >= MAX_GPUS:
                yield from self.leave_out(host, f"more than {MAX_GPUS:,} GPUs", t)
            else:
                known.add(event.key)
                yield event

    def left_out(self, t: float) -> Iterator[RunFinding]:
        for host, count in sorted(self._counts.items()):
            yield self._known.finding(
                t,
                UNPLANNED,
                f"{count_text(count, 'entry', 'entries')} of {host} about ranks, hosts or GPUs that "
                f"this run does not have {'was' if count == 1 else 'were'} left out",
                hosts=(host,),
                severity=Severity.INFO,
            )
