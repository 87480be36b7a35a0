"""Equal lines of several ranks within seconds, and of one rank in a row, become one; the lines of a rank keep their order.

Each line costs the same, however many there are: a look-up of its text, and of its rank's place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from operator import attrgetter

import msgspec

from distconsole.runs.logs.buffer import BufferedLine

FOLD_SECONDS = 2.0
"""Lines further apart are not joined as the same message of several ranks."""

REPEAT_SECONDS = 10.0
"""A repeated line begins a new row this often while others print, and after this long a silence."""

OPEN_ROWS = 4096
"""Rows that a line may still join."""

OPEN_OF_A_TEXT = 32
"""Rows of equal text that a line may join: a rank that repeats itself begins a new one each time."""

FOLDED_CHARS = 2000
"""Longer lines are not compared."""

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
PLACEHOLDER = "#"


class Row(msgspec.Struct, array_like=True, gc=False):
    """One row on the screen: a line, and its speakers.

    Attributes:
        line: The number of its first line.
        t, until: Times of its first and its last line, in UNIX seconds.
        count: Lines in it.
        who: The bits of its speakers.
        text: Shown instead of the line's own text, if numbers differ; else empty.
    """

    number: int
    line: int
    t: float
    count: int
    who: int
    level: int
    text: str = ""
    until: float = 0.0

    @property
    def repeated(self) -> bool:
        return self.count > self.who.bit_count()


class Fold:
    """Finds the row that a line joins: the first of equal text that is not before the last one of its own rank.

    So every rank's lines are in their order. With ``repeats`` that may be the row of its own last line.
    With ``numbers``, lines that differ in these alone are equal.
    """

    def __init__(self, *, numbers: bool = False, repeats: bool = False) -> None:
        self._numbers = numbers
        self._repeats = repeats
        self._open: dict[tuple[bool, str], list[Row]] = {}
        self._order: deque[tuple[tuple[bool, str], Row]] = deque()
        self._last: dict[int, tuple[tuple[bool, str], Row]] = {}
        """Speaker -> its last line, and the row of that."""
        self._newest = 0.0
        self._newest_row = -1

    def join(self, line: BufferedLine) -> Row | None:
        """Add ``line`` to the row that it fits and return that; None if it needs a new one."""
        if line.t > self._newest:
            self._newest = line.t
        key = self._key(line)
        row = self._repeated(line, key) or self._said_by_others(line, key)
        if row is not None:
            self._last[line.speaker] = key, row
            row.count += 1
            row.who |= 1 << line.speaker
            row.until = max(row.until, line.t)
        return row

    def _repeated(self, line: BufferedLine, key: tuple[bool, str]) -> Row | None:
        said, row = self._last.get(line.speaker, (None, None))
        if not self._repeats or row is None or said != key or len(line.text) > FOLDED_CHARS:
            return None
        # Older rows are on the disk.
        held = row.number > self._newest_row - OPEN_ROWS
        foremost = row.number == self._newest_row
        return row if held and repeats(line.t, row.t, row.until, foremost=foremost) else None

    def _said_by_others(self, line: BufferedLine, key: tuple[bool, str]) -> Row | None:
        rows = self._open.get(key)
        if not rows:
            return None
        last = self._last.get(line.speaker)
        at = bisect_right(rows, -1 if last is None else last[1].number, key=attrgetter("number"))
        return next((row for row in rows[at:] if abs(line.t - row.t) <= FOLD_SECONDS), None)

    def begin(self, line: BufferedLine, row: Row) -> None:
        key, row.until, self._newest_row = self._key(line), row.t, row.number
        if len(line.text) > FOLDED_CHARS:
            self._last[line.speaker] = (line.err, ""), row
            return
        self._last[line.speaker] = key, row
        rows = self._open.setdefault(key, [])
        rows.append(row)
        self._order.append((key, row))
        if len(rows) > OPEN_OF_A_TEXT:
            del rows[0]
        self._forget()

    def tick(self, t: float) -> None:
        """Advance to ``t`` (UNIX seconds on the lines' clock) without a line."""
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


def repeats(t: float, first: float, last: float, *, foremost: bool) -> bool:
    """Return True if a rank's line at ``t`` continues its equal ones from ``first`` to ``last``.

    Args:
        foremost: No line has come since.
    """
    return t - last <= REPEAT_SECONDS and (foremost or t - first <= REPEAT_SECONDS)


def with_placeholders(shown: str, text: str) -> str:
    mine, other = _EITHER.findall(text), _EITHER.findall(shown)
    if len(mine) != len(other):
        return shown
    kept = iter(b if a == b else PLACEHOLDER for a, b in zip(mine, other, strict=True))
    return _EITHER.sub(lambda _: next(kept), shown)


_EITHER = re.compile(rf"{PLACEHOLDER}|{NUMBER.pattern}")
