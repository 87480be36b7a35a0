"""The rows that a filter and folding make of a run's lines, and search in them.

Rows are made in slices of time, so that drawing never waits; like lines they lie on the disk.
"""

from __future__ import annotations

import math
import re
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.run_events import LogLine
from distconsole.runs.logs.buffer import BufferedLine, LogBuffer
from distconsole.runs.logs.filter import SEARCHED_CHARS, LogFilter
from distconsole.runs.logs.fold import OPEN_ROWS, Fold, Row, with_placeholders
from distconsole.runs.logs.levels import Level
from distconsole.runs.logs.spill import BLOCK, SpilledList

SLICE_LINES = 256
"""Lines that are taken with the lock held."""

MAX_MARKS = 500_000
"""Kept places of errors and of search hits; more are counted."""


class Marks:
    """Numbers of rows, rising."""

    def __init__(self) -> None:
        self.count = 0
        self.places = array("Q")

    def add(self, number: int) -> None:
        self.count += 1
        if len(self.places) < MAX_MARKS:
            self.places.append(number)

    def after(self, number: int) -> int | None:
        at = bisect_right(self.places, number)
        return self.places[at] if at < len(self.places) else None

    def before(self, number: int) -> int | None:
        at = bisect_left(self.places, number)
        return self.places[at - 1] if at else None

    def rank_of(self, number: int) -> int | None:
        """Return which place ``number`` is, from 1; None if it is none."""
        at = bisect_left(self.places, number)
        there = at < len(self.places) and self.places[at] == number
        return at + 1 if there else None


