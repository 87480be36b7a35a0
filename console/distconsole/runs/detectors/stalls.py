"""Which ranks have stopped making steps, told together: where one hangs, soon all do."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.model.run_events import RunFinding
from distconsole.runs.detectors.ranks import Ranks, count_text, ranks_text
from distconsole.runs.pace import TOGETHER_SECONDS, is_fresh


class StallWatch:
    """Gathers ranks that stall at about the same time, and says once who is behind."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._steps: dict[int, int] = {}
        self._stepped: dict[int, tuple[float, float | None]] = {}
        self._stalled: dict[int, int | None] = {}
        """Rank -> its process; of those that stand still, told or not."""
        self._untold: set[int] = set()
        self._since = 0.0

    def stepped(self, rank: int, step: int, t: float, step_ms: float | None) -> None:
        """Take that ``rank`` has done ``step``, at ``t`` in UNIX seconds; its steps take ``step_ms``."""
        self._steps[rank], self._stepped[rank] = step, (t, step_ms)

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
        lowest = min(self._steps.get(rank, -1) for rank in ranks)
        behind = tuple(rank for rank in ranks if self._steps.get(rank, -1) == lowest)
        others = [rank for rank in self._ranks.living if rank not in self._stalled]
        known = [self._stepped[rank] for rank in others if rank in self._stepped]
        going = sum(is_fresh(stepped, t, step_ms) for stepped, step_ms in known)
        yield self._finding(ranks, behind, lowest, (going, len(others) - going), t)

    def _finding(
        self,
        ranks: tuple[int, ...],
        behind: tuple[int, ...],
        lowest: int,
        others: tuple[int, int],
        t: float,
    ) -> RunFinding:
        """Say who has stalled, with a way to look at the one most likely to blame: of those ``behind`` the first.

        Args:
            lowest: Their last step; -1 where they made none.
            others: How many others go on, and of how many nothing is heard.
        """
        first, (going, unheard) = behind[0], others
        host = self._ranks.hosts.get(first, "")
        on_host = f" on {host}" if len(behind) == 1 else ""
        have = "has" if len(behind) == 1 else "have"
        after = f" after step {lowest:,}" if lowest >= 0 else ""
        stopped = f"{have} stopped making steps{after}"
        if waiting := len(ranks) - len(behind):
            summary = (
                f"{ranks_text(behind)}{on_host} {stopped}; "
                f"{count_text(waiting, 'more waits', 'more wait')}, "
                f"at step {max(self._steps.values(), default=0):,}"
            )
        elif going or unheard or len(ranks) == 1:
            summary = f"{ranks_text(ranks)}{on_host} {stopped}"
            summary += f"; {count_text(going, 'goes on', 'go on')}" if going else ""
            silent = count_text(unheard, "other", "others")
            summary += f"; nothing is heard of {silent}" if unheard else ""
        else:
            summary = f"all {len(ranks):,} ranks {stopped}"
        pid = self._stalled[first]
        look = f"py-spy dump --pid {pid} on {host} says where it is; " if pid else ""
        run = self._ranks.run
        return self._ranks.finding(
            t,
            "run.stall",
            summary,
            behind,
            expected="a step within 30 s, or within ten times the usual time",
            hint=f"{look}distconsole logs {run} --rank {first}; distconsole stop {run}",
        )
