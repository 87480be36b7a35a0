"""A list with its older part on the disk, so that it may grow as long as the disk has room."""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from array import array
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

BLOCK = 256
"""Items that are written, and read back, together."""

CACHED_BLOCKS = 48
"""Number of blocks read back that are held: several screens, and a search."""


class BlobFile:
    """Bytes by number in a file in ``folder`` (None: the system's) that has no name and so leaves nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._fd = -1
        self._ends = array("Q", [0])

    @property
    def size(self) -> int:
        return self._ends[-1]

    def append(self, data: bytes) -> None:
        """Write ``data`` behind the rest; an OSError leaves the file as it was."""
        if self._fd < 0:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._fd = os.dup(file.fileno())
        view, end = memoryview(data), self.size
        while view:
            written = os.pwrite(self._fd, view, end)
            end, view = end + written, view[written:]
        self._ends.append(end)

    def read(self, number: int) -> bytes:
        start, end = self._ends[number : number + 2]
        return os.pread(self._fd, end - start, start)

    def close(self) -> None:
        """Give the disk's space back; may be called several times."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SpilledList(Generic[T]):
    """Appended to at its end by one thread at a time; only the items in memory may be changed.

    If the disk refuses, the oldest items are dropped, and ``first`` is the oldest one left. Any
    thread may read, and does not wait for the appending one.

    Args:
        encode, decode: Items to bytes and back.
        max_weight: Maximum weight of the items in memory, or there are ``BLOCK`` of them.
        weight: How heavy an item is.
        folder: As for ``BlobFile``.
    """

    def __init__(
        self,
        encode: Callable[[list[T]], bytes],
        decode: Callable[[bytes], list[T]],
        *,
        max_weight: int,
        weight: Callable[[T], int] = lambda _: 1,
        folder: Path | None = None,
    ) -> None:
        self.failure = ""
        """Why the disk refused."""
        self.first = 0
        self.folder = folder
        self._kept: tuple[int, list[T]] = (0, [])
        """How many items were spilled, and those after them: one value, so that both are of one moment."""
        self._weight, self._max_weight, self._held_weight = weight, max_weight, 0
        self._encode = encode
        self._reading = threading.RLock()
        self._file = file = BlobFile(folder)

        @lru_cache(CACHED_BLOCKS)
        def read_block(number: int) -> list[T]:
            return decode(zlib.decompress(file.read(number)))

        self._read_block = read_block

    def __len__(self) -> int:
        spilled, tail = self._kept
        return spilled + len(tail)

    def __del__(self) -> None:
        self._file.close()

    def close(self) -> None:
        """Give the disk's space back; may be called several times. Older items are gone then."""
        with self._reading:
            self._file.close()
            self._drop(self._kept[0])

    def append(self, item: T) -> None:
        tail = self._kept[1]
        tail.append(item)
        self._held_weight += self._weight(item)
        if self._held_weight > self._max_weight and len(tail) > BLOCK:
            self._spill()

    def get(self, index: int) -> T | None:
        """Return item ``index``; None if it is not there (any more)."""
        found = self.slice(index, index + 1) if index >= self.first else []
        return found[0] if found else None

    def slice(self, start: int, stop: int) -> list[T]:
        """Return the items from ``start`` to before ``stop`` that are there; of those on the disk at most to the end of a block."""
        spilled, tail = self._kept
        if start >= spilled:
            return tail[start - spilled : max(0, stop - spilled)]
        with self._reading:
            if start < self.first:
                return self.slice(self.first, stop)
            base = start - start % BLOCK
            return self._read_block(start // BLOCK)[start - base : max(0, stop - base)]

    def _spill(self) -> None:
        """Put the oldest items on the disk; until they are there, they are read from memory."""
        spilled, tail = self._kept
        block = tail[:BLOCK]
        self._held_weight -= sum(map(self._weight, block))
        if not self.failure:
            try:
                self._file.append(zlib.compress(self._encode(block), 1))
            except OSError as error:
                self.failure = error.strerror or str(error)
        if self.failure:
            self._drop(spilled + BLOCK)
        self._kept = (spilled + BLOCK, tail[BLOCK:])

    def _drop(self, before: int) -> None:
        with self._reading:
            self.first = before
            self._read_block.cache_clear()
