"""Journals of all hosts as one bounded stream, each read by a thread of its own that reconnects.

It interprets no entry; ``follow`` turns what it delivers into events.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol

import msgspec

from distconsole.errors import NodeError, RequestError
from distconsole.model.decoding import threadsafe
from distconsole.model.names import HostName
from distconsole.monitor.place import BEGINNING, Place
from distconsole.monitor.retold import Retold
from distconsole.remote.frames import EndEntry, Entries, JournalEntry
from distconsole.remote.wire import typed

QUEUED_BATCHES = 3
"""Items of one host that may wait for the consumer; then its socket, and so its journal, waits."""

CATCH_UP_SECONDS = 3.0
"""Entries older than this are history: held until the other hosts' history is there too."""

HOLD_SECONDS = 2.0
"""But no longer than this for a host that sends nothing."""

CLOSE_SECONDS = 5.0
"""How long all readers together are awaited when nobody wants to read on."""

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.3, 8.0

NO_SUCH_RUN = "no_such_run"


class JournalStream(Protocol):
    """One host's journal from some entry on."""

    @property
    def clock_offset(self) -> float:
        """Seconds to add to the node's clock to get the console's."""
        ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield items ``{"entries": [...]}``; ends after the journal's last entry.

        Raises:
            NodeError: if the connection ends, or the node refuses.
        """
        ...

    def close(self) -> None:
        """End it from any thread; may be called several times."""
        ...


OpenStream = Callable[[HostName, int, str], JournalStream]
"""Opens a host's journal after an entry's number, by the writer named; reconnects if need be. Raises NodeError."""

KnowAgain = Callable[[HostName, Place], Retold]
"""Returns what a host told and its journal has lost. It lies where the place says, in the store."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Entries of one host: as they came (for the store), as values, with their corrected times.

    Attributes:
        place: How far the host's journal is read with them.
    """

    host: HostName
    bodies: tuple[dict[str, Any], ...]
    entries: tuple[JournalEntry, ...]
    times: tuple[float, ...]
    place: Place = BEGINNING


@dataclass(frozen=True, slots=True)
class LinkNews:
    """A host was lost or found again; ``gone`` when it will never answer for this run."""

    host: HostName
    t: float
    connected: bool
    reason: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class JournalGap:
    """Entries ``first`` to ``last`` of a host are missing."""

    host: HostName
    t: float
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class JournalLoss:
    """A host's journal has lost the entries ``first`` to ``last``, which are known here.

    Attributes:
        known: Who wrote them is known, so that they are lost for certain; else the journal is read anew.
    """

    host: HostName
    t: float
    first: int
    last: int
    known: bool


@dataclass(frozen=True, slots=True)
class JournalTrouble:
    """A host cannot write its journal for now, and ``why``; empty when it can again."""

    host: HostName
    t: float
    why: str


News = LinkNews | JournalGap | JournalLoss | JournalTrouble


class HostReader:
    """Where one host's reading stands; shared between its thread and the consumer."""

    __slots__ = (
        "connected",
        "cursor",
        "done",
        "host",
        "lost_since",
        "place",
        "quiet_since",
        "retold",
        "room",
        "troubled_since",
        "waiting",
    )

    def __init__(
        self, host: HostName, place: Place, now: float, room: threading.Condition
    ) -> None:
        self.host = host
        self.room = room
        """Told when one of those that wait was taken. Its own: of very many threads one is woken."""
        self.place = place
        self.retold: Retold | None = None
        """What it may tell once more."""
        self.waiting: deque[Delivered] = deque()
        self.connected = True
        self.done = False
        """Its last entry has come, or never will."""
        self.lost_since: float | None = None
        self.troubled_since: float | None = None
        """Since when it cannot write its journal; it may never say how the run ended."""
        self.quiet_since = now
        """Monotonic seconds since which nothing of it waits."""


