"""Data of a report beside the timeline: step times by rank and moment, first and last lines."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec import UNSET

from distconsole.model.run_events import LogLine, RunEvents, RunRestarted, Window
from distconsole.model.time_text import is_time
from distconsole.runs.rank_history import OWN, STEP, RankHistory
from distconsole.runs.timeline import RunTimeline

HEAT_CELLS = 160_000
"""Rank times moments that the heat map keeps; with many ranks a moment is longer."""
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
        self.count += 1
        if len(self.first) < FIRST_LINES:
            self.first.append(line)
        else:
            self.last.append(line)

    @property
    def left_out(self) -> int:
        return self.count - len(self.first) - len(self.last)


class ReportData:
    """The fold of a run's events for a written account."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
        self.heat = RankHistory(STEP, OWN, cells=HEAT_CELLS)
        self.lines: dict[tuple[int | None, str], LineEnds] = {}
        """(rank, host) -> its first and last lines."""
        self.restarts: list[RunRestarted] = []
        self.records = 0
        """Steps that all ranks have done together."""

    def apply(self, event: RunEvents) -> None:
        self.timeline.apply(event)
        if isinstance(event, Window):
            self.records += event.steps
            if event.steps > 0:
                self.heat.apply(event)
        elif isinstance(event, LogLine):
            self._line(event)
        elif isinstance(event, RunRestarted):
            self.restarts.append(event)

    def close(self) -> None:
        """Add to the curves the values that are still held back; call it last."""
        self.timeline.close()
        until = self.timeline.last_t if self.timeline.end is None else self.timeline.end.t
        if until is not None and is_time(until):
            self.heat.reach(until)

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
