"""Journals of all hosts as one bounded stream, each read by a thread of its own that reconnects."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Protocol, TypeAlias

import msgspec

from distconsole.errors import NodeError, RequestError
from distconsole.model.decoding import threadsafe
from distconsole.model.names import HostName
from distconsole.model.run_events import LinkChanged, RunFinding
from distconsole.rpc.frames import EndEntry, Entries, JournalEntry, LogEntry
from distconsole.rpc.turns import TURNS
from distconsole.rpc.wire import decode_as
from distconsole.runs.following.findings import (
    gap_finding,
    lines_finding,
    loss_finding,
    trouble_finding,
    unread_finding,
)
from distconsole.runs.following.waiting_lines import WaitingLines
from distconsole.runs.store.place import BEGINNING, Place, Retold

QUEUED_BATCHES = 3
"""Items of one host that may wait for the consumer; then its socket, and so its journal, waits."""

CATCH_UP_SECONDS = 3.0
"""Entries older than this are history: held until the other hosts' history is there too."""

HOLD_SECONDS = 2.0
"""But no longer than this for a host that sends nothing."""

HOLD_LINES_SECONDS = 10.0
"""While the history of a host that was just connected is read its lines wait, so long at most."""

LINES_AT_ONCE = 256 * 1024
"""Characters of lines which an item may have that records behind it wait for."""

CLOSE_SECONDS = 5.0
"""How long all readers together are awaited when nobody wants to read on."""

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.3, 8.0

NO_SUCH_RUN = "no_such_run"


class JournalStream(Protocol):
    """One host's journal from some entry on; ``close`` may be called from any thread, several times.

    It yields items ``{"entries": [...]}`` to the journal's last entry, and raises ``NodeError`` if the
    connection ends or the node refuses. ``clock_offset``: seconds from the node's clock to the console's.
    """

    @property
    def clock_offset(self) -> float: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def close(self) -> None: ...


OpenStream = Callable[[HostName, int, str], JournalStream]
"""Opens a host's journal after an entry's number, by the writer named; reconnects if need be. Raises NodeError."""

KnowAgain = Callable[[HostName, Place], Retold]
"""Returns what a host told and its journal has lost. It lies where the place says, in the store."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Entries of one host: as they came, as values, with corrected times; and how far its journal is read with them."""

    host: HostName
    bodies: tuple[dict[str, Any], ...]
    entries: tuple[JournalEntry, ...]
    times: tuple[float, ...]
    place: Place = BEGINNING


News: TypeAlias = Delivered | LinkChanged | RunFinding


class HostReader:
    """Where one host's reading stands; shared between its thread and the consumer."""

    def __init__(
        self, host: HostName, place: Place, now: float, room: threading.Condition
    ) -> None:
        self.host = host
        self.room = room
        """Told when one of those that wait was taken; its own, so that of very many threads one is woken."""
        self.place = place
        self.retold: Retold | None = None
        """What it may tell once more."""
        self.unread: int | None = None
        """How many of its entries could not be read and may still show as a gap; None before any."""
        self.waiting: deque[Delivered] = deque()
        self.connected = True
        self.done = False
        """Its last entry has come, or never will."""
        self.lost_since: float | None = None
        self.troubled_since: float | None = None
        """Since when it cannot write its journal; it may never say how the run ended."""
        self.quiet_since = now
        """Monotonic seconds since which nothing of it waits."""
        self.found_at = self.read_at = now
        """Monotonic seconds at which it was connected last, and something of it was read."""
        self.read_to = 0.0
        """Time of the last entry that was read."""


