"""A store on a disk that other machines can reach, beyond SQLite's locks and shared memory.

A file beside the run's names its keeper, and is touched as long as the keeper lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import threading
import time
from pathlib import Path

from distconsole.model.names import is_whole

NETWORK_FILESYSTEMS = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x01021997: "9p",
    0x65735546: "fuse",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0xAAD7AAEA: "panfs",
    0x6B414653: "kafs",
    0x73757245: "coda",
}
"""``f_type`` of ``statfs(2)``. FUSE is sshfs, or something local that loses nothing by it."""


def is_on_network(path: Path) -> bool:
    """Return True if other machines may have ``path`` open; False on a system that does not show it."""
    return filesystem_type(path) in NETWORK_FILESYSTEMS


def filesystem_type(path: Path) -> int:
    """Return ``f_type`` of the filesystem of ``path``; 0 on a system without it."""
    if platform.system() != "Linux":
        return 0
    found = (ctypes.c_long * 32)()  # ``struct statfs`` has 15 words; its first is f_type
    if ctypes.CDLL(None, use_errno=True).statfs(bytes(path), found):
        return 0
    return int(found[0]) & 0xFFFFFFFF


TOUCH_SECONDS = 20.0
STALE_SECONDS = 180.0
"""A keeper on another machine that has not touched its file for this long is gone."""


class KeeperLock:
    """One console's hold on one run's file; ``holder`` is another holder, as ``login2 (pid 4711)``, or empty."""

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
        """Return the holder; empty if that one is gone."""
        try:
            host, _, pid = self._path.read_text(encoding="utf-8").rpartition(" ")
            age = time.time() - self._path.stat().st_mtime
        except (FileNotFoundError, UnicodeDecodeError):
            return ""
        here = host == socket.gethostname() and is_whole(pid)
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
