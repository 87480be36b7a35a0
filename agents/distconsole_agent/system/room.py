"""Room on a disk: kept for a file ahead of its writer, or looked up."""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

_KEEP_SIZE = 1

_LIBC = ctypes.CDLL(None, use_errno=True)
_FALLOCATE = getattr(_LIBC, "fallocate64", None) or getattr(_LIBC, "fallocate", None)

MOST_KEPT_FREE_BYTES = 64 * 1024 * 1024
"""A tenth of a disk is kept free, but not more than this."""


class Disk(NamedTuple):
    """The disk that a folder lies on, in bytes; ``free`` is what this user may still take."""

    free: int
    total: int

    @property
    def kept_free(self) -> int:
        """How much the output of ranks leaves for what must be written: states, verdicts, the journal."""
        return min(self.total // 10, MOST_KEPT_FREE_BYTES)


def disk_of(path: str) -> Disk:
    """Return the room on the disk of ``path``.

    Raises:
        OSError: when it cannot be asked.
    """
    found = os.statvfs(path)
    return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def keep_room(fd: int, upto: int) -> bool:
    """Have the disk keep room for the first ``upto`` bytes of a file, whose size stays as it is.

    What is appended there cannot fail on a disk that others fill (fallocate(2)). Return whether it
    could be done: NFS before 4.2 and some others know no such thing.
    """
    start = os.fstat(fd).st_size
    if start >= upto or _FALLOCATE is None:
        return start >= upto
    place = ctypes.c_int64(start), ctypes.c_int64(upto - start)
    return bool(_FALLOCATE(fd, _KEEP_SIZE, *place) == 0)
