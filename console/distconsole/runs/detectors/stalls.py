"""Which ranks have stopped making steps, told together: where one hangs, soon all do. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from distconsole.runs.pace import TOGETHER_SECONDS, is_fresh


class Stall(NamedTuple):
    """Ranks that live and make no step.

    Attributes:
        ranks: Those found now, in order.
        behind: Those of them whose last step is the lowest, if that is not so of all.
        step: The last step of the first of them, None where it made none.
        farthest: The last step that any rank has done.
        going: How many other ranks go on.
        unheard: How many others there are of which nothing has been heard since.
        pids: Rank to its process, where known.
    """

    ranks: tuple[int, ...]
    behind: tuple[int, ...]
    step: int | None
    farthest: int | None
    going: int
    unheard: int
    pids: dict[int, int]


class StallWatch:
    """Gathers ranks that stall at about the same time, and says once who is behind."""

    def __init__(self) -> None:
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

    def due(self, living: Collection[int], t: float) -> Stall | None:
        """Return who has stalled, once those that do so together were heard of.

        Args:
            living: The ranks that live.
            t: UNIX seconds.
        """
        if not self._untold or t - self._since < TOGETHER_SECONDS:
            return None
        ranks = tuple(sorted(self._untold))
        self._untold.clear()
        lowest = min(self._steps.get(rank, -1) for rank in ranks)
        behind = tuple(rank for rank in ranks if self._steps.get(rank, -1) == lowest)
        others = [rank for rank in living if rank not in self._stalled]
        told = [self._stepped[rank] for rank in others if rank in self._stepped]
        going = sum(is_fresh(stepped, t, step_ms) for stepped, step_ms in told)
        return Stall(
            ranks=ranks,
            behind=behind if len(behind) < len(ranks) else (),
            step=lowest if lowest >= 0 else None,
            farthest=max(self._steps.values(), default=None),
            going=going,
            unheard=len(others) - going,
            pids={rank: pid for rank in ranks if (pid := self._stalled[rank]) is not None},
        )
