"""A stored run on its time axis: read once from its beginning, then shown as it was at any time.

Reading writes checkpoints of the run's state at intervals. Seeking restores the last
one before the wanted time and folds the entries after it: the same fold as from the beginning.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from distconsole.model.findings import Severity
from distconsole.model.run_events import (
    EndState,
    PhaseReached,
    PlanMade,
    RunEnded,
    RunEvents,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.runs.logs.spill import BlobFile
from distconsole.runs.rank_history import RankHistory
from distconsole.runs.store.planned import reducer_of, stored_end, stored_plan
from distconsole.runs.store.run_file import RunFile, RunRecord, StoredEntry
from distconsole.runs.summary import damage_finding, decode_entry
from distconsole.runs.timeline import RunTimeline

CHECKPOINT_ENTRIES = 1000
CHECKPOINT_BYTES = 512 * 1024
"""Entries, or bytes of them, after which a checkpoint is written."""
CHECKPOINT_SHARE = 4
"""Checkpoints take at most this many times the room of the entries."""
MAX_FILE_BYTES = 1024**3
MAX_MARKS = 2000

ENDED = {
    EndState.SUCCEEDED: "succeeded",
    EndState.FAILED: "failed",
    EndState.STOPPED: "been stopped",
}

Tell = Callable[[RunEvents], None]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the axis, in UNIX seconds: a ``finding``, a ``restart``, the ``begin`` or the ``end``; ``bad`` is a failure."""

    t: float
    kind: str
    text: str
    bad: bool = False


class RunState:
    """A run after some of its entries: the fold of its record up to there, from its plan on if it is known."""

    def __init__(self, record: RunRecord, plan: PlanMade | None) -> None:
        self._reducer = reducer_of(record)
        self.timeline = RunTimeline(self._reducer.stragglers)
        self.history = RankHistory()
        self.cursors: dict[str, int] = {}
        """Host -> the number of its last entry that is in."""
        self.entries = 0
        self.t = record.started
        """Newest time of an entry, UNIX seconds."""
        if plan is not None:
            self.apply(plan)

    @property
    def ended(self) -> bool:
        return self._reducer.ended is not None

    def take(self, stored: StoredEntry) -> Iterator[RunEvents]:
        """Fold the next entry in and yield its events; raises ValueError, with it taken, if it cannot be read."""
        self.cursors[stored.host] = stored.seq
        self.entries += 1
        self.t = max(self.t, stored.t)
        for event in self._reducer.feed(stored.host, decode_entry(stored.body), stored.t):
            self.apply(event)
            yield event

    def apply(self, event: RunEvents) -> None:
        """Fold an event in that is not among the entries."""
        self.timeline.apply(event)
        self.history.apply(event)

    def conclude(self, end: RunEnded) -> Iterator[RunEvents]:
        """Fold in the end of a run whose last host never came back, and yield its events."""
        for event in self._reducer.conclude(end):
            self.apply(event)
            yield event

    def checkpoint(self) -> bytes:
        """Return it as bytes for ``restore`` in this process, without its plan."""
        plan, self.timeline.plan = self.timeline.plan, None  # it may be most of the size
        try:
            with _pause_gc():
                return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        finally:
            self.timeline.plan = plan


def restore(checkpoint: bytes, plan: PlanMade | None) -> RunState:
    with _pause_gc():
        state: RunState = pickle.loads(checkpoint)  # noqa: S301 - bytes of our own, never from outside
    state.timeline.plan = plan
    return state


