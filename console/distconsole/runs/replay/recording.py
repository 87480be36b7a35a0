"""A stored run on its time axis: read once from its beginning, then at any moment. It draws nothing.

While it is read, the picture is frozen every so often. A moment is the last frozen one before it,
with the entries since folded in: the same fold as from the beginning.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
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
    RunEnded,
    RunEvents,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.runs.replay.moment import Moment, thawed
from distconsole.runs.store.planned import stored_end, stored_plan
from distconsole.runs.store.run_file import RunFile, StoredEntry
from distconsole.runs.summary import damage_finding

FRAME_ENTRIES = 1000
FRAME_BYTES = 512 * 1024
"""A moment is frozen after so many entries, or so many bytes of them."""
FRAME_SHARE = 4
"""Frozen moments take at most so many times the room of the entries."""
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
    """A place on the axis, in UNIX seconds.

    Attributes:
        kind: ``finding``, ``restart``, ``begin`` or ``end``.
        bad: It is a failure.
    """

    t: float
    kind: str
    text: str
    bad: bool = False


class Frames:
    """Frozen moments by time, in a file without a name."""

    def __init__(self, folder: Path | None) -> None:
        self.times: list[float] = []
        self._places: list[tuple[int, int]] = []
        self._folder = folder
        self._fd = -1
        self._full = False

    def add(self, t: float, frozen: bytes) -> None:
        """Keep a moment; where the disk refuses, seeking takes longer from there on."""
        at = sum(self._places[-1]) if self._places else 0
        if self._full or at + len(frozen) > MAX_FILE_BYTES:
            return
        try:
            self._write(frozen, at)
        except OSError:
            self._full = True
            return
        self.times.append(t)
        self._places.append((at, len(frozen)))

    def before(self, t: float) -> bytes | None:
        """Return the last moment at ``t`` or before it; None if there is none."""
        found = bisect_right(self.times, t)
        if not found:
            return None
        at, size = self._places[found - 1]
        return os.pread(self._fd, size, at)

    def close(self) -> None:
        """Give the disk's space back; may be called several times."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.times, self._places = -1, [], []

    def _write(self, data: bytes, at: int) -> None:
        if self._fd < 0:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._fd = os.dup(file.fileno())
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, at)
            at, view = at + done, view[done:]


class Recording:
    """One stored run.

    Args:
        run_file: The run; it stays the caller's, as does the thread that uses this.
        folder: Where frozen moments are put; None takes the system's folder for temporary files.
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
        """What stands out, in order of time."""
        self.whole = False
        """Whether it was read to its end."""
        self.total = run_file.count()
        """Entries that it has, as far as they can be counted."""
        self._frames = Frames(folder)
        self._since, self._since_bytes, self._frame_bytes = 0, 0, 0
        self._spoilt: Counter[str] = Counter()
        self._step_times, self._steps = array("d"), array("q")
        self._stepped = False
        self.head = self._first()
        """As far as it was read."""
        self._source: Iterator[StoredEntry] = run_file.entries()
        if self._plan is not None:
            tell(self._plan)

    @property
    def end(self) -> float:
        """The newest time that was read (UNIX seconds)."""
        return max(self.head.t, self.start)

    def close(self) -> None:
        """Forget the frozen moments, and read no more; may be called several times."""
        self._frames.close()
        self._source = iter(())

    def read(self, entries: int) -> bool:
        """Read on by so many ``entries``; return whether there is more."""
        for _ in range(entries):
            stored = next(self._source, None)
            if stored is None:
                self._finish()
                break
            self._take(stored)
        return not self.whole

    def at(self, t: float) -> Walk:
        """Return the run as it was at ``t``, at most as far as it was read."""
        if self.whole and t >= self.end:
            return Walk(self.head, iter(()))
        frozen = self._frames.before(t)
        moment = self._first() if frozen is None else thawed(frozen, self._plan)
        walk = Walk(moment, self._file.entries(moment.cursors))
        walk.to(t)
        return walk

    def leaps(self, t: float, until: float) -> bool:
        """Whether to seek ``until`` is quicker than to walk there from ``t``."""
        times = self._frames.times
        return bisect_right(times, until) > bisect_right(times, t) + 1

    def time_of_step(self, step: int) -> float | None:
        """Return when some rank had first done ``step``; None if none has."""
        place = bisect_left(self._steps, step)
        return self._step_times[place] if place < len(self._steps) else None

    @property
    def _late_end(self) -> RunEnded | None:
        """The end that was kept beside the entries, where these do not tell one."""
        return None if self.head.ended else stored_end(self.record)

    def _first(self) -> Moment:
        return Moment(self.record, self._plan)

    def _take(self, stored: StoredEntry) -> None:
        try:
            for event in self.head.take(stored):
                self._note(event)
                self._tell(event)
        except ValueError:
            self._spoilt[stored.host] += 1
        self._since += 1
        self._since_bytes += len(stored.body)
        enough = self._since >= FRAME_ENTRIES or self._since_bytes >= FRAME_BYTES
        if enough and self._since_bytes * FRAME_SHARE >= self._frame_bytes:
            frozen = self.head.frozen()
            self._frames.add(self.head.t, frozen)
            self._since, self._since_bytes, self._frame_bytes = 0, 0, len(frozen)

    def _finish(self) -> None:
        end = self._late_end
        if end is not None:
            self.head.close(end)
            self._note(end)
            self._tell(end)
        damage = damage_finding(self.record, self._spoilt, self._file, self.end)
        if damage is not None:
            self.head.timeline.apply(damage)
            self._tell(damage)
        self.marks.sort(key=lambda mark: mark.t)
        self.whole = True

    def _note(self, event: RunEvents) -> None:
        """Keep what stands out, and how far the steps were."""
        match event:
            case Window():
                if not self._steps or event.step > self._steps[-1]:
                    self._steps.append(event.step)
                    self._step_times.append(event.t)
            case RunFinding(severity=Severity.WARN | Severity.FAIL):
                self._mark(event.t, "finding", event.summary, bad=event.severity is Severity.FAIL)
            case RunRestarted():
                path = f" from {event.checkpoint}" if event.checkpoint else ""
                self._mark(event.t, "restart", f"restart {event.restart} of {event.of}{path}")
            case PhaseReached(phase="first_step") if not self._stepped:
                self._stepped = True
                self._mark(event.t, "begin", f"rank {event.rank} has done its first step")
            case RunEnded():
                words = f"the run has {ENDED[event.state]}"
                self._mark(event.t, "end", words, bad=event.state is EndState.FAILED)
            case _:
                pass

    def _mark(self, t: float, kind: str, text: str, *, bad: bool = False) -> None:
        if len(self.marks) < MAX_MARKS or kind == "end":
            self.marks.append(Mark(t, kind, text, bad))


class Walk:
    """A moment that can go on.

    Args:
        moment: Where it begins.
        source: The entries after it.
    """

    def __init__(self, moment: Moment, source: Iterator[StoredEntry]) -> None:
        self.moment = moment
        self._source = source
        self._next = next(source, None)

    def to(self, t: float, entries: int | None = None) -> bool:
        """Go on to ``t``, or by at most so many ``entries``; return whether it is there.

        It is the fold of all entries before the first one that is later than ``t``.
        """
        left = -1 if entries is None else entries
        while self._next is not None and self._next.t <= t:
            if left == 0:
                return False
            left -= 1
            with contextlib.suppress(ValueError):
                for _ in self.moment.take(self._next):
                    pass
            self._next = next(self._source, None)
        return True
