"""Room on a disk: kept for a file ahead of its writer, looked up, or watched during a run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from distconsole_agent.system.loop import Loop

_KEEP_SIZE = 1

_LIBC = ctypes.CDLL(None, use_errno=True)
_FALLOCATE = getattr(_LIBC, "fallocate64", None) or getattr(_LIBC, "fallocate", None)

MOST_KEPT_FREE_BYTES = 64 * 1024 * 1024
"""A tenth of a disk is kept free, but not more than this."""

LOOK_SECONDS = 3.0

MOST_LOW_BYTES = 4 << 30
"""A disk is low below a tenth of it, but not above this."""

AGAIN_SHARE = 1.25
"""It has recovered with this much more: changes around the limit are reported once."""


class Disk(NamedTuple):
    """The disk of a folder, in bytes; ``free`` is available to this user."""

    free: int
    total: int

    @property
    def kept_free(self) -> int:
        """Bytes that the output of ranks leaves for vital files: states, verdicts, the journal."""
        return min(self.total // 10, MOST_KEPT_FREE_BYTES)


def disk_of(path: str) -> Disk:
    """Return the room on the disk of ``path``. Raises OSError when it cannot be asked."""
    found = os.statvfs(path)
    return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def keep_room(fd: int, upto: int) -> bool:
    """Have the disk keep room for the first ``upto`` bytes of a file, whose size stays as it is.

    Appends up to there cannot fail on a disk that others fill (fallocate(2)). Return False if
    the filesystem cannot reserve room, as NFS before 4.2 and some others.
    """
    start = os.fstat(fd).st_size
    if start >= upto or _FALLOCATE is None:
        return start >= upto
    place = ctypes.c_int64(start), ctypes.c_int64(upto - start)
    return bool(_FALLOCATE(fd, _KEEP_SIZE, *place) == 0)


class DiskWatch:
    """Watches a disk from ``begin`` to ``end``: a thread reads its room, the loop calls ``low``, once."""

    def __init__(
        self,
        loop: Loop,
        folder: str,
        low: Callable[[Disk], None],
        ask: Callable[[str], Disk] = disk_of,
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._tell = low
        self._ask_room = ask
        self._seen: Disk | None = None
        self._low = False
        self._over = threading.Event()

    def begin(self) -> None:
        """Start watching; without a thread for it, watch nothing."""
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._ask, name="disk", daemon=True).start()
            self._look()

    def end(self) -> None:
        self._over.set()

    def _ask(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                self._seen = self._ask_room(self._folder)
            self._over.wait(LOOK_SECONDS)

    def _look(self) -> None:
        if self._over.is_set():
            return
        disk = self._seen
        if disk is not None:
            limit = min(disk.total // 10, MOST_LOW_BYTES)
            if not self._low and disk.free < limit:
                self._low = True
                self._tell(disk)
            elif disk.free >= limit * AGAIN_SHARE:
                self._low = False
        self._loop.call_later(LOOK_SECONDS, self._look)
