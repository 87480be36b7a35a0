"""Reads a journal's files: entries in order, and the state up to the first damaged line.

Reading entries skips damaged lines: gaps in the numbers show the missing ones.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from typing import Any

from distconsole_agent.contract.limits import READ_BYTES
from distconsole_agent.journal.lines import MARK, is_end, mark_of, seq_of
from distconsole_agent.node_folder.folders import sync_paths

DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
"""Exceptions from reading a damaged compressed file."""

Mark = dict[str, dict[str, Any]]
"""Group -> name -> position, such as ``{"logs": {"rank-0.out": 4096}}``."""


def plain_path(folder: str, number: int) -> str:
    """Return the path of a segment that is still written or not yet compressed."""
    return os.path.join(folder, f"{number:06d}.jsonl")


def gzip_path(folder: str, number: int) -> str:
    """Return the path of a segment that is complete and compressed."""
    return plain_path(folder, number) + ".gz"


def segments(folder: str) -> list[int]:
    numbers = set()
    for name in os.listdir(folder):
        number = name.split(".", 1)[0]
        if (
            name in (f"{number}.jsonl", f"{number}.jsonl.gz")
            and number.isascii()
            and number.isdigit()
        ):
            numbers.add(int(number))
    return sorted(numbers)


class JournalState:
    """A journal up to the end of one of its segments, or up to its first damage.

    Attributes:
        number: That segment; 0 without any.
        size: Its bytes up to the last mark; later ones are no part of the journal.
        packed: The segment is compressed, and so complete.
        begins_after: Number of the last entry of the segment before it.
        last_seq, ended, mark, journal_id: As those of ``Journal``.
        kept: Id of an earlier writer -> its last entry in this journal.
        lost_bytes: Bytes from the first damaged line on.
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
                sound = mark is not None and mark.last_seq is not None
                self.begins_after = pending = (mark.last_seq if mark else None) or 0
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
            merge(self.mark, mark.mark)
            self.last_seq = pending if mark.last_seq is None else mark.last_seq
            self.ended = ended if mark.ended is None else mark.ended
            if mark.journal is not None:
                self.journal_id, self.kept = mark.journal.id, dict(mark.journal.kept)
            self.size, pending = offset, self.last_seq


def read_state(folder: str) -> JournalState:
    """Return the state of a journal's files up to the first damage.

    A compressed segment is whole: it was synced before its plain file was removed. Each later one may
    lack its end, so they are read in order. Raises OSError when they cannot be read.
    """
    numbers = segments(folder)
    packed = [number for number in numbers if os.path.exists(gzip_path(folder, number))]
    state, lost = _read_chain(folder, numbers, packed[-1] if packed else 0)
    while not state.size and packed:
        number = packed.pop()
        state = JournalState(number, gzip_path(folder, number))
        lost += state.lost_bytes
        if not state.size and os.path.exists(plain_path(folder, number)):
            state = JournalState(number, plain_path(folder, number))
    state = state if state.size else JournalState()
    state.lost_bytes = lost
    return state


def _read_chain(folder: str, numbers: list[int], packed: int) -> tuple[JournalState, int]:
    """Return the last segment of the unbroken chain after ``packed``, and the bytes lost behind it."""
    state, lost, broken = JournalState(), 0, False
    for number in numbers:
        if number <= packed:
            continue
        found = JournalState(number, plain_path(folder, number))
        begins_there = found.begins_after == state.last_seq if state.size else True
        follows = number == (state.number or packed) + 1 and begins_there
        if broken or not (found.size and follows):
            broken = True
            lost += found.size + found.lost_bytes
        else:
            state, lost, broken = found, found.lost_bytes, found.lost_bytes > 0
    return state, lost


def merge(into: Mark, changed: Mapping[str, Mapping[str, object]]) -> None:
    for group, positions in changed.items():
        into.setdefault(group, {}).update(positions)


def _open(path: str) -> BufferedIOBase:
    return gzip.open(path) if path.endswith(".gz") else open(path, "rb")


def _lines(path: str) -> Iterator[bytes]:
    """Yield a segment's lines up to the first damage; the last may lack its end."""
    with _open(path) as file, contextlib.suppress(*DAMAGED):
        yield from file


