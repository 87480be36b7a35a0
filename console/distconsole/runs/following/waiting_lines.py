"""Printed lines that wait while records pass them: of a flood the oldest go, counted, and it comes last."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import NamedTuple

from msgspec import structs

from distconsole.model.names import HostName
from distconsole.rpc.frames import EndEntry, JournalEntry, LogEntry

MOST_BYTES = 32 * 1024 * 1024
"""Most bytes that all sources together may have waiting."""

ENTRY_BYTES = 512
"""Bytes of an entry beside its text."""

KEPT_SHARE = 31 / 32
"""Lines are left out until this share of ``MOST_BYTES`` waits."""

FLOOD_BYTES = 4 * 1024 * 1024
"""A source with more waiting bytes comes after all others."""


class WaitingLine(NamedTuple):
    """An entry and its time; one that waits is a slice of output, or a host's last entry, which follows these."""

    host: HostName
    entry: JournalEntry
    t: float

    @property
    def text(self) -> str:
        """Printed text; empty for an end."""
        return self.entry.text if isinstance(self.entry, LogEntry) else ""

    @property
    def bytes(self) -> int:
        return ENTRY_BYTES + len(self.text)


Source = tuple[HostName, int | None, str]
"""A host, a rank on it (None: the launcher), and a stream."""


class _Waiting:
    """Waiting lines of one source, and the number of those left out before them."""

    def __init__(self) -> None:
        self.lines: deque[WaitingLine] = deque()
        self.bytes = 0
        self.missing_lines = self.missing_chars = 0
        self.turn = 0
        """The number of its valid entry in ``_turns``; others are out of date."""

    @property
    def floods(self) -> bool:
        return self.bytes >= FLOOD_BYTES

    def pop(self) -> WaitingLine:
        line = self.lines.popleft()
        self.bytes -= line.bytes
        return line


class WaitingLines:
    """Lines of all hosts of a run; one thread at a time uses it."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sources: dict[Source, _Waiting] = {}
        self._hosts: Counter[HostName] = Counter()
        """How many sources each host has."""
        self._turns: list[tuple[bool, float, int, Source]] = []
        """Heap of sources by turn: whether it floods, the time of its first line, a number."""
        self._numbers = count(1)
        self._ends: dict[HostName, WaitingLine] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._sources or self._ends)

    def of(self, host: HostName) -> bool:
        return host in self._hosts

    def sift(
        self, host: HostName, told: Iterable[tuple[JournalEntry, float]]
    ) -> tuple[list[tuple[JournalEntry, float]], Source | None]:
        """Take the lines and the end out of ``told``; return the rest, and a source of lines that were dropped for them."""
        rest: list[tuple[JournalEntry, float]] = []
        left_out = None
        for entry, t in told:
            if isinstance(entry, LogEntry | EndEntry):
                left_out = self.put(host, entry, t) or left_out
            else:
                rest.append((entry, t))
        return rest, left_out

    def put(self, host: HostName, entry: LogEntry | EndEntry, t: float) -> Source | None:
        """Take a line or an end; return the source whose lines were left out for it, if any were."""
        line = WaitingLine(host, entry, t)
        if isinstance(entry, EndEntry):
            self._ends[host] = line
            return None
        key = (host, entry.rank, entry.stream)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Waiting()
            self._hosts[host] += 1
        flooded = source.floods
        source.lines.append(line)
        source.bytes += line.bytes
        self._bytes += line.bytes
        if len(source.lines) == 1 or source.floods != flooded:
            self._queue(key, source)
        return self._make_room() if self._bytes > self._most_bytes else None

    def _make_room(self) -> Source | None:
        """Drop the oldest lines of the largest sources, some at once, but no last one; return the first such source.

        Searching the largest source for each line took three quarters of a core with 8,192 ranks that print.
        """
        sources = ((key, each) for key, each in self._sources.items() if len(each.lines) > 1)
        largest = [(-each.bytes, number, key) for number, (key, each) in enumerate(sources)]
        heapify(largest)
        first = largest[0][-1] if largest else None
        while largest and self._bytes > self._most_bytes * KEPT_SHARE:
            _, number, key = largest[0]
            source = self._sources[key]
            missing = source.pop()
            self._bytes -= missing.bytes
            source.missing_lines += missing.text.count("\n")
            source.missing_chars += len(missing.text)
            self._queue(key, source)
            if len(source.lines) > 1:
                heapreplace(largest, (-source.bytes, number, key))
            else:
                heappop(largest)
        return first

    def take(self) -> WaitingLine:
        """Return the next entry: the oldest, but that of a flood after all others; behind a note on missing lines."""
        first = self._first()
        if isinstance(first, WaitingLine):
            return self._ends.pop(first.host)
        source = self._sources[first]
        line = source.pop()
        self._bytes -= line.bytes
        if source.lines:
            self._queue(first, source)
        else:
            del self._sources[first]
            self._hosts[first[0]] -= 1
            if not self._hosts[first[0]]:
                del self._hosts[first[0]]
        if not source.missing_chars or not isinstance(line.entry, LogEntry):
            return line
        mark = (
            f"[distconsole: {source.missing_lines:,} lines ({source.missing_chars:,} characters) "
            "are not shown here: they came faster than this console takes them]\n"
        )
        source.missing_lines = source.missing_chars = 0
        return line._replace(entry=structs.replace(line.entry, text=mark + line.text))

    def _first(self) -> WaitingLine | Source:
        """Return the end of a host without waiting lines, else the source of the next line."""
        for host, end in self._ends.items():
            if not self.of(host):
                return end
        while True:
            _, _, turn, key = self._turns[0]
            if key in self._sources and self._sources[key].turn == turn:
                return key
            heappop(self._turns)

    def _queue(self, key: Source, source: _Waiting) -> None:
        """Queue a source again after a change: it has another first line, or floods now."""
        source.turn = next(self._numbers)
        heappush(self._turns, (source.floods, source.lines[0].t, source.turn, key))
