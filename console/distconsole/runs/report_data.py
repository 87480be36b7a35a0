"""What a written account of a run needs beside its timeline: step times by rank and moment, and the
first and last lines that ranks printed; bounded in size.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from typing import NamedTuple

from msgspec import UNSET

from distconsole.model.run_events import LogLine, RunEvents, RunRestarted, Window
from distconsole.model.time_text import is_time
from distconsole.runs.timeline import RunTimeline

HEAT_CELLS = 160_000
"""Rank times moments that the heat map keeps; with many ranks a moment is longer."""
MIN_COLUMNS, MAX_COLUMNS = 60, 240
FIRST_LINES, LAST_LINES = 8, 24
MAX_LINE_CHARS = 600
MAX_SOURCES = 4096
"""Ranks of which lines are kept."""


class KeptLine(NamedTuple):
    """A line as printed, cut at ``MAX_LINE_CHARS``; ``t`` in UNIX seconds."""

    t: float
    stream: str
    text: str


class LineEnds:
    """The first and the last lines of one source, and how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[KeptLine] = []
        self.last: deque[KeptLine] = deque(maxlen=LAST_LINES)

    def add(self, line: KeptLine) -> None:
        """Take the next line."""
        self.count += 1
        if len(self.first) < FIRST_LINES:
            self.first.append(line)
        else:
            self.last.append(line)

    @property
    def left_out(self) -> int:
        """Lines between the first and the last ones."""
        return self.count - len(self.first) - len(self.last)


class Heat:
    """Mean step time by rank and moment; NaN where nothing is known.

    Moments double in length when there are too many; each cell then is the mean over the steps of
    both, so that nothing is left out.
    """

    def __init__(self) -> None:
        self.started: float | None = None
        self.seconds = 1.0
        """How long a moment is."""
        self._sums: dict[int, array[float]] = {}
        self._steps: dict[int, array[float]] = {}
        self._last = 0
        self._limit = MAX_COLUMNS
        """Moments that there is room for, with so many ranks."""

    @property
    def ranks(self) -> list[int]:
        """Ranks that have made a step, in order."""
        return sorted(self._sums)

    @property
    def columns(self) -> int:
        """Moments from the first step to the last one that was reached."""
        return self._last + 1 if self._sums else 0

    def put(self, rank: int, t: float, step_ms: float, steps: int) -> None:
        """Take that at ``t`` (UNIX seconds) ``steps`` steps of ``step_ms`` each were done."""
        if self.started is None:
            self.started = t
        if rank not in self._sums:
            self._add_rank(rank)
        column = self.reach(t)
        sums, counts = self._sums[rank], self._steps[rank]
        if column >= len(sums):
            more = bytes(8 * (column + 1 - len(sums)))
            sums.frombytes(more)
            counts.frombytes(more)
        sums[column] += step_ms * steps
        counts[column] += steps

    def reach(self, t: float) -> int:
        """Make the moment at ``t`` (UNIX seconds) be there, if there is any; return its column."""
        if self.started is None:
            return 0
        column = max(0, int((t - self.started) / self.seconds))
        while column >= self._limit:
            self._halve()
            column = int((t - self.started) / self.seconds)
        self._last = max(self._last, column)
        return column

    def row(self, rank: int) -> list[float]:
        """Return a rank's mean step time in milliseconds at every moment."""
        sums, steps = self._sums[rank], self._steps[rank]
        known = [
            total / count if count else math.nan for total, count in zip(sums, steps, strict=True)
        ]
        return known + [math.nan] * (self.columns - len(known))

    def _add_rank(self, rank: int) -> None:
        self._sums[rank], self._steps[rank] = array("d"), array("d")
        self._limit = max(MIN_COLUMNS, min(MAX_COLUMNS, HEAT_CELLS // len(self._sums)))
        while self._last >= self._limit:
            self._halve()

    def _halve(self) -> None:
        self.seconds *= 2
        self._last //= 2
        for columns in (self._sums, self._steps):
            for rank, values in columns.items():
                if len(values) % 2:
                    values.append(0.0)
                pairs = zip(values[::2], values[1::2], strict=True)
                columns[rank] = array("d", [one + other for one, other in pairs])


class ReportData:
    """The fold of a run's events for a written account."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
        self.heat = Heat()
        self.lines: dict[tuple[int | None, str], LineEnds] = {}
        """(rank, host) -> what it printed first and last."""
        self.restarts: list[RunRestarted] = []
        self.records = 0
        """Steps that all ranks have done together."""

    def apply(self, event: RunEvents) -> None:
        """Fold one event in."""
        self.timeline.apply(event)
        match event:
            case Window():
                self._window(event)
            case LogLine():
                self._line(event)
            case RunRestarted():
                self.restarts.append(event)
            case _:
                pass

    def close(self) -> None:
        """Take what is not yet on the curves; nothing is applied after it."""
        self.timeline.close()
        until = self.timeline.last_t if self.timeline.end is None else self.timeline.end.t
        if until is not None and is_time(until):
            self.heat.reach(until)

    def _window(self, event: Window) -> None:
        self.records += event.steps
        if event.step_ms_mean is None or event.steps <= 0:
            return
        self.heat.put(event.rank, event.t, event.step_ms_mean, event.steps)

    def _line(self, event: LogLine) -> None:
        if event.transient:
            return
        source = (None if event.rank is UNSET else event.rank, event.host)
        ends = self.lines.get(source)
        if ends is None:
            if len(self.lines) >= MAX_SOURCES:
                return
            ends = self.lines[source] = LineEnds()
        text = event.line
        if len(text) > MAX_LINE_CHARS:
            text = f"{text[:MAX_LINE_CHARS]} …[{len(text) - MAX_LINE_CHARS} more characters]"
        ends.add(KeptLine(event.t, event.stream, text))
