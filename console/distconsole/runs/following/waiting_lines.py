"""Printed lines that wait while records pass them: of a flood the oldest go, counted, and it comes last."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec import structs

from distconsole.model.names import HostName
from distconsole.rpc.frames import EndEntry, JournalEntry, LogEntry

MOST_BYTES = 32 * 1024 * 1024
"""What all sources together may have waiting."""

ENTRY_BYTES = 512
"""What an entry takes beside its text."""

FLOOD_BYTES = 4 * 1024 * 1024
"""A source of which so much waits comes after all that have less."""


class WaitingLine(NamedTuple):
    """An entry and its time; one that waits is a slice of what was printed, or a host's last, which comes behind these."""

    host: HostName
    entry: JournalEntry
    t: float

    @property
    def bytes(self) -> int:
        """What it takes of the room."""
        return ENTRY_BYTES + (len(self.entry.text) if isinstance(self.entry, LogEntry) else 0)


Source = tuple[HostName, int | None, str]
"""A host, a rank on it or what starts the ranks, and a stream."""


class _Waiting:
    """What waits of one source."""

    def __init__(self) -> None:
        self.lines: deque[WaitingLine] = deque()
        self.bytes = 0
        self._left_out_lines = self._left_out_chars = 0

    def put(self, line: WaitingLine) -> None:
        self.lines.append(line)
        self.bytes += line.bytes

    def leave_out(self) -> int:
        """Pass over the oldest; return what it took of the room."""
        line = self._pop()
        entry = line.entry
        assert isinstance(entry, LogEntry)
        self._left_out_lines += entry.text.count("\n")
        self._left_out_chars += len(entry.text)
        return line.bytes

    def take(self) -> WaitingLine:
        """Return the oldest, behind words for what was left out before it."""
        line = self._pop()
        if not self._left_out_chars or not isinstance(line.entry, LogEntry):
            return line
        mark = (
            f"[distconsole: {self._left_out_lines:,} lines ({self._left_out_chars:,} characters) "
            "are not shown here: they came faster than this console takes them]\n"
        )
        self._left_out_lines = self._left_out_chars = 0
        return line._replace(entry=structs.replace(line.entry, text=mark + line.entry.text))

    def _pop(self) -> WaitingLine:
        line = self.lines.popleft()
        self.bytes -= line.bytes
        return line


class WaitingLines:
    """Lines of all hosts of a run; one thread at a time uses it."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sources: dict[Source, _Waiting] = {}
        self._ends: dict[HostName, WaitingLine] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._sources or self._ends)

    def of(self, host: HostName) -> bool:
        """Whether lines of a host wait."""
        return any(source[0] == host for source in self._sources)

    def put(self, host: HostName, entry: LogEntry | EndEntry, t: float) -> Source | None:
        """Take what waits; return whose lines were left out for it, if any were."""
        line = WaitingLine(host, entry, t)
        if isinstance(entry, EndEntry):
            self._ends[host] = line
            return None
        self._sources.setdefault((host, entry.rank, entry.stream), _Waiting()).put(line)
        self._bytes += line.bytes
        left_out = None
        while self._bytes > self._most_bytes:
            key, largest = max(self._sources.items(), key=lambda each: each[1].bytes)
            if len(largest.lines) == 1:
                break
            left_out = key
            self._bytes -= largest.leave_out()
        return left_out

    def take(self) -> WaitingLine:
        """Return what comes next: the oldest, but that of a flood after all else."""
        first = self._first()
        if isinstance(first, WaitingLine):
            return self._ends.pop(first.host)
        source = self._sources[first]
        self._bytes -= source.lines[0].bytes
        line = source.take()
        if not source.lines:
            del self._sources[first]
        return line

    def _first(self) -> WaitingLine | Source:
        """Return the end of a host of which nothing else waits, or whose line comes next."""
        for host, end in self._ends.items():
            if not self.of(host):
                return end
        few = [key for key, source in self._sources.items() if source.bytes < FLOOD_BYTES]
        return min(few or self._sources, key=lambda key: self._sources[key].lines[0].t)
