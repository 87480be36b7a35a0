"""Who keeps a run in a store on a network disk, where the locks of SQLite may not reach other machines.

A file beside the run's names its keeper, and is touched as long as the keeper lives.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

TOUCH_SECONDS = 20.0
STALE_SECONDS = 180.0
"""A keeper on another machine that has not touched its file for so long is gone."""


class KeeperLock:
    """One console's hold on one run's file.

    Attributes:
        holder: Who has it instead, such as ``login2 (pid 4711)``; empty if it is ours.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}-keeper")
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.holder = self._take()
        if not self.holder:
            self._thread = threading.Thread(target=self._touch, name="keeper", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Give it back; may be called several times."""
        if self._thread is not None and not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self._path.unlink(missing_ok=True)

    def _take(self) -> str:
        for _ in range(2):
            try:
                # One machine alone can make it, on NFS too.
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                holder = self._other()
                if holder:
                    return holder
                self._path.unlink(missing_ok=True)
                continue
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(f"{socket.gethostname()} {os.getpid()}")
            return ""
        return "another console"

    def _other(self) -> str:
        """Return who holds it; empty if that one is gone."""
        try:
            host, _, pid = self._path.read_text(encoding="utf-8").rpartition(" ")
            age = time.time() - self._path.stat().st_mtime
        except (FileNotFoundError, UnicodeDecodeError):
            return ""
        here = host == socket.gethostname() and pid.isdigit()
        gone = not _lives(int(pid)) if here else age > STALE_SECONDS
        return "" if gone else f"{host or 'another machine'} (pid {pid})"

    def _touch(self) -> None:
        while not self._closed.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
