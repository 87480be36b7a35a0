"""A list whose older part lies on the disk, so that it may grow as long as the disk has room."""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

BLOCK = 256
"""Items that are written, and read back, together."""

CACHED_BLOCKS = 48
"""Blocks read back that are held: several screens, and what a search looks at."""


class SpilledList(Generic[T]):
    """Appended to at its end; the last ``tail`` items are in memory, and only those may be changed.

    The file has no name, so that nothing is left when the process ends. If the disk refuses, the
    oldest items are dropped and ``first`` says which is the oldest that is left. Any thread may use
    it, and who reads does not wait for who appends.

    Args:
        encode, decode: Items to bytes and back.
        tail: Items held in memory, and at most ``BLOCK`` more.
        weight: How heavy an item is; the items held weigh at most ``max_weight``, or are ``BLOCK``.
        folder: Where the file is; None takes the system's folder for temporary files.
    """

    def __init__(
        self,
        encode: Callable[[list[T]], bytes],
        decode: Callable[[bytes], list[T]],
        *,
        tail: int,
        weight: Callable[[T], int] = lambda _: 1,
        max_weight: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self.failure = ""
        """Why the disk refused."""
        self.first = 0
        """The oldest item that can be read."""
        self._kept: tuple[int, list[T]] = (0, [])
        """How many items were spilled, and those after them: one value, so that both are of one moment."""
        self._tail = tail
        self._weight = weight
        self._max_weight = max_weight if max_weight is not None else tail + BLOCK
        self._held_weight = 0
        self._ends = array("Q")
        """Where each block ends in the file."""
        self._blocks: OrderedDict[int, list[T]] = OrderedDict()
        self._appending = threading.RLock()
        self._reading = threading.RLock()
        self._folder = folder
        self._fd = -1
        self._encode = encode
        self._decode = decode

    def __len__(self) -> int:
        spilled, tail = self._kept
        return spilled + len(tail)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the disk's space back; may be called several times. Older items are gone then."""
        with self._appending, self._reading:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self.first = self._kept[0]
                self._blocks.clear()

    def append(self, item: T) -> None:
        """Add ``item`` at the end."""
        with self._appending:
            _, tail = self._kept
            tail.append(item)
            self._held_weight += self._weight(item)
            held = len(tail)
            if held >= self._tail + BLOCK or (
                self._held_weight > self._max_weight and held > BLOCK
            ):
                self._spill()

    def get(self, index: int) -> T:
        """Return item ``index``.

        Raises:
            IndexError: if it is not there (any more).
        """
        spilled, tail = self._kept
        if index >= spilled:
            return tail[index - spilled]
        with self._reading:
            if index < self.first:
                raise IndexError(index)
            return self._block(index // BLOCK)[index % BLOCK]

    def slice(self, start: int, stop: int) -> list[T]:
        """Return the items from ``start`` to before ``stop`` that are there.

        Of what lies on the disk it is at most up to the end of a block: ask again for the rest.
        """
        spilled, tail = self._kept
        start = max(start, self.first)
        if start >= spilled:
            return tail[start - spilled : max(0, stop - spilled)]
        with self._reading:
            if start < self.first:
                return self.slice(start, stop)
            base = start - start % BLOCK
            return self._block(start // BLOCK)[start - base : max(0, stop - base)]

    def _spill(self) -> None:
        """Put the oldest items that are held on the disk; until they are there, they are read from memory."""
        spilled, tail = self._kept
        block = tail[:BLOCK]
        self._held_weight -= sum(map(self._weight, block))
        if not self.failure:
            try:
                self._write(zlib.compress(self._encode(block), 1))
            except OSError as error:
                self.failure = error.strerror or str(error)
                with self._reading:
                    self._blocks.clear()
        if self.failure:
            self.first = spilled + BLOCK
        self._kept = (spilled + BLOCK, tail[BLOCK:])

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._fd = os.dup(file.fileno())
        at = self._ends[-1] if self._ends else 0
        end = at + len(data)
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, at)
            at, view = at + done, view[done:]
        self._ends.append(end)

    def _block(self, number: int) -> list[T]:
        found = self._blocks.get(number)
        if found is not None:
            self._blocks.move_to_end(number)
            return found
        start = self._ends[number - 1] if number else 0
        data = os.pread(self._fd, self._ends[number] - start, start)
        items = self._decode(zlib.decompress(data))
        self._blocks[number] = items
        if len(self._blocks) > CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return items
