"""A run's journal: entries with gapless numbers and how far each source was read.

A batch of entries and one mark line go to the file with a single ``write``. A journal that is cut
back to its last mark agrees with its marks, wherever its writer died, as any write-ahead log (Mohan
et al., ARIES, 1992). Marks hold changes; the first line of each segment holds everything.

When the power fails, the end of the files may be lost, or be zeros: a journal is cut at the first
line that is not as it was written. The numbers behind the cut are given again, to other entries. So
each writer signs with an identity of its own and notes how many entries of the writers before it
the journal still has. Entries on the run's outcome are synced at once, by a thread of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from distconsole_agent.contract.limits import SEGMENT_BYTES
from distconsole_agent.contract.protocol import Values
from distconsole_agent.journal.lines import dump, is_end, seq_of
from distconsole_agent.journal.reader import (
    Mark,
    Reader,
    compress,
    gzip_path,
    merge,
    plain_path,
    read_state,
    segments,
)
from distconsole_agent.node_folder.folders import sync_paths
from distconsole_agent.system.room import keep_room
from distconsole_agent.system.threads import BEGIN_SECONDS, begin_thread

SYNCED_KINDS = frozenset({"failure", "verdict", "restart", "attempt", "end"})
"""Entries that are on the disk soon after they are written, whatever happens to the power."""

MAX_KEPT = 64
"""Writers before this one that a journal knows by name: one a start of an agent."""

CLOSE_SECONDS = 2.0

KEPT_BYTES = 256 * 1024
"""Room that the disk keeps ahead of the last batch; half of it is for how the run ended."""


class Journal:
    """The journal in one folder: one writer over all processes, any number of readers.

    Attributes:
        last_seq: Number of the last entry that is safely in the file; 0 when there is none.
        ended: True once the last entry is ``end``.
        writable: Whether this object is the writer.
        mark: How far the sources were read, merged over all marks.
        journal_id: The last writer; empty for one of the first version.
        trouble: Why nothing can be written for now; empty while it can.
        lost_bytes: Bytes cut off behind a damaged line when this object became the writer.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.last_seq = 0
        self.ended = False
        self.writable = False
        self.mark: Mark = {}
        self.journal_id = ""
        self.trouble = ""
        self.lost_bytes = 0
        self._kept: dict[str, int] = {}
        self._own_id = ""
        self._news = threading.Condition()
        self._upkeep = Upkeep(folder)
        self._closed = False
        self._lock_fd = -1
        self._fd = -1
        self._size = 0
        self._room = 0
        self._number = 0
        self._named = 0
        """The segment whose name is synced."""
        self._cursor: Reader | None = None

    @property
    def sync_failure(self) -> str:
        """Why the last sync failed; empty while syncs succeed."""
        return self._upkeep.failure

    def open_writer(self) -> bool:
        """Become the writer and cut the journal to its last mark; False if another process is; raises OSError."""
        if self.writable:
            return True
        if self._lock_fd < 0:
            path = os.path.join(self.folder, "lock")
            self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._recover()
        self.writable = True
        self.wake()
        return True

    def append(self, entries: list[Values], changed: Mark, *, last: bool = False) -> None:
        """Write ``entries``, numbered on from the last, and ``changed`` positions as one batch.

        Args:
            last: They hold the run's outcome: they may use the room that is kept for that.

        Raises:
            OSError: when it could not be written; the journal is then as before, and so are
                ``last_seq`` and ``mark``.
        """
        if self._fd < 0 or (self._size >= SEGMENT_BYTES and not last):
            self._next_segment()
        begins = self.journal_id != self._own_id
        lines = [self._signature({})] if begins else []
        for seq, entry in enumerate(entries, self.last_seq + 1):
            lines.append(dump({"seq": seq, **entry}))
        lines.append(dump({"mark": changed}))
        self._write(b"".join(lines), last=last)
        self._sign()
        merge(self.mark, changed)
        self.last_seq += len(entries)
        self.ended = self.ended or bool(entries and entries[-1].get("kind") == "end")
        if begins or not SYNCED_KINDS.isdisjoint(entry["kind"] for entry in entries):
            paths = [plain_path(self.folder, self._number)]
            if self._named != self._number:  # a new segment: the folder, too
                paths.append(self.folder)
                self._named = self._number
            self._upkeep.add(" ".join(paths), partial(sync_paths, *paths))
        self.wake()

    def refresh(self) -> None:
        """Read the entries of another process; for a journal that is not ours to write."""
        if self.writable:
            return
        if self._cursor is None:
            self._cursor = Reader(self.folder, self.last_seq)
        before = self.last_seq
        for line in self._cursor.read_all():
            self.last_seq = seq_of(line)
            self.ended = is_end(line)
        self.journal_id = self._cursor.journal_id or self.journal_id
        if self.last_seq != before:
            self.wake()

    def read_signature(self) -> None:
        """Read the writer's id and the last entry's number from another process's journal; raises OSError."""
        if not self.writable:
            try:
                state = read_state(self.folder)
            except FileNotFoundError:  # a segment was compressed meanwhile
                state = read_state(self.folder)
            self.journal_id, self._kept = state.journal_id, state.kept
            self.last_seq = max(self.last_seq, state.last_seq)

    def still_has(self, journal_id: str, after: int) -> int:
        """Return how many of the first ``after`` entries that ``journal_id`` wrote are here still."""
        kept = self._kept.get(journal_id, 0)
        return min(after, self.last_seq if journal_id == self.journal_id else kept)

    def wait(self, after: int, given_up: Callable[[], bool], told: str = "") -> bool:
        """Wait for an entry after ``after`` or other ``trouble``; False once closed or ``given_up``."""

        def has_news() -> bool:
            return self.last_seq > after or self.trouble != told

        with self._news:
            self._news.wait_for(lambda: has_news() or self._closed or given_up())
            return has_news()

    def say_trouble(self, why: str) -> None:
        """Wake the waiting readers with the reason why nothing can be written, or, if empty, that it can again."""
        if why != self.trouble:
            self.trouble = why
            self.wake()

    def wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def sync_with(self, paths: list[str], seconds: float) -> bool:
        """Sync the journal and ``paths``; return whether that succeeded within ``seconds``."""
        self._upkeep.add("logs", partial(sync_paths, *paths))
        return self._upkeep.wait(seconds) and not self.sync_failure

    def close(self) -> None:
        """Stop writing, wake all waiting readers, and let another process write."""
        with self._news:
            self._closed = True
            self.writable = False
            self._news.notify_all()
        self._upkeep.close(CLOSE_SECONDS)
        if self._room:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)  # frees the unused room
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1
        if self._cursor is not None:
            self._cursor.close()

    def _recover(self) -> None:
        """Take over from the last mark, and cut the rest."""
        state = read_state(self.folder)
        self.last_seq, self.ended, self.mark = state.last_seq, state.ended, state.mark
        self.journal_id, self._kept = state.journal_id, state.kept
        self.lost_bytes = state.lost_bytes
        self._number, self._own_id = state.number, os.urandom(8).hex()
        # A reader would go on in the files behind the last sound segment.
        gone = [plain_path(self.folder, state.number)] if state.packed else []
        for number in segments(self.folder):
            if number > state.number:
                gone += [plain_path(self.folder, number), gzip_path(self.folder, number)]
        for path in gone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        if state.number and not state.packed:
            path = plain_path(self.folder, state.number)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(self._fd, state.size)
            self._size = state.size
        for number in segments(self.folder):
            if number < state.number and os.path.exists(plain_path(self.folder, number)):
                self._compress_later(number)

    def _next_segment(self) -> None:
        """Begin a segment with everything that its marks would have to repeat."""
        full, size, finished = self._fd, self._size, self._number
        path = plain_path(self.folder, finished + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        room, self._room = self._room, 0
        self._fd, self._size = os.open(path, flags, 0o600), 0
        try:
            self._write(self._signature(self.mark))
        except OSError:
            os.close(self._fd)
            self._fd, self._size, self._room = full, size, room
            raise
        self._sign()
        self._number = finished + 1
        if full >= 0:
            os.close(full)
            self._compress_later(finished)

    def _signature(self, mark: Mark) -> bytes:
        journal = {"id": self._own_id, "kept": self._kept_by_now()}
        return dump(
            {"mark": mark, "last_seq": self.last_seq, "ended": self.ended, "journal": journal}
        )

    def _kept_by_now(self) -> dict[str, int]:
        if self.journal_id == self._own_id:
            return self._kept
        kept = {writer: min(last, self.last_seq) for writer, last in self._kept.items()}
        kept[self.journal_id] = self.last_seq
        return dict(list(kept.items())[-MAX_KEPT:])

    def _sign(self) -> None:
        self._kept, self.journal_id = self._kept_by_now(), self._own_id

    def _write(self, data: bytes, *, last: bool = False) -> None:
        self._take_room(self._size + len(data), last=last)
        rest = memoryview(data)
        try:
            # A disk that is almost full takes a part; the next write raises the reason.
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            self._room = 0
            raise
        self._size += len(data)

    def _take_room(self, upto: int, *, last: bool) -> None:
        """Keep room on the disk ahead of the last batch; its second half is for the last batch.

        Raises OSError, before anything is written, if a batch up to ``upto`` does not fit.
        """
        if upto + KEPT_BYTES // 2 <= self._room:
            return
        if keep_room(self._fd, upto + KEPT_BYTES):
            self._room = upto + KEPT_BYTES
        elif self._room and upto > self._room - (0 if last else KEPT_BYTES // 2):
            path = plain_path(self.folder, self._number)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _compress_later(self, number: int) -> None:
        """Replace a segment by its compressed form; one that cannot be stays as it is."""
        job = partial(compress, plain_path(self.folder, number), gzip_path(self.folder, number))
        self._upkeep.add(f"compress {number}", job)


THREAD_SECONDS = 0.2
"""Seconds between attempts of ``Upkeep.wait`` to start a thread when the system has none left."""


class Upkeep:
    """Syncs and compresses a journal's files in another thread: a slow disk delays no entry.

    One thread works while there is something to do. A job that waits already is not added again.

    Attributes:
        failure: Why the disk refused; empty while it does not.
    """

    def __init__(self, folder: str) -> None:
        self.failure = ""
        self._folder = folder
        self._changed = threading.Condition()
        self._jobs: dict[str, Callable[[], None]] = {}
        self._turn: object = None  # of the thread that works
        self._begun = 0.0
        self._works = False

    def add(self, name: str, job: Callable[[], None]) -> None:
        with self._changed:
            self._jobs.setdefault(name, job)
            self._begin()

    def wait(self, seconds: float) -> bool:
        """Wait until all jobs have run; return False after ``seconds``."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._jobs or self._turn is not None:
                self._begin()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left if self._works else min(left, THREAD_SECONDS))
            return True

    def _begin(self) -> None:
        """Start a thread for the jobs; if none can be started, or it never ran, the next call tries again."""
        never_ran = not self._works and time.monotonic() > self._begun + BEGIN_SECONDS
        if self._jobs and (self._turn is None or never_ran):
            self._turn = None
            with contextlib.suppress(RuntimeError, MemoryError):
                turn = object()
                begin_thread(self._work, turn)
                self._turn, self._begun = turn, time.monotonic()

    def close(self, seconds: float) -> None:
        """Forget jobs that have not begun, and wait for running ones; not longer for a disk that hangs."""
        with self._changed:
            self._jobs.clear()
            self._changed.wait_for(lambda: not self._works, seconds)

    def _work(self, turn: object) -> None:
        with self._changed:
            if self._turn is not turn:
                return
            self._works = True
        # Short of memory for a moment, perhaps: ``wait`` tries it again.
        with contextlib.suppress(MemoryError):
            try:
                while self._do_next():
                    pass
            except BaseException:
                self._end_turn()
                raise

    def _do_next(self) -> bool:
        """Do a job; False, and the thread's turn is over, if there is none."""
        with self._changed:
            if not self._jobs:
                self._end_turn()
                return False
            name = next(iter(self._jobs))
            job = self._jobs.pop(name)
        try:
            job()
        except OSError as error:
            self.failure = f"{error.strerror}: {error.filename or self._folder}"
        except MemoryError:
            self._jobs.setdefault(name, job)
            raise
        return True

    def _end_turn(self) -> None:
        with self._changed:
            self._turn, self._works = None, False
            self._changed.notify_all()
