"""The files of a journal: entries in order, and what is there up to the first damaged line.

Who reads entries passes over a line that is damaged, as over the rest of a compressed file that is:
the numbers of what follows show what is missing.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from typing import Any

from distconsole_agent.contract.limits import READ_BYTES
from distconsole_agent.journal.lines import MARK, is_end, mark_of, seq_of

Mark = dict[str, dict[str, Any]]
"""Group -> name -> position, such as ``{"logs": {"rank-0.out": 4096}}``."""


def plain_path(folder: str, number: int) -> str:
    """Return the path of a segment that is still written or not yet compressed."""
    return os.path.join(folder, f"{number:06d}.jsonl")


def packed_path(folder: str, number: int) -> str:
    """Return the path of a segment that is complete and compressed."""
    return plain_path(folder, number) + ".gz"


def segments(folder: str) -> list[int]:
    """Return the numbers of the segments that exist, in order."""
    numbers = set()
    for name in os.listdir(folder):
        number = name.split(".", 1)[0]
        if name in (f"{number}.jsonl", f"{number}.jsonl.gz") and number.isdigit():
            numbers.add(int(number))
    return sorted(numbers)


class State:
    """A journal up to the end of one of its segments, or to what is damaged in it.

    Attributes:
        number: That segment; 0 without any.
        size: Its bytes up to the last mark; what follows is no part of the journal.
        packed: Whether it is compressed, and so complete.
        begins_after: Number of the last entry of the segment before it.
        last_seq: Number of the last entry.
        ended: Whether that is ``end``.
        mark: How far the sources were read.
        journal_id: Who wrote last; empty for the first version.
        kept: Writer before it -> the last of its entries that this journal has.
        lost_bytes: How much there is behind a damaged line, that line included.
    """

    def __init__(self, number: int = 0, path: str = "") -> None:
        self.number = number
        self.size = self.begins_after = self.last_seq = self.lost_bytes = 0
        self.packed = path.endswith(".gz")
        self.ended = False
        self.mark: Mark = {}
        self.journal_id = ""
        self.kept: dict[str, int] = {}
        if path:
            self._replay(path)

    def _replay(self, path: str) -> None:
        offset, pending, ended = 0, 0, False
        for line in _lines(path):
            mark = mark_of(line)
            seq = seq_of(line) if mark is None else 0
            if offset == 0:
                sound = mark is not None and "last_seq" in mark
                self.begins_after = pending = mark["last_seq"] if mark and sound else 0
            else:
                sound = mark is not None or seq == pending + 1
            if not sound:
                # A line that its writer did not finish is no damage.
                if line.endswith(b"\n") or b"\0" in line:
                    self.lost_bytes = max(1, os.stat(path).st_size - self.size)
                return
            offset += len(line)
            if mark is None:
                pending, ended = seq, is_end(line)
                continue
            self._take(mark, pending, ended=ended)
            self.size, pending = offset, self.last_seq

    def _take(self, mark: dict[str, Any], pending: int, *, ended: bool) -> None:
        merge(self.mark, mark["mark"])
        self.last_seq = mark.get("last_seq", pending)
        self.ended = mark.get("ended", ended)
        journal = mark.get("journal")
        if isinstance(journal, dict):
            self.journal_id, self.kept = journal["id"], journal["kept"]


def read_state(folder: str) -> State:
    """Return what a journal's files hold, up to the first damage.

    A compressed segment was synced before the plain one was removed. Those after it may lack their
    ends each, so they are read in their order.

    Raises:
        OSError: when they cannot be read.
    """
    numbers = segments(folder)
    packed = [number for number in numbers if os.path.exists(packed_path(folder, number))]
    state, lost = _read_chain(folder, numbers, packed[-1] if packed else 0)
    while not state.size and packed:
        number = packed.pop()
        state = State(number, packed_path(folder, number))
        lost += state.lost_bytes
        if not state.size and os.path.exists(plain_path(folder, number)):
            state = State(number, plain_path(folder, number))
    state = state if state.size else State()
    state.lost_bytes = lost
    return state


def _read_chain(folder: str, numbers: list[int], packed: int) -> tuple[State, int]:
    """Return the last of the segments after ``packed`` that goes on from the one before, and what is lost."""
    state, lost, broken = State(), 0, False
    for number in numbers:
        if number <= packed:
            continue
        found = State(number, plain_path(folder, number))
        begins_there = found.begins_after == state.last_seq if state.size else True
        follows = number == (state.number or packed) + 1 and begins_there
        if broken or not (found.size and follows):
            broken = True
            lost += found.size + found.lost_bytes
        else:
            state, lost, broken = found, found.lost_bytes, found.lost_bytes > 0
    return state, lost


def merge(into: Mark, changed: Mark) -> None:
    """Put the ``changed`` positions into a mark."""
    for group, positions in changed.items():
        into.setdefault(group, {}).update(positions)


def unpack(packed: zlib._Decompress, data: bytes) -> bytes | None:
    """Return what compressed bytes hold; None where they are damaged."""
    try:
        return packed.decompress(data)
    except zlib.error:
        return None


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a segment; the last may have no end."""
    rest = b""
    unpacker = zlib.decompressobj(31) if path.endswith(".gz") else None
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            text = chunk if unpacker is None else unpack(unpacker, chunk)
            if text is None:
                break
            *lines, rest = (rest + text).split(b"\n")
            for line in lines:
                yield line + b"\n"
    if rest:
        yield rest


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