def compress(plain: str, packed: str) -> None:
    """Replace ``plain`` by a compressed file, synced first; keep ``plain`` if the disk refuses."""
    aside = packed + ".new"
    try:
        # A packed file from before a power cut may be all that is left of the segment.
        if not _is_whole(packed):
            with open(plain, "rb") as source, gzip.open(aside, "wb", compresslevel=6) as sink:
                while chunk := source.read(READ_BYTES):
                    sink.write(chunk)
            sync_paths(aside)
            os.rename(aside, packed)
            sync_paths(os.path.dirname(packed))
        os.unlink(plain)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)


def _is_whole(packed: str) -> bool:
    try:
        with gzip.open(packed) as file:
            while file.read(READ_BYTES):
                continue
        return os.path.getsize(packed) > 0
    except (FileNotFoundError, *DAMAGED):
        return False


class JournalError(Exception):
    """A journal that cannot be read: a segment is missing."""


class Reader:
    """Reads entries after a number, in order, by batch, on one descriptor; ``journal_id``: the writer of the ``last``."""

    def __init__(self, folder: str, after: int) -> None:
        self._folder = folder
        self.last = after
        self.journal_id = ""
        self._number = 0
        self._source: _Source | None = None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def read(self) -> list[bytes]:
        """Return the next entries as lines, if any; raises OSError, or JournalError for a missing segment."""
        self._number = self._number or self._find()
        while self._number:
            if self._source is None:
                self._source = _Source(_open_any(self._folder, self._number))
            # Asked before reading: a segment that has a successor will not grow any more.
            successor = self._number + 1 in segments(self._folder)
            lines = self._source.batches()
            if lines is None:
                if not successor:
                    break
                self.close()
                self._number += 1
            elif fresh := self._fresh(lines):
                return fresh
        return []

    def read_all(self) -> Iterator[bytes]:
        while lines := self.read():
            yield from lines

    def _fresh(self, lines: list[bytes]) -> list[bytes]:
        found = []
        for line in lines:
            if line.startswith(MARK):
                # Of marks, only the writer's id matters here.
                if b'"journal":' in line and (mark := mark_of(line)) is not None:
                    self.journal_id = mark.journal.id if mark.journal else ""
            elif (seq := seq_of(line)) > self.last:
                self.last = seq
                found.append(line)
        return found

    def _find(self) -> int:
        """Return the segment that holds the entry after ``last``; 0 when there is no segment."""
        numbers = segments(self._folder)
        later = (number for number in reversed(numbers[1:]) if self._begins_before(number))
        return next(later, numbers[0] if numbers else 0)

    def _begins_before(self, number: int) -> bool:
        with _open_any(self._folder, number) as file, contextlib.suppress(*DAMAGED):
            mark = mark_of(file.readline())
            # A segment without its first mark is new: its entries are later than all others.
            last_seq = None if mark is None else mark.last_seq
            return last_seq is not None and last_seq <= self.last
        return False


def _open_any(folder: str, number: int) -> BufferedIOBase:
    # A compressed segment is complete; a plain one may be compressed between two tries.
    plain, packed = plain_path(folder, number), gzip_path(folder, number)
    for path in (packed, plain, packed):
        with contextlib.suppress(FileNotFoundError):
            return _open(path)
    raise JournalError(f"segment {number} of {folder} is missing")


class _Source:
    """The lines of one segment file, up to the last mark that is complete."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._offset = 0

    def close(self) -> None:
        self._file.close()

    def batches(self) -> list[bytes] | None:
        """Return the lines of the next complete batches; None at the end."""
        if isinstance(self._file, gzip.GzipFile):  # complete
            with contextlib.suppress(*DAMAGED):
                return self._file.readlines(READ_BYTES) or None
            return None
        held = b""
        while more := os.pread(self._file.fileno(), READ_BYTES, self._offset + len(held)):
            held += more
            end = _end_of_batches(held)
            if end:
                self._offset += end
                return held[:end].splitlines(keepends=True)
        return None  # an unfinished batch is read again: it may be cut away


def _end_of_batches(held: bytes) -> int:
    """Return the offset behind the last complete mark; 0 without one."""
    end = held.rfind(b"\n") + 1
    while end:
        start = held.rfind(b"\n", 0, end - 1) + 1
        if held.startswith(MARK, start):
            return end
        end = start
    return 0
