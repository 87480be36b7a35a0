"""Reads growing files: lines of the shim, and where slices of a log begin and end."""

from __future__ import annotations

import json
import os
from math import inf
from typing import Any, NamedTuple

from distconsole_agent.contract.limits import (
    LOG_LINE_COST,
    LOG_SLICE_BYTES,
    LOG_SLICES_PER_TICK,
    MAX_LINE_OF_SHIM,
    PARTIAL_LINE_SECONDS,
    READ_BYTES,
)

CUT_SEARCH_BYTES = 4096
"""How far before the end of a full slice a line's end is looked for."""


class Slice(NamedTuple):
    """Bytes of a log that become one entry."""

    offset: int
    length: int


class LogTail:
    """Cuts one log file into slices as it grows.

    A slice ends after a line where there is one (a bare return counts: progress bars end in it),
    and never inside a character. A rest without an end is passed on after a pause.
    """

    def __init__(self, path: str, offset: int) -> None:
        """Open ``path`` to go on at byte ``offset``.

        Raises:
            OSError: when it cannot be opened.
        """
        self.offset = offset
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._seen = offset
        self._grew = 0.0

    def close(self) -> None:
        """Give the descriptor back; may be called several times."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def pending(self) -> int:
        """How many bytes are not taken yet."""
        return max(0, os.fstat(self._fd).st_size - self.offset)

    def line_bytes(self) -> float:
        """Return how long lines are on average, by those that come next."""
        data = os.pread(self._fd, LOG_SLICE_BYTES, self.offset)
        return len(data) / max(1, data.count(b"\n"))

    def skip(self, most: int) -> tuple[int, int]:
        """Pass over all but the last ``most`` bytes, to a line's end; return the lines and bytes of it."""
        start, stop = self.offset, self.offset + self.pending - most
        lines = 0
        while self.offset < stop:
            data = os.pread(self._fd, min(READ_BYTES, stop - self.offset), self.offset)
            if not data:
                break
            lines += data.count(b"\n")
            self.offset += len(data)
        # From the last byte of that: it may be the line's end already.
        rest = os.pread(self._fd, LOG_SLICE_BYTES, self.offset - 1).find(b"\n")
        if rest > 0:
            lines, self.offset = lines + 1, self.offset + rest
        return lines, self.offset - start

    def cost(self, piece: Slice) -> int:
        """Return what it costs everybody behind the journal to take a slice."""
        lines = os.pread(self._fd, piece.length, piece.offset).count(b"\n")
        return piece.length + LOG_LINE_COST * lines

    def take(self, now: float, *, final: bool = False, cost: float = inf) -> list[Slice]:
        """Return the slices that are ready at ``now`` (monotonic seconds) and advance over them.

        Args:
            now: The clock's reading.
            final: Nothing more will be written: pass on a rest without an end, too.
            cost: No further slice is begun once those before have cost so much.
        """
        size = os.fstat(self._fd).st_size
        if size == self.offset:
            return []
        if size < self.offset:
            # Somebody emptied the file. What is written from now on is news.
            self.offset = self._seen = size
            return []
        if size != self._seen:
            self._seen, self._grew = size, now
        flush = final or now - self._grew >= PARTIAL_LINE_SECONDS
        found: list[Slice] = []
        while self.offset < size and len(found) < LOG_SLICES_PER_TICK and cost > 0:
            length = self._cut(size, flush=flush, final=final)
            if length == 0:
                break
            found.append(Slice(self.offset, length))
            self.offset += length
            cost -= self.cost(found[-1])
        return found

    def _cut(self, size: int, *, flush: bool, final: bool) -> int:
        """Return how many bytes the next slice has; 0 when it has to wait for the line's end."""
        full = size - self.offset >= LOG_SLICE_BYTES
        length = min(size - self.offset, LOG_SLICE_BYTES)
        searched = min(length, CUT_SEARCH_BYTES) if full else length
        end = os.pread(self._fd, searched, self.offset + length - searched)
        # A return at the very end may be the first half of "\r\n".
        cut = max(end.rfind(b"\n"), end.rfind(b"\r", 0, len(end) - 1))
        if cut >= 0 and (full or not flush):
            return length - len(end) + cut + 1
        if not (full or flush):
            return 0
        return length if final and not full else length - _count_broken_bytes(end)


def _count_broken_bytes(data: bytes) -> int:
    """Return how many bytes at the end of ``data`` begin a UTF-8 character that is not whole."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if need > back else 0
        if byte < 0x80:
            return 0
    return 0


class ShimLines:
    """Reads ``shim.jsonl`` line by line."""

    def __init__(self, path: str) -> None:
        self.offset = 0
        self._path = path
        self._fd = -1

    def close(self) -> None:
        """Give the descriptor back; may be called several times."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the new events, each with the offset after its line, and advance.

        A line that is not a JSON object with ``event`` and ``t_ns`` is skipped.
        """
        if not self._opened():
            return []
        size = os.fstat(self._fd).st_size
        events: list[tuple[int, dict[str, Any]]] = []
        while self.offset < size:
            data = os.pread(self._fd, min(size - self.offset, READ_BYTES), self.offset)
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) < MAX_LINE_OF_SHIM:
                break
            for line in data[:end].splitlines(keepends=True):
                self.offset += len(line)
                event = _event(line)
                if event is not None:
                    events.append((self.offset, event))
            if end == 0:
                self.offset += len(data)
        return events

    def _opened(self) -> bool:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
        return True


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    t_ns = event.get("t_ns")
    if not isinstance(t_ns, int) or isinstance(t_ns, bool):
        return None
    return event
