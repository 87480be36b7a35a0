"""Reads a journal's entries in order, from any number on, while it is written or after.

A line that is damaged is passed over, as is the rest of a compressed file that is: the numbers of
what follows show what is missing.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator

from distconsole_agent.contract.limits import READ_BYTES
from distconsole_agent.journal.lines import MARK, mark_of, seq_of
from distconsole_agent.journal.state import packed_path, plain_path, segments, unpack


class JournalError(Exception):
    """A journal that cannot be read: a segment is missing."""


class Reader:
    """Reads entries after a number, in order, batch by batch; holds one descriptor.

    Attributes:
        journal_id: Who wrote the last entry that was read; empty for the first version.
    """

    def __init__(self, folder: str, after: int) -> None:
        self._folder = folder
        self._last = after
        self.journal_id = ""
        self._number = 0
        self._source: _Source | None = None

    @property
    def last(self) -> int:
        """Number of the last entry that was read."""
        return self._last

    def close(self) -> None:
        """Give the descriptor back; may be called several times."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def read(self) -> list[bytes]:
        """Return the next entries as their lines; empty when there is nothing new.

        Raises:
            OSError: when a segment cannot be read.
            JournalError: when a segment is missing.
        """
        while True:
            if self._source is None and not self._open():
                return []
            source = self._source
            assert source is not None
            # Asked before reading: a segment that has a successor will not grow any more.
            successor = self._has_successor()
            lines = source.batches()
            if lines is None:
                if not successor:
                    return []
                self.close()
                self._number += 1
                continue
            fresh = self._fresh(lines)
            if fresh:
                return fresh

    def _fresh(self, lines: list[bytes]) -> list[bytes]:
        found = []
        for line in lines:
            if line.startswith(MARK):
                self._take_signature(line)
                continue
            seq = seq_of(line)
            if seq > self._last:
                self._last = seq
                found.append(line)
        return found

    def _take_signature(self, line: bytes) -> None:
        if b'"journal":' in line and (mark := mark_of(line)) is not None:
            self.journal_id = mark["journal"]["id"]

    def read_all(self) -> Iterator[bytes]:
        """Yield every entry that is there."""
        while lines := self.read():
            yield from lines

    def _open(self) -> bool:
        if self._number == 0:
            self._number = self._find()
        if self._number == 0:
            return False
        self._source = self._source_of(self._number)
        return True

    def _source_of(self, number: int) -> _Source:
        # What is compressed is complete; a plain file may become so between two looks.
        plain, packed = plain_path(self._folder, number), packed_path(self._folder, number)
        for path in (packed, plain, packed):
            with contextlib.suppress(FileNotFoundError):
                return _Source(path)
        raise JournalError(f"segment {number} of {self._folder} is missing")

    def _find(self) -> int:
        """Return the segment that holds the entry after ``last``; 0 when there is no segment."""
        numbers = segments(self._folder)
        low, high = 0, len(numbers)
        while high - low > 1:
            middle = (low + high) // 2
            if self._first_seq(numbers[middle]) > self._last + 1:
                high = middle
            else:
                low = middle
        return numbers[low] if numbers else 0

    def _first_seq(self, number: int) -> int:
        """Return the number that the first entry of a segment has or will have."""
        source = self._source_of(number)
        try:
            head = source.first_line()
        finally:
            source.close()
        # A segment without its first mark is just being made: what comes is later than all else.
        mark = mark_of(head) or {}
        return int(mark["last_seq"]) + 1 if "last_seq" in mark else 1 << 62

    def _has_successor(self) -> bool:
        following = self._number + 1
        return os.path.exists(plain_path(self._folder, following)) or os.path.exists(
            packed_path(self._folder, following)
        )


class _Source:
    """The lines of one segment file, up to the last mark that is complete."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._unpack = zlib.decompressobj(31) if path.endswith(".gz") else None
        self._offset = 0
        self._rest = b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def first_line(self) -> bytes:
        data = self._more()
        return data[: data.find(b"\n") + 1]

    def batches(self) -> list[bytes] | None:
        """Return the lines of the next complete batches; None at the end of what is there."""
        held = self._rest
        while True:
            more = self._more()
            held += more
            last_mark = held.rfind(b"\n" + MARK)
            start = last_mark + 1 if last_mark >= 0 else (0 if held.startswith(MARK) else -1)
            end = held.find(b"\n", start) if start >= 0 else -1
            if start > 0 and end < 0:
                # The last mark is cut off; the one before it may be whole.
                last_mark = held.rfind(b"\n" + MARK, 0, last_mark)
                start = last_mark + 1 if last_mark >= 0 else (0 if held.startswith(MARK) else -1)
                end = held.find(b"\n", start) if start >= 0 else -1
            if end >= 0:
                self._keep(held[end + 1 :])
                return held[: end + 1].splitlines(keepends=True)
            if not more:
                self._keep(held)
                return None

    def _keep(self, rest: bytes) -> None:
        """Remember an unfinished batch; in a plain file it is read again, as it may be cut away."""
        if self._unpack is None:
            self._offset -= len(rest)
            self._rest = b""
        else:
            self._rest = rest

    def _more(self) -> bytes:
        data = os.pread(self._fd, READ_BYTES, self._offset)
        self._offset += len(data)
        if self._unpack is None or not data:
            return data
        unpacked = unpack(self._unpack, data)
        return unpacked or (b"" if unpacked is None else self._more())
