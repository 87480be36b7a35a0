"""A run as it was at one moment: the fold of its record up to there. It reads no record."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.run_events import GpuSample, PlanMade, RunEnded, RunEvents
from distconsole.runs.following.follow import decode_entry
from distconsole.runs.rank_history import RankHistory
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.planned import rank_count
from distconsole.runs.store.run_file import RunRecord, StoredEntry
from distconsole.runs.timeline import RunTimeline

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
        self._reducer = RunReducer(record.run, record.hosts, rank_count(plan))
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
        whole, plan = self.timeline, self._plan
        shown = self.timeline = whole.with_last_lines(KEPT_LINES)
        gpus, shown.gpus = _packed(list(shown.gpus.values())), {}
        # The plan never changes, and may be most of a moment's size.
        planned = plan is not None and shown.plan is plan
        if planned:
            shown.plan = self._plan = None
        try:
            with _without_search():
                return pickle.dumps((self, gpus, planned), pickle.HIGHEST_PROTOCOL)
        finally:
            self.timeline, self._plan = whole, plan

    def _apply(self, event: RunEvents) -> None:
        self.timeline.apply(event)
        self.history.apply(event)


def thawed(frozen: bytes, plan: PlanMade | None) -> Moment:
    """Return the moment that this process froze, of a run with this ``plan``."""
    with _without_search():
        loaded: tuple[Moment, bytes | list[GpuSample], bool] = pickle.loads(frozen)  # noqa: S301 - bytes of our own, never from outside
        moment, gpus, planned = loaded
        moment.timeline.gpus = {
            each.key: each for each in (_DECODE(gpus) if isinstance(gpus, bytes) else gpus)
        }
    if planned:
        moment.timeline.plan = moment._plan = plan
    return moment


def _packed(gpus: list[GpuSample]) -> bytes | list[GpuSample]:
    """Return samples as bytes, which takes much less time where there are thousands."""
    try:
        return _ENCODE(gpus)
    except ValueError:  # a node may say half of a character
        return gpus


@contextmanager
def _without_search() -> Iterator[None]:
    """Make very many objects without looking for garbage among them, which takes as long as to make them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(threadsafe(list[GpuSample])).decode
