"""A run's journal: entries with gapless numbers and how far each source was read; it reads no source.

A batch of entries and one mark line go to the file with a single ``write``. The mark says how far
each source had been read when the batch was made, so a journal that is cut back to its last mark
agrees with its marks, wherever its writer died. Marks hold what changed; the first line of each
segment holds everything. A segment that is full is compressed and stays readable.

Reference: the cut-to-last-mark recovery is that of any write-ahead log (Mohan et al., ARIES, 1992).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from distconsole_agent.limits import READ_BYTES, SEGMENT_BYTES

MARK = b'{"mark":'
_SEQ = b'{"seq":'

_ENCODER = json.JSONEncoder(separators=(",", ":"))

Mark = dict[str, dict[str, Any]]
"""Group -> name -> position, such as ``{"logs": {"rank-0.out": 4096}}``."""


class JournalError(Exception):
    """A journal that cannot be read: damaged by something other than a crash of its writer."""


class Journal:
    """The journal in one folder: one writer over all processes, any number of readers.

    Attributes:
        last_seq: Number of the last entry that is safely in the file; 0 when there is none.
        ended: Whether the last entry is ``end``.
        writable: Whether this object is the writer.
        mark: How far the sources were read, merged over all marks.
        trouble: Why nothing can be written for now; empty while it can.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.last_seq = 0
        self.ended = False
        self.writable = False
        self.mark: Mark = {}
        self.trouble = ""
        self._news = threading.Condition()
        self._closed = False
        self._lock_fd = -1
        self._fd = -1
        self._size = 0
        self._number = 0
        self._cursor: Reader | None = None

    def open_writer(self) -> bool:
        """Become the writer and cut the journal to its last mark; False if another process is.

        Raises:
            OSError: when the folder cannot be used.
            JournalError: when the journal is damaged.
        """
        if self.writable:
            return True
        if self._lock_fd < 0:
            self._lock_fd = os.open(
                os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._recover()
        self.writable = True
        self._publish()
        return True

    def append(self, entries: list[dict[str, Any]], changed: Mark) -> None:
        """Write ``entries``, numbered on from the last, and ``changed`` positions as one batch.

        Raises:
            OSError: when it could not be written; the journal is then as before, and so are
                ``last_seq`` and ``mark``.
        """
        lines = []
        for seq, entry in enumerate(entries, self.last_seq + 1):
            lines.append(_dump({"seq": seq, **entry}))
        lines.append(_dump({"mark": changed}))
        if self._fd < 0 or self._size >= SEGMENT_BYTES:
            self._next_segment()
        self._write(b"".join(lines))
        _merge(self.mark, changed)
        self.last_seq += len(entries)
        self.ended = self.ended or bool(entries and entries[-1].get("kind") == "end")
        self._publish()

    def refresh(self) -> None:
        """Learn what another process has written; for a journal that is not ours to write."""
        if self.writable:
            return
        if self._cursor is None:
            self._cursor = Reader(self, self.last_seq)
        before = self.last_seq
        for line in self._cursor.read_all():
            self.last_seq = seq_of(line)
            self.ended = b'"kind":"end"' in line[:120]
        if self.last_seq != before:
            self._publish()

    def wait(self, after: int, given_up: Callable[[], bool], told: str = "") -> bool:
        """Wait until there is an entry after ``after``, or ``trouble`` is not what was ``told``.

        Returns:
            False once it closed or was ``given_up``.
        """

        def has_news() -> bool:
            return self.last_seq > after or self.trouble != told

        with self._news:
            self._news.wait_for(lambda: has_news() or self._closed or given_up())
            return has_news()

    def say_trouble(self, why: str) -> None:
        """Let those who wait know why nothing can be written, or, if empty, that it can again."""
        if why != self.trouble:
            self.trouble = why
            self._publish()

    def wake(self) -> None:
        """Let everyone who waits ask again whether they have given up."""
        self._publish()

    def close(self) -> None:
        """Stop writing, wake everyone who waits, and let another process write."""
        with self._news:
            self._closed = True
            self.writable = False
            self._news.notify_all()
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1
        if self._cursor is not None:
            self._cursor.close()

    def segments(self) -> list[int]:
        """Return the numbers of the segments that exist, in order."""
        numbers = set()
        for name in os.listdir(self.folder):
            number = name.split(".", 1)[0]
            if name in (f"{number}.jsonl", f"{number}.jsonl.gz") and number.isdigit():
                numbers.add(int(number))
        return sorted(numbers)

    def plain(self, number: int) -> str:
        """Return the path of a segment that is still written or not yet compressed."""
        return os.path.join(self.folder, f"{number:06d}.jsonl")

    def compressed(self, number: int) -> str:
        """Return the path of a segment that is complete and compressed."""
        return self.plain(number) + ".gz"

    def _publish(self) -> None:
        with self._news:
            self._news.notify_all()

    def _recover(self) -> None:
        """Find the last mark, cut what follows it, and take over from there."""
        for number in reversed(self.segments()):
            path = self.plain(number)
            if not os.path.exists(path):
                raise JournalError(f"{path} is missing and a later segment has no mark")
            size = self._replay(path)
            if size:
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                os.ftruncate(self._fd, size)
                self._size, self._number = size, number
                break
            # Its writer died before the first mark: the segment before it is the last. The file is
            # taken again for the next segment, as a reader may have opened it already.
        for number in self.segments():
            if number < self._number and os.path.exists(self.plain(number)):
                self._compress(number)

    def _replay(self, path: str) -> int:
        """Take over the marks of one segment; return the size up to its last one, 0 without any."""
        committed = offset = pending = 0
        ended = False
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                if not line.startswith(MARK):
                    pending = seq_of(line)
                    ended = b'"kind":"end"' in line[:120]
                    continue
                mark = json.loads(line)
                _merge(self.mark, mark["mark"])
                self.last_seq = mark.get("last_seq", pending or self.last_seq)
                self.ended = mark.get("ended", ended if pending else self.ended)
                committed, pending, ended = offset, 0, False
        return committed

    def _next_segment(self) -> None:
        """Begin a segment with everything that its marks would have to repeat."""
        full, size, finished = self._fd, self._size, self._number
        path = self.plain(finished + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._fd, self._size = os.open(path, flags, 0o600), 0
        first = {"mark": self.mark, "last_seq": self.last_seq, "ended": self.ended}
        try:
            self._write(_dump(first))
        except OSError:
            os.close(self._fd)
            self._fd, self._size = full, size
            raise
        self._number = finished + 1
        if full >= 0:
            os.close(full)
            self._compress(finished)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            # A disk that is almost full takes a part; the next write says why it took no more.
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _compress(self, number: int) -> None:
        """Replace a segment by its compressed form; one that cannot be stays as it is."""
        plain, aside = self.plain(number), self.compressed(number) + ".new"
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        try:
            with open(plain, "rb") as source, open(aside, "wb") as sink:
                while chunk := source.read(READ_BYTES):
                    sink.write(packer.compress(chunk))
                sink.write(packer.flush())
            os.rename(aside, self.compressed(number))
            os.unlink(plain)
        except OSError:
            if os.path.exists(aside):
                os.unlink(aside)


class Reader:
    """Reads entries after a number, in order, batch by batch; holds one descriptor."""

    def __init__(self, journal: Journal, after: int) -> None:
        self._journal = journal
        self._last = after
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
            fresh = [line for line in lines if seq_of(line) > self._last]
            if fresh:
                self._last = seq_of(fresh[-1])
                return fresh

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
        # The plain file may become the compressed one between two looks, never the other way.
        for path in (self._journal.plain(number), self._journal.compressed(number)):
            with contextlib.suppress(FileNotFoundError):
                return _Source(path)
        raise JournalError(f"segment {number} of {self._journal.folder} is missing")

    def _find(self) -> int:
        """Return the segment that holds the entry after ``last``; 0 when there is no segment."""
        numbers = self._journal.segments()
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
        return int(json.loads(head)["last_seq"]) + 1 if head else 1 << 62

    def _has_successor(self) -> bool:
        following = self._number + 1
        return os.path.exists(self._journal.plain(following)) or os.path.exists(
            self._journal.compressed(following)
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
        """Return the entries of the next complete batches; None at the end of what is there."""
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
                lines = held[: end + 1].splitlines(keepends=True)
                return [line for line in lines if not line.startswith(MARK)]
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
        unpacked = self._unpack.decompress(data)
        return unpacked or self._more()


def seq_of(line: bytes) -> int:
    """Return the number of an entry line."""
    return int(line[len(_SEQ) : line.index(b",", len(_SEQ))])


def _dump(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("ascii") + b"\n"


def _merge(into: Mark, changed: Mark) -> None:
    for group, positions in changed.items():
        into.setdefault(group, {}).update(positions)
