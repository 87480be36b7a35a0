"""Copies the ranks' output from named pipes into their logs; without room on the disk it drops and counts.

A rank that wrote to a full disk itself would fail in ``print``. The reader is a thread of the shim, which
ends with the ranks: they outlive the agent's end or pause, and heartbeats are sent while a disk is slow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from typing import Callable

from distconsole_agent.system.loop import Loop
from distconsole_agent.system.room import disk_of

PIPES = "pipes"
STREAMS = ("out", "err")

READ_BYTES = 1 << 16
GATHER_SECONDS = 0.005
"""Short output is gathered for this long: a rank may write every word of a line by itself."""

LOOK_BYTES, LOOK_SECONDS = 1 << 20, 0.5
"""Bytes written after which the disk's room is checked, and the pace of checks while there is none."""

RESUME_BYTES = 1 << 18
"""Room that there must be again before a log is gone on with."""

OWN_BYTES = 1 << 24
"""Each log's own share of the logs' room, whatever others print; together half of it at most."""

TAIL_BYTES = 1 << 16
"""The end of dropped output is held, so that a rank's last words are in its log all the same."""

FLUSH_READS = 64
FLUSH_SECONDS = 2.0
"""How long the shim waits for a log on a disk that hangs."""

WATCH_SECONDS = 1.0
"""Pace of looking whether output is dropped."""