class LogRows:
    """Rows of ``book`` that ``wanted`` lets through; equal lines are one with ``fold``. Any thread may use it.

    With ``numbers``, lines that differ in these alone are equal, too. Line n of the book stands for
    ``counts[n]`` equal ones in a row, with the time of the last; else for itself.
    """

    def __init__(
        self,
        book: LogBuffer,
        wanted: LogFilter | None = None,
        *,
        fold: bool = True,
        numbers: bool = False,
        counts: Sequence[tuple[int, float]] = (),
    ) -> None:
        self.book = book
        self._counts = counts
        self.version = 0
        """Changes with every row."""
        self.errors = Marks()
        self.first_error: Row | None = None
        """The error that was printed first, by its time."""
        self.first_error_t = math.inf
        self.lines = 0
        """Lines that the filter let through."""
        self._fold = Fold(numbers=numbers, repeats=True) if fold else None
        self._numbers = numbers
        self._fits = wanted.test(book.speakers) if wanted else None
        self._rows: SpilledList[Row] = SpilledList(
            _encode, _decode, max_weight=OPEN_ROWS + BLOCK, folder=book.folder
        )
        self.taken = 0
        """Lines of the book that were looked at."""
        self._lock = threading.Lock()
        self._pattern: re.Pattern[str] | None = None
        self.found = Marks()
        """Rows of search hits so far."""
        self._searched = 0
        """The next row to be searched."""

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Give the disk's space back."""
        self._rows.close()

    @property
    def behind(self) -> bool:
        """Whether ``advance`` has work to do."""
        return self.taken < len(self.book) or (
            self._pattern is not None and self._searched < len(self._rows)
        )

    def advance(self, seconds: float) -> bool:
        """Make rows of new lines and search them, for about this long; return whether all is done."""
        until = time.monotonic() + seconds
        while self.behind:
            with self._lock:
                if self.taken < len(self.book):
                    self._take_some()
                else:
                    self._search_some()
            if time.monotonic() >= until:
                break
        return not self.behind

    def row(self, number: int) -> Row | None:
        """Return a row; None if it is not there."""
        return self._rows.get(number)

    def line_of(self, row: Row) -> BufferedLine | None:
        """Return the line that ``row`` shows; None if it is gone."""
        return self.book.get(row.line)

    def row_at(self, t: float) -> int:
        """Return the first row at ``t`` (UNIX seconds) or later; the last one if none is.

        Rows are in the order of arrival, which differs from that of time by seconds.
        """
        rows = range(len(self))
        return min(bisect_left(rows, t, key=self._time_of), max(0, len(rows) - 1))

    def rows_until(self, t: float) -> int:
        """Return the number of rows at ``t`` (UNIX seconds) or before."""
        return bisect_right(range(len(self)), t, key=self._time_of)

    def row_of_line(self, number: int) -> int:
        rows = range(len(self))
        return max(0, bisect_right(rows, number, key=self._line_at) - 1)

    def _time_of(self, number: int) -> float:
        row = self.row(number)
        return row.t if row is not None else -math.inf

    def _line_at(self, number: int) -> int:
        row = self.row(number)
        return row.line if row is not None else -1

    def search(self, pattern: re.Pattern[str] | None) -> None:
        """Look for ``pattern`` in every row from now on; None for nothing."""
        with self._lock:
            self._pattern = pattern
            self.found = Marks()
            self._searched = 0

    def _take_some(self) -> None:
        start = max(self.taken, self.book.first)
        lines = self.book.slice(start, start + SLICE_LINES)
        for number, line in enumerate(lines, start):
            if self._fits is None or self._fits(line):
                self._take(number, line)
        self.taken = start + len(lines)
        self.version += 1

    @property
    def hides_first_error(self) -> bool:
        first, _ = self.book.counts.first_error
        return self._fits is not None and not self.behind and first < self.first_error_t

    def _take(self, number: int, line: BufferedLine) -> None:
        self.lines += 1
        joined = self._fold.join(line) if self._fold is not None else None
        if joined is not None:
            self._count(joined, number)
            if self._numbers:
                head = self.book.get(joined.line)
                shown = joined.text or (head.text if head is not None else line.text)
                if shown != line.text:
                    joined.text = with_placeholders(shown, line.text)
            if joined.level == Level.ERROR:
                self._note_first(joined, line.t)
            return
        row = Row(len(self._rows), number, line.t, 1, 1 << line.speaker, line.level)
        if self._fold is not None:
            self._fold.begin(line, row)
        self._count(row, number)
        self._rows.append(row)
        if row.level == Level.ERROR:
            self.errors.add(row.number)
            self._note_first(row, line.t)

    def _count(self, row: Row, number: int) -> None:
        if self._counts:
            count, until = self._counts[number]
            row.count += count - 1
            row.until = max(row.until, until)

    def _note_first(self, row: Row, t: float) -> None:
        if t < self.first_error_t:
            self.first_error, self.first_error_t = row, t

    def _search_some(self) -> None:
        pattern = self._pattern
        if pattern is None:
            return
        for row in self._rows.slice(self._searched, self._searched + SLICE_LINES):
            line = self.book.get(row.line)
            if line is not None and pattern.search(row.text or line.text, 0, SEARCHED_CHARS):
                self.found.add(row.number)
            self._searched = row.number + 1


def rows_of(
    lines: Iterable[LogLine],
    counts: Sequence[tuple[int, float]] = (),
    wanted: LogFilter | None = None,
) -> LogRows:
    """Return ``lines`` folded: a few, all there are; ``counts`` and ``wanted`` as in ``LogRows``."""
    book = LogBuffer()
    for line in lines:
        book.add(line)
    rows = LogRows(book, wanted, counts=counts)
    while not rows.advance(1.0):
        pass
    return rows


def _encode(rows: list[Row]) -> bytes:
    """Return rows as bytes; their speakers' bits may be too many for a number of msgpack's."""
    bits = [row.who.to_bytes(row.who.bit_length() // 8 + 1, "little") for row in rows]
    return msgspec.msgpack.encode((bits, [msgspec.structs.replace(row, who=0) for row in rows]))


def _decode(data: bytes) -> list[Row]:
    bits, rows = _DECODER.decode(data)
    for who, row in zip(bits, rows, strict=True):
        row.who = int.from_bytes(who, "little")
    return rows


_DECODER = msgspec.msgpack.Decoder(threadsafe(tuple[list[bytes], list[Row]]))