class JournalFeed:
    """Reads every host's journal and gives the entries out roughly in order of time.

    History is merged by time, so that ranks of different hosts meet at equal steps; what is
    happening now is given out at once.

    Args:
        places: Host to how far its journal is known already.
        keep: Called with every new delivery on the reading threads, before it is given out.
        know_again: Called where a host's journal has lost what is known here.
        lines: Where lines wait for a slow consumer, so that records pass them; without it a journal
            waits as a whole.
    """

    def __init__(
        self,
        run: str,
        open_stream: OpenStream,
        places: Mapping[HostName, Place],
        keep: Callable[[Delivered], None] | None = None,
        know_again: KnowAgain = lambda _host, _place: Retold(()),
        lines: WaitingLines | None = None,
    ) -> None:
        self._run = run
        self._open_stream = open_stream
        self._keep = keep
        self._know_again = know_again
        self._lines = lines
        self._left_out_told = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Told when there may be something for the consumer, and only that waits for it."""
        self._ready: list[tuple[float, int, HostReader]] = []
        """A heap of the hosts of which something waits, by the time of its first entry."""
        self._taken = 0
        self._news: deque[News] = deque()
        self._closed = threading.Event()
        self._streams: dict[HostName, JournalStream] = {}
        now = time.monotonic()
        self._readers = {
            host: HostReader(host, place, now, threading.Condition(self._lock))
            for host, place in places.items()
        }
        self._threads = [
            threading.Thread(
                target=self._read, args=(reader,), name=f"journal-{host}", daemon=True
            )
            for host, reader in self._readers.items()
        ]
        for thread in self._threads:
            thread.start()

    def next(self, timeout: float) -> News | None:
        """Return what came next; None if nothing did in ``timeout`` seconds, or all is read."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._news:
                    return self._news.popleft()
                now = time.monotonic()
                hold_until = self._hold_until(self._ready[0][0], now) if self._ready else inf
                if now >= hold_until:
                    return self._take_first(now)
                if self._lines:
                    hold_lines_until = self._hold_lines_until(now)
                    if now >= hold_lines_until:
                        line = self._lines.take()
                        return Delivered(line.host, (), (line.entry,), (line.t,))
                    hold_until = min(hold_until, hold_lines_until)
                if self.exhausted or now >= deadline:
                    return None
                self._changed.wait(min(deadline, hold_until) - now)

    @property
    def exhausted(self) -> bool:
        """Whether every host's last entry was given out."""
        return not self._lines and all(
            reader.done and not reader.waiting for reader in self._readers.values()
        )

    def given_out(self) -> dict[HostName, Place]:
        """Return how far the journals are read of which nothing waits, also what said nothing new."""
        with self._lock:
            readers = [reader for reader in self._readers.values() if not reader.waiting]
            return {reader.host: reader.place for reader in readers}

    def lost_seconds(self, hosts: Sequence[HostName]) -> float:
        """Return how long ago the last of ``hosts`` was lost; 0 while one of them is connected."""
        now = time.monotonic()
        lost: list[float] = []
        for host in hosts:
            reader = self._readers[host]
            if reader.done:
                continue
            since = reader.lost_since if reader.troubled_since is None else reader.troubled_since
            if since is None:
                return 0.0
            lost.append(now - since)
        return min(lost, default=inf)

    def close(self) -> None:
        """End all reading; may be called several times."""
        self._closed.set()
        with self._changed:
            streams = list(self._streams.values())
            self._changed.notify()
            for reader in self._readers.values():
                reader.room.notify()
        for stream in streams:
            stream.close()
        # One that is still reaching for its host ends by itself once it has an answer.
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _hold_until(self, t: float, now: float) -> float:
        """Return until when to hold back what is of ``t``: others may have something older."""
        if t > time.time() - CATCH_UP_SECONDS:
            return now
        quiet = [
            reader.quiet_since + HOLD_SECONDS
            for reader in self._readers.values()
            if reader.connected
            and not (reader.done or reader.waiting or (self._lines and reader.read_to >= t))
        ]
        return max(quiet, default=now)

    def _hold_lines_until(self, now: float) -> float:
        """Return until when lines wait for hosts whose history is being read, so that records come first."""
        history = time.time() - CATCH_UP_SECONDS
        return max(
            (
                min(reader.read_at + HOLD_SECONDS, reader.found_at + HOLD_LINES_SECONDS)
                for reader in self._readers.values()
                if reader.connected and not reader.done and reader.read_to < history
            ),
            default=now,
        )

    def _take_first(self, now: float) -> Delivered:
        _, _, reader = heappop(self._ready)
        delivered = reader.waiting.popleft()
        if reader.waiting:
            self._make_ready(reader)
        else:
            reader.quiet_since = now
        reader.room.notify()
        return delivered

    def _make_ready(self, reader: HostReader) -> None:
        self._taken += 1  # of equal times the one that came first
        heappush(self._ready, (reader.waiting[0].times[0], self._taken, reader))

    def _read(self, reader: HostReader) -> None:
        retry_seconds = FIRST_RETRY_SECONDS
        while not self._closed.is_set() and not reader.done:
            before = reader.place.seq
            try:
                self._read_once(reader)
            except NodeError as error:
                self._lost(reader, error)
            if reader.place.seq > before:
                retry_seconds = FIRST_RETRY_SECONDS
            if reader.done or self._closed.wait(retry_seconds * random.uniform(0.8, 1.2)):  # noqa: S311
                break
            retry_seconds = min(2 * retry_seconds, MAX_RETRY_SECONDS)
        with self._changed:
            self._changed.notify()

    def _read_once(self, reader: HostReader) -> None:
        stream = self._open_stream(reader.host, reader.place.seq, reader.place.journal)
        with self._changed:
            self._streams[reader.host] = stream
        try:
            if self._closed.is_set():
                return
            self._found(reader)
            for item in stream:
                self._take(reader, item, stream.clock_offset)
                if self._closed.is_set() or reader.done:
                    return
            # All was sent. Where its end cannot be read it never will be: asked again, it is the same.
            reader.done = bool(reader.unread)
        finally:
            with self._changed:
                del self._streams[reader.host]
            stream.close()

    def _take(self, reader: HostReader, item: dict[str, Any], offset: float) -> None:
        told = TURNS.take(lambda: decode_as(item, Entries))
        entries = told.entries
        if told.trouble is not None:
            with self._changed:
                self._news.append(trouble_finding(self._run, reader.host, told.trouble))
                reader.troubled_since = time.monotonic() if told.trouble else None
                self._changed.notify()
        if told.after is not None and told.after < reader.place.seq:
            self._go_back(reader, told.after)
        self._count_unread(reader, told.unread)
        new = self._news_in(reader, entries, item["entries"])
        if not entries or entries[-1].seq <= reader.place.seq:
            return
        gap = range(reader.place.seq + 1, next(e.seq for e in entries if e.seq > reader.place.seq))
        reader.place = reader.place.at(entries[-1].seq, told.journal)
        delivered = Delivered(
            host=reader.host,
            bodies=tuple(body for _, body in new),
            entries=tuple(entry for entry, _ in new),
            times=tuple(entry.t + offset for entry, _ in new),
            place=reader.place,
        )
        if self._keep is not None:
            self._keep(delivered)
        with self._changed:
            self._tell_gap(reader, gap)
            while not self._has_room(reader) and not self._closed.is_set():
                reader.room.wait()
            if new:
                reader.waiting.append(delivered)
                if len(reader.waiting) == 1:
                    self._make_ready(reader)
                if self._lines is not None and (
                    self._lines.of(reader.host)
                    or sum(len(entry.text) for entry in entries if isinstance(entry, LogEntry))
                    > LINES_AT_ONCE
                ):
                    self._let_lines_wait(reader, self._lines)
            reader.done = isinstance(entries[-1], EndEntry)
            reader.read_to, reader.read_at = entries[-1].t + offset, time.monotonic()
            self._changed.notify()

    def _has_room(self, reader: HostReader) -> bool:
        if self._lines is not None and len(reader.waiting) >= QUEUED_BATCHES:
            self._let_lines_wait(reader, self._lines)
        return len(reader.waiting) < QUEUED_BATCHES

    def _let_lines_wait(self, reader: HostReader, lines: WaitingLines) -> None:
        """Take lines, and the end behind them, out of what waits of a host."""
        waiting, reader.waiting = reader.waiting, deque()
        for delivered in waiting:
            told = zip(delivered.entries, delivered.times, strict=True)
            records, left_out = lines.sift(reader.host, told)
            if left_out is not None and not self._left_out_told:
                self._left_out_told = True
                self._news.append(lines_finding(self._run, *left_out[:2]))
            if records:
                entries, times = zip(*records, strict=True)
                reader.waiting.append(Delivered(reader.host, (), entries, times, delivered.place))
        self._ready = [each for each in self._ready if each[2] is not reader]
        heapify(self._ready)
        if reader.waiting:
            self._make_ready(reader)
        else:
            reader.quiet_since = time.monotonic()

    def _count_unread(self, reader: HostReader, count: int) -> None:
        if count and reader.unread is None:
            with self._changed:
                self._news.append(unread_finding(self._run, reader.host, count))
                self._changed.notify()
        if count:
            reader.unread = (reader.unread or 0) + count

    def _tell_gap(self, reader: HostReader, gap: range) -> None:
        """Tell of numbers that did not come, unless so many entries came that cannot be read."""
        if len(gap) > (reader.unread or 0):
            self._news.append(gap_finding(self._run, reader.host, gap))
        elif reader.unread:
            reader.unread -= len(gap)

    def _go_back(self, reader: HostReader, after: int) -> None:
        """Read on where the journal of a host still agrees with what is known; keep what it has lost."""
        before = reader.place
        reader.place, reader.retold = before.back_to(after), None
        known = bool(before.journal) or after > 0
        loss = loss_finding(self._run, reader.host, after + 1, before.seq, known=known)
        with self._changed:
            self._news += (loss, Delivered(reader.host, (), (), (), Place(after)))
            self._changed.notify()

    def _news_in(
        self,
        reader: HostReader,
        entries: Sequence[JournalEntry],
        bodies: Sequence[dict[str, Any]],
    ) -> list[tuple[JournalEntry, dict[str, Any]]]:
        """Return those entries that are new, without what the host has told before it lost it."""
        fresh = [
            (entry, body)
            for entry, body in zip(entries, bodies, strict=True)
            if entry.seq > reader.place.seq
        ]
        if not fresh or not reader.place.has_lost:
            return fresh
        if reader.retold is None:
            reader.retold = self._know_again(reader.host, reader.place)
        told = [(entry, body, reader.retold.news_in(body)) for entry, body in fresh]
        return [
            (entry if news is body else msgspec.convert(news, threadsafe(JournalEntry)), news)
            for entry, body, news in told
            if news is not None
        ]

    def _lost(self, reader: HostReader, error: NodeError) -> None:
        gone = isinstance(error, RequestError) and error.code == NO_SUCH_RUN
        with self._changed:
            if reader.connected or gone:
                self._say_link(reader, connected=False, reason=error.message)
            if reader.lost_since is None:
                reader.lost_since = time.monotonic()
            reader.done = gone
            self._changed.notify()

    def _found(self, reader: HostReader) -> None:
        with self._changed:
            if not reader.connected:
                self._say_link(reader, connected=True)
            reader.lost_since = None
            reader.quiet_since = reader.found_at = reader.read_at = time.monotonic()
            self._changed.notify()

    def _say_link(self, reader: HostReader, *, connected: bool, reason: str = "") -> None:
        reader.connected = connected
        self._news.append(
            LinkChanged(
                t=time.time(), run=self._run, host=reader.host, connected=connected, reason=reason
            )
        )
