"""Equal lines of several ranks within seconds become one; the lines of one rank keep their order.

Each line costs the same, however many there are: a look-up of its text, and of where its rank is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from operator import attrgetter

import msgspec

from distconsole.runs.logs.buffer import BufferedLine

FOLD_SECONDS = 2.0
"""Lines further apart are not the same word said by several."""

OPEN_ROWS = 4096
"""Rows that a line may still join."""

OPEN_OF_A_TEXT = 32
"""Rows of equal text that a line may join: a rank that repeats itself begins a new one each time."""

FOLDED_CHARS = 2000
"""Longer lines are not compared."""

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
PLACEHOLDER = "#"


class Row(msgspec.Struct, array_like=True, gc=False):
    """One row on the screen: a line, and who else said it.

    Attributes:
        line: The number of the line that stands first in it.
        t: When it was said first, in UNIX seconds.
        count: Lines in it.
        who: The bits of its speakers.
        text: What is shown instead of the line's own text, where numbers differ; else empty.
    """

    number: int
    line: int
    t: float
    count: int
    who: int
    level: int
    text: str = ""


class Fold:
    """Finds the row that a line joins: the first of equal text that is not before the last one of its own rank.

    So every rank's lines are in their order. With ``numbers``, lines that differ in these alone are equal.
    """

    def __init__(self, *, numbers: bool = False) -> None:
        self._numbers = numbers
        self._open: dict[tuple[bool, str], list[Row]] = {}
        self._order: deque[tuple[tuple[bool, str], Row]] = deque()
        self._last: dict[int, int] = {}
        """Speaker -> the row of its last line."""
        self._newest = 0.0

    def join(self, line: BufferedLine) -> Row | None:
        """Add ``line`` to the row that it fits and return that; None if it needs a new one."""
        if line.t > self._newest:
            self._newest = line.t
        rows = self._open.get(self._key(line))
        if not rows:
            return None
        at = bisect_right(rows, self._last.get(line.speaker, -1), key=attrgetter("number"))
        for row in rows[at:]:
            if abs(line.t - row.t) <= FOLD_SECONDS:
                self._last[line.speaker] = row.number
                row.count += 1
                row.who |= 1 << line.speaker
                return row
        return None

    def begin(self, line: BufferedLine, row: Row) -> None:
        """Let later lines join ``row``, which ``line`` begins."""
        self._last[line.speaker] = row.number
        if len(line.text) > FOLDED_CHARS:
            return
        key = self._key(line)
        rows = self._open.setdefault(key, [])
        rows.append(row)
        self._order.append((key, row))
        if len(rows) > OPEN_OF_A_TEXT:
            del rows[0]
        self._forget()

    def tick(self, t: float) -> None:
        """Take that it is ``t`` (UNIX seconds on the lines' clock), though nobody says anything."""
        self._newest = max(self._newest, t)
        self._forget()

    def closed_before(self) -> int:
        """Return the first row that a line may still join, -1 if there is none."""
        return self._order[0][1].number if self._order else -1

    def _key(self, line: BufferedLine) -> tuple[bool, str]:
        text = line.text
        if self._numbers and len(text) <= FOLDED_CHARS:
            text = NUMBER.sub(PLACEHOLDER, text)
        return line.err, text

    def _forget(self) -> None:
        oldest = self._newest - FOLD_SECONDS
        while self._order and (len(self._order) > OPEN_ROWS or self._order[0][1].t < oldest):
            key, row = self._order.popleft()
            rows = self._open.get(key)
            if rows and rows[0] is row:
                del rows[0]
            if not rows:
                self._open.pop(key, None)


def with_placeholders(shown: str, text: str) -> str:
    """Return ``shown`` with a placeholder for each number in which ``text`` differs from it."""
    mine, other = _EITHER.findall(text), _EITHER.findall(shown)
    if len(mine) != len(other):
        return shown
    kept = iter(b if a == b else PLACEHOLDER for a, b in zip(mine, other, strict=True))
    return _EITHER.sub(lambda _: next(kept), shown)


_EITHER = re.compile(rf"{PLACEHOLDER}|{NUMBER.pattern}")
