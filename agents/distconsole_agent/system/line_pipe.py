"""A named pipe into which other processes of this user write lines, heard in a loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable

from distconsole_agent.system.loop import READ

if TYPE_CHECKING:
    from distconsole_agent.system.loop import Loop

READ_BYTES = 1 << 16
MAX_LINE_BYTES = 512
"""A longer line loses its beginning."""


class LinePipe:
    """Calls ``on_line`` with each line, from ``open`` to ``close``."""

    def __init__(self, loop: Loop, on_line: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._on_line = on_line
        self._fd = -1
        self._unread = b""

    def open(self, path: str) -> None:
        """Make the pipe, unless it is open already; raises OSError."""
        if self._fd < 0:
            os.mkfifo(path, 0o600)
            # Open for writing, too: otherwise a read returns end of file whenever the last writer closes the pipe.
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._loop.watch(self._fd, READ, lambda _events: self.read())

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def read(self) -> None:
        while self._fd >= 0:
            try:
                chunk = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            *lines, rest = (self._unread + chunk).split(b"\n")
            self._unread = rest[-MAX_LINE_BYTES:]
            for line in lines:
                self._on_line(line)
