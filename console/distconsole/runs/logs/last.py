"""The last lines of a run: repetitions of one rank are one line, and a flood leaves the others a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distconsole.model.run_events import LogLine, LogSource
from distconsole.runs.logs.fold import FOLD_SECONDS, repeats

FRESH_SECONDS = 10.0
"""A line keeps its place for this long while another source prints more; then the newest come first again."""
MOST_EQUAL = 16_384
"""Equal lines of ranks take one row, and together no more than these."""


@dataclass(slots=True)
class LastLine:
    """A line, how often its source printed it in a row, and when it did last (UNIX seconds)."""

    line: LogLine
    count: int
    until: float


class LastLines:
    """The last lines, at most ``most``; if more came within seconds, those that ``chosen`` returns."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._full = 2 * most
        self._kept: list[LastLine] = []
        self._newest: dict[LogSource, LastLine] = {}
        """Of each source in ``_kept``."""

    def __len__(self) -> int:
        return min(len(self._kept), self._most)

    def __iter__(self) -> Iterator[LogLine]:
        return (each.line for each in self.newest(self._most))

    def newest(self, rows: int) -> list[LastLine]:
        return chosen(self._kept, min(rows, self._most))

    def append(self, line: LogLine) -> None:
        source = line.source
        last = self._newest.get(source)
        if last is not None and last.line.line == line.line:
            foremost = last is self._kept[-1]
            if repeats(line.t, last.line.t, last.until, foremost=foremost):
                last.count, last.until = last.count + 1, line.t
                return
        last = self._newest[source] = LastLine(line, 1, line.t)
        self._kept.append(last)
        if len(self._kept) >= self._full:
            self._kept = chosen(self._kept, self._most)
            # As many again may come before the next choice, however many share a row.
            self._full = 2 * max(self._most, len(self._kept))
            self._newest = {each.line.source: each for each in self._kept}


def chosen(lines: Sequence[LastLine], rows: int) -> list[LastLine]:
    """Return those of ``lines`` that stand on ``rows`` rows, in their order.

    The sources of the last seconds take turns, rank 0 and stderr first, each with its newest; older lines fill
    the rest. Equal ones of several sources take one row.
    """
    if len(lines) <= rows:
        return list(lines)
    turns = Counter[LogSource]()
    wishes: list[tuple[float, bool, int]] = []
    words: set[tuple[str, str]] = set()
    for age, each in enumerate(reversed(lines)):
        fresh = lines[-1].until - each.until <= FRESH_SECONDS
        if not fresh and len(words) >= rows:
            break
        line, source = each.line, each.line.source
        words.add((line.stream, line.line))
        foremost = line.rank == 0 or line.stream == "err"
        wishes.append((turns[source], not foremost, age) if fresh else (len(lines), False, age))
        turns[source] += 1
    found: list[int] = []
    said: dict[tuple[str, str], float] = {}
    for _, _, age in sorted(wishes):
        line = lines[-1 - age].line
        key = line.stream, line.line
        if len(found) >= MOST_EQUAL:
            break
        if key not in said or abs(said[key] - line.t) > FOLD_SECONDS:
            if not rows:
                break
            rows -= 1
            said[key] = line.t
        found.append(len(lines) - 1 - age)
    return [lines[at] for at in sorted(found)]
