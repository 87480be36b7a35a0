"""Counts of printed lines: by source, by level, and a second over the run's time."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple

from distconsole.model.time_text import is_time
from distconsole.runs.logs.levels import Level

MAX_BINS = 1024
"""Bins of time; when they are full, two become one."""
PACE_SECONDS = 1.0


class Bins(NamedTuple):
    """Lines, and errors among them, in each span of ``seconds``."""

    seconds: float
    lines: list[int]
    errors: list[int]


class LogCounts:
    """Counts lines as they come, in little and bounded room. One thread adds, any may read."""

    def __init__(self) -> None:
        self.by_speaker: list[list[int]] = []
        """By the speaker's number: how many lines of each ``Level``; each list is counted up in its place."""
        self.by_level = [0] * len(Level)
        self.first = 0.0
        """When the bins begin, UNIX seconds."""
        self.bins = Bins(1.0, [], [])
        self.first_error = math.inf, 0
        """When the error was printed that is first by its time (UNIX seconds), and by which speaker."""

    def add(self, t: float, speaker: int, level: int) -> None:
        while speaker >= len(self.by_speaker):
            self.by_speaker.append([0] * len(Level))
        self.by_speaker[speaker][level] += 1
        self.by_level[level] += 1
        if level == Level.ERROR and t < self.first_error[0]:
            self.first_error = t, speaker
        if not is_time(t):
            return
        if not self.bins.lines:
            self.first = t
        place = max(0, int((t - self.first) / self.bins.seconds))
        while place >= MAX_BINS:
            self.bins = Bins(2 * self.bins.seconds, _halved(self.bins[1]), _halved(self.bins[2]))
            place //= 2
        _, lines, errors = self.bins
        if place >= len(lines):
            more = [0] * (place + 1 - len(lines))
            errors.extend(more)
            lines.extend(more)
        lines[place] += 1
        if level == Level.ERROR:
            errors[place] += 1


class Pace:
    """The present rate of lines, and the sources of most of them; asked from time to time."""

    def __init__(self) -> None:
        self.lines_s = 0.0
        self.most: int | None = None
        """The speaker of more than half of them."""
        self._t: float | None = None
        self._before: list[int] = []

    def look(self, t: float, counts: LogCounts) -> None:
        """Count lines up to ``t`` (UNIX seconds)."""
        seconds = 0.0 if self._t is None else t - self._t
        if self._t is not None and 0 <= seconds < PACE_SECONDS:
            return
        now = list(map(sum, counts.by_speaker))
        if seconds > 0:
            came = [n - old for n, old in zip_longest(now, self._before, fillvalue=0)]
            every = sum(came)
            self.lines_s = every / seconds
            self.most = next((who for who, n in enumerate(came) if 2 * n > every), None)
        self._t, self._before = t, now


def _halved(counts: list[int]) -> list[int]:
    return [sum(counts[at : at + 2]) for at in range(0, len(counts), 2)]
