"""The rows that a filter and folding make of a run's lines, and where in them is what one looks for.

Rows are made in slices of time, so that whoever draws is never kept; they lie on the disk as the
lines do, so that memory does not grow with the run.
"""

from __future__ import annotations

import math
import re
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.run_events import LogLine
from distconsole.runs.logs.buffer import BufferedLine, LogBuffer
from distconsole.runs.logs.filter import SEARCHED_CHARS, LogFilter
from distconsole.runs.logs.fold import OPEN_ROWS, Fold, Row, with_placeholders
from distconsole.runs.logs.levels import Level
from distconsole.runs.logs.spill import SpilledList

SLICE_LINES = 256
"""Lines that are taken with the lock held."""

MAX_MARKS = 500_000
"""Places of errors, and of what is searched, that are kept; more are counted."""


class Marks:
    """Numbers of rows, rising."""

    def __init__(self) -> None:
        self.count = 0
        self.places = array("Q")

    def add(self, number: int) -> None:
        """Add a row after those that are there."""
        self.count += 1
        if len(self.places) < MAX_MARKS:
            self.places.append(number)

    def after(self, number: int) -> int | None:
        """Return the next place after ``number``."""
        at = bisect_right(self.places, number)
        return self.places[at] if at < len(self.places) else None

    def before(self, number: int) -> int | None:
        """Return the next place before ``number``."""
        at = bisect_left(self.places, number)
        return self.places[at - 1] if at else None

    def rank_of(self, number: int) -> int | None:
        """Return which place ``number`` is, from 1; None if it is none."""
        at = bisect_left(self.places, number)
        there = at < len(self.places) and self.places[at] == number
        return at + 1 if there else None


class LogRows:
    """Rows of ``book`` that ``wanted`` lets through. Any thread may use it.

    Args:
        fold: Fold equal lines into one row.
        numbers: Lines are equal, too, that differ in their numbers alone.
    """

    def __init__(
        self,
        book: LogBuffer,
        wanted: LogFilter | None = None,
        *,
        fold: bool = True,
        numbers: bool = False,
    ) -> None:
        self.book = book
        self.version = 0
        """Changes with every row."""
        self.errors = Marks()
        self.first_error: Row | None = None
        """The error that was printed first, by its time."""
        self.lines = 0
        """Lines that the filter let through."""
        self._fold = Fold(numbers=numbers) if fold else None
        self._numbers = numbers
        self._fits = wanted.test(book.speakers) if wanted else None
        self._rows: SpilledList[Row] = SpilledList(
            _pack, _unpack, tail=OPEN_ROWS, folder=book.folder
        )
        self.taken = 0
        """Lines of the book that were looked at."""
        self._lock = threading.Lock()
        self._pattern: re.Pattern[str] | None = None
        self._found = Marks()
        self._searched = 0
        """The next row to be searched."""

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Give the disk's space back."""
        self._rows.close()

    @property
    def behind(self) -> bool:
        """Whether there is something to do for ``advance``."""
        return self.taken < len(self.book) or self._search_behind

    def advance(self, seconds: float) -> bool:
        """Make rows of the lines that came, and search them; return whether all is done.

        Args:
            seconds: Stop after about so long.
        """
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
        try:
            return self._rows.get(number)
        except IndexError:
            return None

    def line_of(self, row: Row) -> BufferedLine | None:
        """Return the line that ``row`` shows; None if it is gone."""
        return self.book.line(row.line)

    def row_at(self, t: float) -> int:
        """Return the first row said at ``t`` (UNIX seconds) or later; the last one if none was.

        Rows are in the order in which their lines came, which is that of time but for some seconds.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            row = self.row(middle)
            if row is not None and row.t >= t:
                high = middle
            else:
                low = middle + 1
        return max(0, min(low, len(self) - 1))

    def rows_until(self, t: float) -> int:
        """Return how many rows were said at ``t`` (UNIX seconds) or before."""
        at = self.row_at(math.nextafter(t, math.inf))
        row = self.row(at)
        return 0 if row is None else at + (row.t <= t)

    def row_of_line(self, number: int) -> int:
        """Return the last row that begins with line ``number`` of the book or an earlier one."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            row = self.row(middle)
            if row is not None and row.line > number:
                high = middle
            else:
                low = middle + 1
        return max(0, low - 1)

    def search(self, pattern: re.Pattern[str] | None) -> None:
        """Look for ``pattern`` in every row from now on; None for nothing."""
        with self._lock:
            self._pattern = pattern
            self._found = Marks()
            self._searched = 0

    @property
    def found(self) -> Marks:
        """Rows in which the search found something, so far."""
        return self._found

    @property
    def _search_behind(self) -> bool:
        return self._pattern is not None and self._searched < len(self._rows)

    def _take_some(self) -> None:
        start = max(self.taken, self.book.first)
        lines = self.book.lines(start, start + SLICE_LINES)
        for number, line in enumerate(lines, start):
            if self._fits is None or self._fits(line):
                self._take(number, line)
        self.taken = start + len(lines)
        self.version += 1

    def _take(self, number: int, line: BufferedLine) -> None:
        self.lines += 1
        joined = self._fold.join(line) if self._fold is not None else None
        if joined is not None:
            if self._numbers:
                self._join_numbers(joined, line)
            if joined.level == Level.ERROR:
                self._note_first(joined, line.t)
            return
        row = Row(len(self._rows), number, line.t, 1, 1 << line.speaker, line.level)
        if self._fold is not None:
            self._fold.begin(line, row)
        self._rows.append(row)
        if row.level == Level.ERROR:
            self.errors.add(row.number)
            self._note_first(row, line.t)

    def _note_first(self, row: Row, t: float) -> None:
        if self.first_error is None or t < self._first_error_t:
            self.first_error, self._first_error_t = row, t

    def _join_numbers(self, row: Row, line: BufferedLine) -> None:
        head = self.book.line(row.line)
        shown = row.text or (head.text if head is not None else line.text)
        if shown != line.text:
            row.text = with_placeholders(shown, line.text)

    def _search_some(self) -> None:
        pattern = self._pattern
        if pattern is None:
            return
        for row in self._rows.slice(self._searched, self._searched + SLICE_LINES):
            line = self.book.line(row.line)
            if line is not None and pattern.search(row.text or line.text, 0, SEARCHED_CHARS):
                self._found.add(row.number)
            self._searched = row.number + 1

    _first_error_t = 0.0


def rows_of(lines: Iterable[LogLine]) -> LogRows:
    """Return ``lines`` folded: a few, all there are."""
    book = LogBuffer()
    for line in lines:
        book.append(line)
    rows = LogRows(book)
    while not rows.advance(1.0):
        pass
    return rows


def _pack(rows: list[Row]) -> bytes:
    return _ENCODE(
        [
            (row.number, row.line, row.t, row.count, _bytes(row.who), row.level, row.text)
            for row in rows
        ]
    )


def _unpack(data: bytes) -> list[Row]:
    return [
        Row(number, line, t, count, int.from_bytes(who, "little"), level, text)
        for number, line, t, count, who, level, text in _DECODE(data)
    ]


def _bytes(who: int) -> bytes:
    return who.to_bytes((who.bit_length() + 7) // 8, "little")


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(
    threadsafe(list[tuple[int, int, float, int, bytes, int, str]])
).decode
