"""Which ranks have stopped making steps, and who of them is behind."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.model.names import count_text
from distconsole.model.run_events import RunFinding, Window
from distconsole.runs.detectors.ranks import Ranks, ranks_text
from distconsole.runs.pace import TOGETHER_SECONDS, is_fresh


class StallWatch:
    """Gathers ranks that stall at about the same time, and says once who is behind."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._last: dict[int, Window] = {}
        """Rank -> its newest window with a step."""
        self._stalled: dict[int, int | None] = {}
        """Rank -> its process; of those that stand still, told or not."""
        self._untold: set[int] = set()
        self._since = 0.0

    def stepped(self, window: Window) -> None:
        self._last[window.rank] = window

    def rank_is(self, rank: int, pid: int | None, t: float, *, stalled: bool) -> None:
        """Take what an agent says of a rank that lives, at ``t`` in UNIX seconds."""
        if not stalled:
            self.rank_ended(rank)
            return
        if not self._untold:
            self._since = t
        self._stalled[rank] = pid
        self._untold.add(rank)

    def rank_ended(self, rank: int) -> None:
        """Take that ``rank`` goes on, or lives no longer."""
        self._stalled.pop(rank, None)
        self._untold.discard(rank)

    def due(self, t: float) -> Iterator[RunFinding]:
        """Yield who has stalled at ``t`` (UNIX seconds), once those that do so together were heard of."""
        if not self._untold or t - self._since < TOGETHER_SECONDS:
            return
        ranks = tuple(sorted(self._untold))
        self._untold.clear()
        lowest = min(map(self._step_of, ranks))
        behind = tuple(rank for rank in ranks if self._step_of(rank) == lowest)
        others = [rank for rank in self._ranks.living if rank not in self._stalled]
        known = [self._last[rank] for rank in others if rank in self._last]
        going = sum(is_fresh(last.t, t, last.step_ms_mean) for last in known)
        yield self._finding(ranks, behind, (going, len(others) - going), t)

    def _step_of(self, rank: int) -> int:
        return self._last[rank].step if rank in self._last else -1

    def _finding(
        self, ranks: tuple[int, ...], behind: tuple[int, ...], others: tuple[int, int], t: float
    ) -> RunFinding:
        """Say who has stalled, and who of those ``behind`` to look at; ``others``: how many go on, how many are unheard of."""
        first, run, (going, unheard) = behind[0], self._ranks.run, others
        host, pid = self._ranks.hosts.get(first, ""), self._stalled[first]
        on_host = f" on {host}" if len(behind) == 1 else ""
        stopped = "has stopped" if len(behind) == 1 else "have stopped"
        stopped += " making steps"
        if first in self._last:
            stopped += f" after step {self._step_of(first):,}"
        if waiting := len(ranks) - len(behind):
            summary = f"{ranks_text(behind)}{on_host} {stopped}; "
            summary += count_text(waiting, "more waits", "more wait")
            summary += f", at step {max(map(self._step_of, self._last), default=0):,}"
        elif going or unheard or len(ranks) == 1:
            summary = f"{ranks_text(ranks)}{on_host} {stopped}"
            summary += f"; {count_text(going, 'goes on', 'go on')}" if going else ""
            silent = count_text(unheard, "other", "others")
            summary += f"; nothing is heard of {silent}" if unheard else ""
        else:
            summary = f"all {len(ranks):,} ranks {stopped}"
        look = f"py-spy dump --pid {pid} on {host} says where it is; " if pid else ""
        return self._ranks.finding(
            t,
            "run.stall",
            summary,
            behind,
            expected="a step within 30 s, or within ten times the usual time",
            hint=f"{look}distconsole logs {run} --rank {first}; distconsole stop {run}",
        )