class RankOutput:
    """The pipes of a run's ranks into its ``logs``, of ``limit_bytes`` at most; the reader is a thread.

    Args:
        on_loss: Gets the logs of which something was dropped, and whether an attempt is over.
    """

    def __init__(
        self,
        loop: Loop,
        run_dir: str,
        limit_bytes: int,
        on_loss: Callable[[list[OutputStream], bool], None],
    ) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._on_loss = on_loss
        self._watched = True
        self._room = _Room(os.path.join(run_dir, "logs"), limit_bytes)
        self._streams: dict[str, OutputStream] = {}
        self._by_fd: dict[int, OutputStream] = {}
        self._closing = False
        self._poll: select.epoll | None = None
        self._wake = (-1, -1)
        self._thread: threading.Thread | None = None

    def pipe(self, name: str) -> str:
        """Return the path of the pipe whose content becomes ``logs/<name>``, or raise OSError."""
        path = os.path.join(self._run_dir, PIPES, name)
        if name not in self._streams:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            stream = OutputStream(
                name, path, os.path.join(self._run_dir, "logs", name), self._room
            )
            self._streams[name] = self._by_fd[stream.fd] = stream
            self._watch(stream.fd)
        return path

    def flush(self) -> None:
        for stream in self._streams.values():
            stream.flush()

    def dropped(self) -> list[OutputStream]:
        """Return the logs of which something was dropped so far."""
        return [stream for stream in self._streams.values() if stream.dropped_bytes]

    def watch_loss(self) -> None:
        """Tell once, in whichever attempt it is, when output begins to be dropped."""
        if self._watched:
            self.tell_loss(over=False)
            self._loop.call_later(WATCH_SECONDS, self.watch_loss)

    def end_watch(self) -> None:
        self._watched = False

    def tell_loss(self, *, over: bool) -> None:
        """Report the output that was dropped so far, if any."""
        if dropped := self.dropped():
            self._watched = False
            self._on_loss(dropped, over)

    def close(self) -> None:
        """End the reader and remove the pipes: opening one without a reader blocks for ever."""
        self.flush()
        if self._thread is not None:
            self._closing = True
            os.write(self._wake[1], b"x")
            self._thread.join(FLUSH_SECONDS)
            if not self._thread.is_alive() and self._poll is not None:
                self._poll.close()
                for fd in self._wake:
                    os.close(fd)
                self._thread = None
        for stream in self._streams.values():
            stream.finish()
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(self._run_dir, PIPES))

    def _watch(self, fd: int) -> None:
        if self._poll is None:
            self._poll = select.epoll()
            self._wake = os.pipe2(os.O_CLOEXEC)
            self._poll.register(self._wake[0], select.EPOLLIN)
            self._thread = threading.Thread(target=self._read, name="output", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                raise OSError(errno.EAGAIN, str(error)) from None
        self._poll.register(fd, select.EPOLLIN)

    def _read(self) -> None:
        assert self._poll is not None
        while not self._closing:
            self._read_once(self._poll)

    def _read_once(self, poll: select.epoll) -> None:
        # The one guard of this thread: without a reader the ranks would wait for ever.
        try:
            ready = [self._by_fd[fd] for fd, _events in poll.poll() if fd in self._by_fd]
            if sum(stream.take() for stream in ready) < READ_BYTES // 4:
                time.sleep(GATHER_SECONDS)
        except Exception:  # noqa: BLE001
            time.sleep(LOOK_SECONDS / 10)


class _Room:
    """How much more the logs may take; shared by the streams of a run."""

    def __init__(self, logs: str, limit_bytes: int) -> None:
        self.why = ""
        self._logs = logs
        self._limit = limit_bytes
        self._left = self._free = self._own = 0
        self._look_at = 0.0

    def take(self, log: int, size: int, at_least: int) -> bool:
        needed = max(size, at_least)
        if self._left < needed:
            self._look(size)
        if self._left >= needed:
            self._left -= size
        elif self._free < needed or os.fstat(log).st_size + needed > self._own:
            return False
        self._free -= size
        return True

    def fail(self, error: OSError) -> None:
        """Try nothing more for a while: a write failed."""
        self.why = f"{self._logs} cannot be written: {error.strerror}"
        self._left = self._free = 0
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _look(self, size: int) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        try:
            disk = disk_of(self._logs)
            with os.scandir(self._logs) as entries:
                used = [entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries]
        except OSError as error:
            self.fail(error)
            return
        self._own = min(OWN_BYTES, self._limit // (2 * max(1, len(used))))
        free = disk.free - disk.kept_free
        below = self._limit - sum(max(each, self._own) for each in used)
        self._free = max(0, min(free, LOOK_BYTES))
        self._left = max(0, min(self._free, below))
        if self._left < max(size, RESUME_BYTES):
            self._look_at = now + LOOK_SECONDS
            self.why = (
                f"the disk of {self._logs} is full ({disk.free // 1024} KiB free)"
                if free < below
                else f"the run's logs on this node have their limit, {self._limit // 1024} KiB"
            )


class OutputStream:
    """One pipe and its log; the thread that copies holds the lock."""

    def __init__(self, name: str, pipe: str, log: str, room: _Room) -> None:
        self.name = name
        self.dropped_bytes = self.dropped_lines = 0
        self._pipe = pipe
        self.room = room
        # Open for writing, too: so it is never at its end, and no rank waits for a reader.
        self.fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        self._log = os.open(log, flags, 0o600)
        self._lock = threading.Lock()
        self._gap = _Gap()
        self._in_line = False

    def take(self) -> int:
        """Carry on up to ``READ_BYTES`` from the pipe; return their number."""
        with self._lock:
            return self._take()

    def flush(self) -> None:
        """Carry on the rest of the pipe, and the end of dropped output."""
        if not self._lock.acquire(timeout=FLUSH_SECONDS):
            return
        try:
            for _ in range(FLUSH_READS):
                if not self._take():
                    break
            if self._gap.bytes:
                self._end_gap(at_least=0)
        finally:
            self._lock.release()

    def finish(self) -> None:
        """Remove the pipe and close the descriptors, unless a thread is stuck with them."""
        with contextlib.suppress(OSError):
            os.unlink(self._pipe)
        if self._lock.acquire(blocking=False):
            os.close(self.fd)
            os.close(self._log)

    def _take(self) -> int:
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if self._gap.bytes:
            self._drop(data)
            self._end_gap(at_least=RESUME_BYTES)
        else:
            written = self._append(data) if self.room.take(self._log, len(data), 0) else 0
            if written < len(data):
                self._drop(data[written:])
        return len(data)

    def _append(self, data: bytes) -> int:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._log, data[written:])
        except OSError as error:
            self.room.fail(error)
        if written:
            self._in_line = data[written - 1] != ord("\n")
        return written

    def _drop(self, data: bytes) -> None:
        self.dropped_bytes += len(data)
        self.dropped_lines += data.count(b"\n")
        self._gap.add(data)

    def _end_gap(self, at_least: int) -> None:
        """Go on with whole lines behind a note on the missing ones, if there is room for them."""
        tail = self._gap.tail()
        if not self.room.take(self._log, len(tail) + at_least, at_least) and at_least:
            return
        lines, size = self._gap.lines - tail.count(b"\n"), self._gap.bytes - len(tail)
        words = f"[distconsole: {lines} lines ({size} bytes) are missing here: {self.room.why}]\n"
        head = ("\n" * self._in_line + words).encode() if size else b""
        written = self._append(head + tail)
        if written:
            rest = tail[max(0, written - len(head)) :]
            self.dropped_bytes -= len(tail) - len(rest)
            self.dropped_lines -= tail.count(b"\n") - rest.count(b"\n")
            self._gap = _Gap()
            self._gap.add(rest)


class _Gap:
    """Output dropped since the log was last written, and its end."""

    def __init__(self) -> None:
        self.bytes = self.lines = 0
        self._held = b""

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        self.lines += data.count(b"\n")
        self._held = (self._held + data)[-TAIL_BYTES:]

    def tail(self) -> bytes:
        """Return the end of dropped output, from the beginning of a line."""
        whole = self.bytes == len(self._held)
        return self._held if whole else self._held[self._held.find(b"\n") + 1 :]