class JournalFeed:
    """Reads every host's journal and gives the entries out roughly in order of time.

    History is merged by time, so that ranks of different hosts meet at equal steps; what is
    happening now is given out at once.

    Args:
        open_stream: How to reach a journal.
        places: Host to how far its journal is known already.
        keep: Called with every new delivery on the reading threads, before it is given out.
        know_again: Called where a host's journal has lost what is known here.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        places: Mapping[HostName, Place],
        keep: Callable[[Delivered], None] | None = None,
        know_again: KnowAgain = lambda _host, _place: Retold(()),
    ) -> None:
        self._open_stream = open_stream
        self._keep = keep
        self._know_again = know_again
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

    def next(self, timeout: float) -> Delivered | News | None:
        """Return what came next; None if nothing did in ``timeout`` seconds, or all is read."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._news:
                    return self._news.popleft()
                now = time.monotonic()
                hold_until = self._hold_until(now)
                if now >= hold_until:
                    return self._take_first(now)
                if self.exhausted or now >= deadline:
                    return None
                self._changed.wait(min(deadline, hold_until) - now)

    @property
    def exhausted(self) -> bool:
        """Whether every host's last entry was given out."""
        return all(reader.done and not reader.waiting for reader in self._readers.values())

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
        return min(lost, default=float("inf"))

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

    def _hold_until(self, now: float) -> float:
        """Return until when to hold back what waits; infinity where nothing does."""
        if not self._ready:
            return float("inf")
        if self._ready[0][0] > time.time() - CATCH_UP_SECONDS:
            return now
        quiet = [
            reader.quiet_since + HOLD_SECONDS
            for reader in self._readers.values()
            if reader.connected and not reader.done and not reader.waiting
        ]
        return max(quiet, default=now)

    def _take_first(self, now: float) -> Delivered:
        """Take what is the oldest of what waits."""
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
        finally:
            with self._changed:
                del self._streams[reader.host]
            stream.close()

    def _take(self, reader: HostReader, item: dict[str, Any], offset: float) -> None:
        told = typed(item, Entries)
        entries = told.entries
        if told.trouble is not None:
            with self._changed:
                self._news.append(JournalTrouble(reader.host, time.time(), told.trouble))
                reader.troubled_since = time.monotonic() if told.trouble else None
                self._changed.notify()
        if told.after is not None and told.after < reader.place.seq:
            self._go_back(reader, told.after)
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
            if gap:
                self._news.append(JournalGap(reader.host, time.time(), gap[0], gap[-1]))
            while len(reader.waiting) >= QUEUED_BATCHES and not self._closed.is_set():
                reader.room.wait()
            if new:
                reader.waiting.append(delivered)
                if len(reader.waiting) == 1:
                    self._make_ready(reader)
            reader.done = isinstance(entries[-1], EndEntry)
            self._changed.notify()

    def _go_back(self, reader: HostReader, after: int) -> None:
        """Read on where the journal of a host still agrees with what is known; keep what it has lost."""
        before = reader.place
        reader.place, reader.retold = before.back_to(after), None
        known = bool(before.journal) or after > 0
        with self._changed:
            self._news.append(
                JournalLoss(reader.host, time.time(), after + 1, before.seq, known=known)
            )
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
        new: list[tuple[JournalEntry, dict[str, Any]]] = []
        for entry, body in fresh:
            news = reader.retold.news_in(body)
            if news is body:
                new.append((entry, body))
            elif news is not None:
                new.append((msgspec.convert(news, threadsafe(JournalEntry)), news))
        return new

    def _lost(self, reader: HostReader, error: NodeError) -> None:
        gone = isinstance(error, RequestError) and error.code == NO_SUCH_RUN
        with self._changed:
            if reader.connected or gone:
                self._news.append(
                    LinkNews(reader.host, time.time(), False, error.message, gone=gone)
                )
            if reader.lost_since is None:
                reader.lost_since = time.monotonic()
            reader.connected = False
            reader.done = gone
            self._changed.notify()

    def _found(self, reader: HostReader) -> None:
        with self._changed:
            if not reader.connected:
                self._news.append(LinkNews(reader.host, time.time(), True))
            reader.connected = True
            reader.lost_since = None
            reader.quiet_since = time.monotonic()
            self._changed.notify()
