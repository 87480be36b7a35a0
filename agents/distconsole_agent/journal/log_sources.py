"""The logs of one run: what of them goes into the journal and when. Floods wait, so that nothing else does."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any

from distconsole_agent.contract.limits import (
    FLOOD_BYTES,
    LAST_LOG_BYTES,
    LOG_COST_AT_ONCE,
    LOG_COST_PER_SECOND,
)
from distconsole_agent.journal.rank_states import Entry
from distconsole_agent.journal.tail import LogTail, Slice

LOG_NAME = re.compile(r"^(?:rank-(\d{1,9})|engine)\.(out|err)$")

RATE_SECONDS = 1.0


class _Log:
    """One log, and how fast it grows."""

    def __init__(self, name: str, rank: int | None, stream: str, tail: LogTail) -> None:
        self.name, self.rank, self.stream, self.tail = name, rank, stream, tail
        self.flood_told = False
        self._measured: tuple[float, int] | None = None
        self._bytes_per_second = 0.0

    def measure(self, now: float) -> float:
        """Return how many bytes a second are printed."""
        size = self.tail.offset + self.tail.pending
        if self._measured is None:
            self._measured = (now, size)
        elif now - self._measured[0] >= RATE_SECONDS:
            self._bytes_per_second = (size - self._measured[1]) / (now - self._measured[0])
            self._measured = (now, size)
        return self._bytes_per_second


class LogSources:
    """All logs in one folder.

    Args:
        folder: Where they are.
        host: The node's name, for what is said of them.
        number_of: From the rank that a log is named after to the one that its process has.
    """

    def __init__(
        self, folder: str, host: str, number_of: Callable[[int], int] = lambda rank: rank
    ) -> None:
        self._folder, self._host, self._number_of = folder, host, number_of
        self._logs: dict[str, _Log] = {}
        self._budget, self._filled_at = float(LOG_COST_AT_ONCE), 0.0

    def close(self) -> None:
        """Give all descriptors back."""
        for log in self._logs.values():
            log.tail.close()

    def open(self, offsets: dict[str, Any]) -> None:
        """Open the logs that have appeared, to go on at ``offsets``."""
        for name in sorted(os.listdir(self._folder)):
            matched = LOG_NAME.match(name)
            if name not in self._logs and matched is not None:
                with contextlib.suppress(OSError):
                    tail = LogTail(os.path.join(self._folder, name), offsets.get(name, 0))
                    rank = None if matched[1] is None else int(matched[1])
                    self._logs[name] = _Log(name, rank, matched[2], tail)

    def marks(self) -> dict[str, int]:
        """Return name -> offset, for a mark."""
        return {name: log.tail.offset for name, log in self._logs.items()}

    def take(self, now: float, t: float) -> list[Entry]:
        """Return entries for what was printed, as much as those behind the journal can take.

        The least is taken first: who prints little does not wait for who floods.
        """
        elapsed, self._filled_at = now - self._filled_at, now
        self._budget = min(self._budget + elapsed * LOG_COST_PER_SECOND, LOG_COST_AT_ONCE)
        entries: list[Entry] = []
        for log in sorted(self._logs.values(), key=lambda each: each.tail.pending):
            for piece in log.tail.take(now, cost=self._budget):
                self._budget -= log.tail.cost(piece)
                entries.append(self._entry(log, piece, t))
            if log.tail.pending > FLOOD_BYTES and not log.flood_told:
                entries += self._name_flood(log, log.measure(now), t)
        return entries

    def take_ends(self, now: float, t: float, rank: int | None, *, over: bool) -> list[Entry]:
        """Return entries for the rest of one rank's logs or of all, a part at a time; nothing at the end.

        Args:
            over: The run or its attempt is over. Else the end of a rank that floods comes later.
        """
        entries: list[Entry] = []
        for log in self._logs.values():
            if rank is not None and log.rank != rank:
                continue
            if over and log.tail.pending > LAST_LOG_BYTES:
                entries.append(self._skip(log, t))
            elif not over and log.tail.pending > FLOOD_BYTES:
                continue
            pieces = log.tail.take(now, final=True)
            entries += [self._entry(log, piece, t) for piece in pieces]
        return entries

    def _name_flood(self, log: _Log, bytes_per_second: float, t: float) -> list[Entry]:
        if not bytes_per_second:
            return []
        log.flood_told = True
        lines = bytes_per_second / log.tail.line_bytes()
        behind = log.tail.pending / bytes_per_second
        summary = (
            f"{self._who(log)} prints {lines:,.0f} lines/s ({bytes_per_second / 1e6:.1f} MB/s) on "
            f"{self._host}: its output is {behind:.0f} s behind, and falls further behind"
        )
        hint = "print less; its steps and metrics, and the others' output, are not late"
        return [self._note("run.output_flood", summary, hint, log, t)]

    def _skip(self, log: _Log, t: float) -> Entry:
        start = log.tail.offset
        lines, size = log.tail.skip(LAST_LOG_BYTES)
        summary = (
            f"{lines:,} lines ({size:,} bytes) of {self._who(log)} are not shown: it printed faster "
            "than they can be told"
        )
        path = os.path.join(self._folder, log.name)
        hint = f"they are on {self._host}: {path}, bytes {start} to {start + size}"
        return self._note("run.output_skipped", summary, hint, log, t)

    def _entry(self, log: _Log, piece: Slice, t: float) -> Entry:
        return {
            "t": t,
            "kind": "log",
            "rank": self._rank_of(log),
            "stream": log.stream,
            "offset": piece.offset,
            "length": piece.length,
            "file": log.name,
        }

    def _note(self, check: str, summary: str, hint: str, log: _Log, t: float) -> Entry:
        said = {"check": check, "severity": "warn", "summary": summary, "hint": hint}
        rank = {} if log.rank is None else {"rank": self._rank_of(log)}
        return {"t": t, "kind": "note", **said, **rank}

    def _who(self, log: _Log) -> str:
        return "what starts the ranks" if log.rank is None else f"rank {self._rank_of(log)}"

    def _rank_of(self, log: _Log) -> int | None:
        return None if log.rank is None else self._number_of(log.rank)
