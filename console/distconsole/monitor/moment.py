"""A run as it was at one moment: the fold of its record up to there. It reads no record."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator

from distconsole.model.run_events import PlanMade, RunEnded, RunEvents
from distconsole.monitor.follow import decode_entry
from distconsole.monitor.rank_history import RankHistory
from distconsole.monitor.reduce import RunReducer
from distconsole.monitor.run_file import RunRecord, StoredEntry
from distconsole.monitor.timeline import RunTimeline

KEPT_LINES = 200
"""Printed lines that a frozen moment keeps, the last ones; a log book has them all."""


class Moment:
    """The picture of a run after some of its entries.

    Args:
        record: The run.
        plan: Its plan, the first event, where it is known.
    """

    def __init__(self, record: RunRecord, plan: PlanMade | None) -> None:
        self.timeline = RunTimeline()
        self.history = RankHistory()
        self.cursors: dict[str, int] = {}
        """Host -> the number of its last entry that is in."""
        self.entries = 0
        self.t = record.started
        """The newest time that was told, UNIX seconds."""
        self._plan = plan
        self._reducer = RunReducer(record.run, record.hosts)
        if plan is not None:
            self._apply(plan)

    @property
    def ended(self) -> bool:
        """Whether the record's entries say how the run ended."""
        return self._reducer.ended is not None

    def take(self, stored: StoredEntry) -> Iterator[RunEvents]:
        """Fold the next entry in and yield what it meant.

        Raises:
            ValueError: if it cannot be read; it counts as taken.
        """
        self.cursors[stored.host] = stored.seq
        self.entries += 1
        self.t = max(self.t, stored.t)
        for event in self._reducer.feed(stored.host, decode_entry(stored.body), stored.t):
            self._apply(event)
            yield event

    def close(self, end: RunEnded) -> None:
        """Take an end that is not among the entries."""
        self.t = max(self.t, end.t)
        self._apply(end)

    def frozen(self) -> bytes:
        """Return it as bytes, for ``thawed`` in the same process; of printed lines the last ones."""
        made = io.BytesIO()
        pickler = pickle.Pickler(made, pickle.HIGHEST_PROTOCOL)
        # The plan never changes, and may be most of a moment's size.
        pickler.persistent_id = lambda each: "plan" if each is self._plan else None  # type: ignore[method-assign]
        whole = self.timeline
        self.timeline = whole.with_last_lines(KEPT_LINES)
        try:
            pickler.dump(self)
        finally:
            self.timeline = whole
        return made.getvalue()

    def _apply(self, event: RunEvents) -> None:
        self.timeline.apply(event)
        self.history.apply(event)


def thawed(frozen: bytes, plan: PlanMade | None) -> Moment:
    """Return the moment that this process froze, of a run with this ``plan``."""
    unpickler = pickle.Unpickler(io.BytesIO(frozen))  # noqa: S301 - bytes of our own, never from outside
    unpickler.persistent_load = lambda _: plan  # type: ignore[method-assign]
    moment: Moment = unpickler.load()
    return moment