@contextlib.contextmanager
def _pause_gc() -> Iterator[None]:
    """Make very many objects without looking for garbage among them: a seek at 2,048 ranks takes a third less."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


class Recording:
    """One stored run, read by one thread; its file stays the caller's.

    Args:
        folder: Where checkpoints are put, as in a ``BlobFile``.
        tell: Called with every event as it is read for the first time.
    """

    def __init__(
        self, run_file: RunFile, folder: Path | None = None, tell: Tell = lambda _: None
    ) -> None:
        self._file = run_file
        self._tell = tell
        self.record = run_file.record()
        self._plan = stored_plan(self.record)
        self.start = self.record.started or (self._plan.t if self._plan is not None else 0.0)
        self.marks: list[Mark] = []
        """Findings, restarts and ends, in order of time."""
        self.whole = False
        """Whether the record was read to its end."""
        self.total = run_file.count()
        """Entries that it has, as far as they can be counted."""
        self._checkpoints, self._times = BlobFile(folder), list[float]()
        """Checkpoints, and the time of each (UNIX seconds)."""
        self._since, self._since_bytes, self._checkpoint_bytes = 0, 0, 0
        self._spoilt: Counter[str] = Counter()
        self._step_times, self._steps = array("d"), array("q")
        self._stepped = False
        self.head = RunState(self.record, self._plan)
        """As far as it was read."""
        self._source: Iterator[StoredEntry] = run_file.entries()
        if self._plan is not None:
            tell(self._plan)

    @property
    def end(self) -> float:
        """The newest time that was read (UNIX seconds)."""
        return max(self.head.t, self.start)

    def close(self) -> None:
        """Forget the checkpoints, and read no more; may be called several times."""
        self._checkpoints.close()
        self._times.clear()
        self._source = iter(())

    def read(self, entries: int) -> bool:
        """Read on by this many ``entries``; return True if there is more."""
        for _ in range(entries):
            stored = next(self._source, None)
            if stored is None:
                self._finish()
                break
            self._take(stored)
        return not self.whole

    def at(self, t: float) -> ReplayWalk:
        if self.whole and t >= self.end:
            return ReplayWalk(self.head, iter(()))
        number = bisect_right(self._times, t) - 1
        state = RunState(self.record, self._plan)
        if number >= 0:
            state = restore(self._checkpoints.read(number), self._plan)
        walk = ReplayWalk(state, self._file.entries(state.cursors))
        walk.to(t)
        return walk

    def leaps(self, t: float, until: float) -> bool:
        """Whether to seek ``until`` is quicker than to walk there from ``t``."""
        return bisect_right(self._times, until) > bisect_right(self._times, t) + 1

    def time_of_step(self, step: int) -> float | None:
        """Return when some rank had first done ``step``; None if none has."""
        place = bisect_left(self._steps, step)
        return self._step_times[place] if place < len(self._steps) else None

    def _take(self, stored: StoredEntry) -> None:
        try:
            for event in self.head.take(stored):
                self._note(event)
                self._tell(event)
        except ValueError:
            self._spoilt[stored.host] += 1
        self._since += 1
        self._since_bytes += len(stored.body)
        enough = self._since >= CHECKPOINT_ENTRIES or self._since_bytes >= CHECKPOINT_BYTES
        if enough and self._since_bytes * CHECKPOINT_SHARE >= self._checkpoint_bytes:
            self._keep(self.head.checkpoint())

    def _keep(self, checkpoint: bytes) -> None:
        """Write a checkpoint; if the disk refuses, seeking takes longer from there on."""
        self._since, self._since_bytes, self._checkpoint_bytes = 0, 0, len(checkpoint)
        if self._checkpoints.size + len(checkpoint) <= MAX_FILE_BYTES:
            with contextlib.suppress(OSError):
                self._checkpoints.append(checkpoint)
                self._times.append(self.head.t)

    def _finish(self) -> None:
        # The end that was kept beside the entries, if these have none.
        end = None if self.head.ended else stored_end(self.record)
        if end is not None:
            self.head.t = max(self.head.t, end.t)
            for event in self.head.conclude(end):
                self._note(event)
                self._tell(event)
        damage = damage_finding(self.record, self._spoilt, self._file, self.end)
        if damage is not None:
            self.head.timeline.apply(damage)
            self._tell(damage)
        self.marks.sort(key=lambda mark: mark.t)
        self.whole = True

    def _note(self, event: RunEvents) -> None:
        """Keep findings, restarts and ends, and the steps by time."""
        if isinstance(event, Window):
            if not self._steps or event.step > self._steps[-1]:
                self._steps.append(event.step)
                self._step_times.append(event.t)
        elif isinstance(event, RunFinding) and event.severity in (Severity.WARN, Severity.FAIL):
            self._mark(event.t, "finding", event.summary, bad=event.severity is Severity.FAIL)
        elif isinstance(event, RunRestarted):
            path = f" from {event.checkpoint}" if event.checkpoint else ""
            self._mark(event.t, "restart", f"restart {event.restart} of {event.of}{path}")
        elif isinstance(event, PhaseReached) and event.phase == "first_step" and not self._stepped:
            self._stepped = True
            self._mark(event.t, "begin", f"rank {event.rank} has done its first step")
        elif isinstance(event, RunEnded):
            words = f"the run has {ENDED[event.state]}"
            self._mark(event.t, "end", words, bad=event.state is EndState.FAILED)

    def _mark(self, t: float, kind: str, text: str, *, bad: bool = False) -> None:
        if len(self.marks) < MAX_MARKS or kind == "end":
            self.marks.append(Mark(t, kind, text, bad))


class ReplayWalk:
    """A state that can go on in time, by the entries of ``source``."""

    def __init__(self, state: RunState, source: Iterator[StoredEntry]) -> None:
        self.state = state
        self._source = source
        self._next = next(source, None)

    def to(self, t: float, entries: int | None = None) -> bool:
        """Go on to ``t``, or by at most ``entries``; return True if it has reached ``t``.

        The result is the fold of all entries before the first one that is later than ``t``.
        """
        left = -1 if entries is None else entries
        while self._next is not None and self._next.t <= t:
            if left == 0:
                return False
            left -= 1
            with contextlib.suppress(ValueError):
                for _ in self.state.take(self._next):
                    pass
            self._next = next(self._source, None)
        return True
