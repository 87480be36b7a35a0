"""The logs of one run: slices of them for the journal. A flood waits alone."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from distconsole_agent.contract import limits
from distconsole_agent.journal.rank_states import Entry
from distconsole_agent.supervisor import notes

LOG_NAME = re.compile(r"^(?:rank-(\d{1,9})|engine)\.(out|err)$")

RATE_SECONDS = 1.0


class Slice(NamedTuple):
    """Bytes of a log that become one entry."""

    offset: int
    length: int
    cost: int
    """Cost of this slice to all its readers behind the journal."""


class LogSlicer:
    """Cuts one log file into slices as it grows.

    A slice ends after a line if it holds an end of one (a bare return counts: progress bars end in
    it), and never inside a character. A rest without an end is passed on after a pause.
    """

    def __init__(
        self, path: str, offset: int, rank: int | None = None, stream: str = "out"
    ) -> None:
        """Open ``path``, the ``stream`` of ``rank``, at byte ``offset``; raises OSError."""
        self.path, self.offset, self.rank, self.stream = path, offset, rank, stream
        self.flood_told = False
        self._measured: tuple[float, int] | None = None
        self._bytes_per_second = 0.0
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        self._seen = offset
        self._grew = 0.0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def pending(self) -> int:
        return max(0, os.fstat(self._fd).st_size - self.offset)

    def line_bytes(self) -> float:
        """Return how long lines are on average, by those that come next."""
        data = os.pread(self._fd, limits.LOG_SLICE_BYTES, self.offset)
        return len(data) / max(1, data.count(b"\n"))

    def skip(self, most: int) -> tuple[int, int]:
        """Pass over all but the last ``most`` bytes, to a line's end; return the lines and bytes of it."""
        start, stop = self.offset, self.offset + self.pending - most
        lines = 0
        while self.offset < stop:
            data = os.pread(self._fd, min(limits.READ_BYTES, stop - self.offset), self.offset)
            if not data:
                break
            lines += data.count(b"\n")
            self.offset += len(data)
        # From the last byte of that: it may be the line's end already.
        rest = os.pread(self._fd, limits.LOG_SLICE_BYTES, self.offset - 1).find(b"\n")
        if rest > 0:
            lines, self.offset = lines + 1, self.offset + rest
        return lines, self.offset - start

    def measure(self, now: float) -> float:
        size = self.offset + self.pending
        since = self._measured or (now, size)
        if now - since[0] >= RATE_SECONDS:
            self._bytes_per_second = (size - since[1]) / (now - since[0])
            since = (now, size)
        self._measured = since
        return self._bytes_per_second

    def take(self, now: float, *, final: bool = False, cost: float = inf) -> list[Slice]:
        """Return the slices that are ready at ``now`` (monotonic seconds) and advance over them.

        ``final``: nothing more will be written, so a rest without an end is passed on, too. No
        further slice is begun once those before have cost ``cost``.
        """
        size = os.fstat(self._fd).st_size
        if size == self.offset:
            return []
        if size < self.offset:
            # The file was truncated: lines written from now on are new.
            self.offset = self._seen = size
            return []
        if size != self._seen:
            self._seen, self._grew = size, now
        flush = final or now - self._grew >= limits.PARTIAL_LINE_SECONDS
        found: list[Slice] = []
        while self.offset < size and len(found) < limits.LOG_SLICES_PER_TICK and cost > 0:
            data = os.pread(self._fd, min(size - self.offset, limits.LOG_SLICE_BYTES), self.offset)
            length = _cut(data, flush=flush, final=final)
            if length == 0:
                break
            lines = data.count(b"\n", 0, length)
            found.append(Slice(self.offset, length, length + limits.LOG_LINE_COST * lines))
            self.offset += length
            cost -= found[-1].cost
        return found


def _cut(data: bytes, *, flush: bool, final: bool) -> int:
    """Return the length of the next slice; 0 if it has to wait for the line's end."""
    full = len(data) == limits.LOG_SLICE_BYTES
    # A return at the very end may be the first half of "\r\n".
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))
    if end >= 0 and (full or not flush):
        return end + 1
    if not (full or flush):
        return 0
    # Bytes at the end may begin a character that is not whole.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return len(data) if final and not full else len(data) - len(decoder.getstate()[0])


class LogSources:
    """All logs in one folder; ``rank_of`` gives a process's rank, if one prints there, for that in its log's name."""

    def __init__(
        self, folder: str, host: str, rank_of: Callable[[int], int | None] = lambda rank: rank
    ) -> None:
        self._folder, self._host, self._number_of = folder, host, rank_of
        self._logs: dict[str, LogSlicer] = {}
        self._budget, self._filled_at = float(limits.LOG_COST_AT_ONCE), 0.0

    def close(self) -> None:
        for log in self._logs.values():
            log.close()

    def open(self, offsets: dict[str, Any]) -> None:
        for name in sorted(os.listdir(self._folder)):
            matched = LOG_NAME.match(name)
            if name not in self._logs and matched is not None:
                with contextlib.suppress(OSError):
                    rank = None if matched[1] is None else int(matched[1])
                    path = os.path.join(self._folder, name)
                    self._logs[name] = LogSlicer(path, offsets.get(name, 0), rank, matched[2])

    def marks(self) -> dict[str, int]:
        return {name: log.offset for name, log in self._logs.items()}

    def take(self, now: float, t: float) -> list[Entry]:
        """Return entries for new output that fits into the journal, ranks with the least first."""
        elapsed, self._filled_at = now - self._filled_at, now
        self._budget = min(
            self._budget + elapsed * limits.LOG_COST_PER_SECOND, limits.LOG_COST_AT_ONCE
        )
        entries: list[Entry] = []
        for log in sorted(self._logs.values(), key=lambda each: each.pending):
            for piece in log.take(now, cost=self._budget):
                self._budget -= piece.cost
                entries.append(self._entry(log, piece, t))
            if log.pending > limits.FLOOD_BYTES and not log.flood_told:
                entries += self._name_flood(log, log.measure(now), t)
        return entries

    def take_ends(
        self, now: float, t: float, rank: int | None, *, over: bool, final: bool = True
    ) -> list[Entry]:
        """Return entries for the rest of a rank's logs or of all, in parts; before ``over`` no flood's end.

        ``final``: also a rest without a line's end.
        """
        entries: list[Entry] = []
        for log in self._logs.values():
            if rank is not None and log.rank != rank:
                continue
            if over and log.pending > limits.LAST_LOG_BYTES:
                entries.append(self._skip(log, t))
            elif not over and log.pending > limits.FLOOD_BYTES:
                continue
            pieces = log.take(now, final=final)
            entries += [self._entry(log, piece, t) for piece in pieces]
        return entries

    def _name_flood(self, log: LogSlicer, bytes_per_second: float, t: float) -> list[Entry]:
        if not bytes_per_second:
            return []
        log.flood_told = True
        lines = bytes_per_second / log.line_bytes()
        behind = log.pending / bytes_per_second
        summary = (
            f"{self._who(log)} prints {lines:,.0f} lines/s ({bytes_per_second / 1e6:.1f} MB/s) on "
            f"{self._host}: its output is {behind:.0f} s behind, and falls further behind"
        )
        hint = "print less; its steps and metrics, and the others' output, are not late"
        return [self._note("run.output_flood", summary, hint, log, t)]

    def _skip(self, log: LogSlicer, t: float) -> Entry:
        start = log.offset
        lines, size = log.skip(limits.LAST_LOG_BYTES)
        summary = (
            f"{size:,} bytes ({lines:,} whole lines) of {self._who(log)} are not shown: it printed faster "
            "than they can be told"
        )
        hint = f"they are on {self._host}: {log.path}, bytes {start} to {start + size}"
        return self._note("run.output_skipped", summary, hint, log, t)

    def _entry(self, log: LogSlicer, piece: Slice, t: float) -> Entry:
        return {
            "t": t,
            "kind": "log",
            "rank": self._rank_of(log),
            "stream": log.stream,
            "offset": piece.offset,
            "length": piece.length,
            "file": os.path.basename(log.path),
        }

    def _note(self, check: str, summary: str, hint: str, log: LogSlicer, t: float) -> Entry:
        return notes.warn(check, summary, hint, rank=self._rank_of(log)).entry(t)

    def _who(self, log: LogSlicer) -> str:
        number = self._rank_of(log)
        return "what starts the ranks" if number is None else f"rank {number}"

    def _rank_of(self, log: LogSlicer) -> int | None:
        return None if log.rank is None else self._number_of(log.rank)
