"""Journals of all hosts as one bounded stream; a thread connects to a host, and the consumer reads."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Protocol, TypeAlias

import msgspec

from distconsole.errors import NodeError, RequestError
from distconsole.model.decoding import threadsafe
from distconsole.model.names import HostName
from distconsole.model.run_events import LinkChanged, RunFinding
from distconsole.rpc.frames import EndEntry, Entries, JournalEntry, LogEntry
from distconsole.rpc.wire import encode_entry
from distconsole.runs.following.findings import (
    gap_finding,
    lines_finding,
    loss_finding,
    trouble_finding,
    unread_finding,
)
from distconsole.runs.following.waiting_lines import WaitingLines
from distconsole.runs.store.place import BEGINNING, JournalPlace, Retold

QUEUED_BATCHES = 3
"""Items of one host that may wait for the consumer; then its socket, and so its journal, waits."""

CATCH_UP_SECONDS = 3.0
"""Entries older than this are history: held until the other hosts' history is there too."""

HOLD_SECONDS, REACH_SECONDS = 2.0, 5.0
"""But no longer than this for a host that sends nothing, or is still being reached."""

HOLD_LINES_SECONDS = 10.0
"""Longest time that lines wait while the history of a newly connected host is read."""

READ_SECONDS = 0.5
"""Longest that lines wait for entries that have come and are still to be read."""

LINES_AT_ONCE = 256 * 1024
"""Characters of lines which an item may have that records behind it wait for."""

CLOSE_SECONDS = 5.0
"""Longest wait for all readers together once the consumer has stopped reading."""

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.3, 8.0

NO_SUCH_RUN = "no_such_run"


class JournalStream(Protocol):
    """One host's journal from some entry on; see ``rpc.stream.Stream``.

    ``clock_offset``: seconds from the node's clock to the console's.
    """

    @property
    def clock_offset(self) -> float: ...

    def listen(self, listener: Callable[[], None]) -> None: ...

    def take(self, timeout: float | None) -> Entries | None: ...

    def close(self) -> None: ...


OpenStream = Callable[[HostName, int, str], JournalStream]
"""Opens a host's journal after an entry's number, by the writer named; reconnects if need be. Raises NodeError."""

KnowAgain = Callable[[HostName, JournalPlace], Retold]
"""Returns entries that a host sent and its journal has lost, by their place in the store."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Entries of one host: as JSON, as values, with corrected times; and how far its journal is read with them."""

    host: HostName
    bodies: tuple[bytes, ...]
    entries: tuple[JournalEntry, ...]
    times: tuple[float, ...]
    place: JournalPlace = BEGINNING


News: TypeAlias = Delivered | LinkChanged | RunFinding


class HostReader:
    """Where one host's reading stands."""

    def __init__(self, host: HostName, place: JournalPlace, now: float) -> None:
        self.host = host
        self.place = place
        self.stream: JournalStream | None = None
        """Its journal, while it is connected."""
        self.in_hand: Entries | None = None
        """Entries that have come and wait for room."""
        self.retry_seconds = FIRST_RETRY_SECONDS
        self.began_at = place.seq
        """The last entry known when it was connected."""
        self.retold: Retold | None = None
        """Entries that it may send again."""
        self.unread: int | None = None
        """How many of its entries could not be read and may still show as a gap; None before any."""
        self.waiting: deque[Delivered] = deque()
        self.begun = 0
        """So many entries of the first that waits are given out."""
        self.turn = 0
        """The number in the feed's heap that stands for it; others are out of date."""
        self.connected = True
        self.was_reached = False
        self.done = False
        """Its last entry has come, or never will."""
        self.lost_since: float | None = None
        self.troubled_since: float | None = None
        """Since when it cannot write its journal; it may never report the run's outcome."""
        self.quiet_since = now
        """Monotonic seconds since which nothing of it waits."""
        self.found_at = self.read_at = now
        """Monotonic time of its last connection, and of the last entry read."""
        self.read_to = 0.0
        """Time of the last entry that was read."""

    @property
    def next_t(self) -> float:
        return self.waiting[0].times[self.begun]

    def take(self, until: float) -> Delivered:
        """Take the first entry that waits, and those behind it in the same item that are not after ``until``."""
        first, begin = self.waiting[0], self.begun
        end = begin + 1
        while end < len(first.times) and first.times[end] <= until:
            end += 1
        self.begun = end
        if end == len(first.times):
            self.waiting.popleft()
            self.begun = 0
            if not begin:
                return first
        here = slice(begin, end)
        seq = first.entries[end - 1].seq if self.begun else first.place.seq
        place = first.place.at(seq, first.place.journal)
        return Delivered(
            first.host, first.bodies[here], first.entries[here], first.times[here], place
        )


class JournalFeed:
    """Reads every host's journal and gives the entries out roughly in order of time.

    History is merged by time, so that ranks of different hosts meet at equal steps; new entries
    are given out at once.

    Args:
        places: Host to the place up to which its journal is known already.
        keep: Called with every new delivery before it is given out.
        know_again: Called if a host's journal has lost entries that are stored here.
        lines: Holds lines for a slow consumer, so that records pass them; without it a journal
            waits as a whole.
    """

    def __init__(
        self,
        run: str,
        open_stream: OpenStream,
        places: Mapping[HostName, JournalPlace],
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
        self._changed = threading.Condition()
        """Told when there may be something for the consumer."""
        self._heard: dict[HostReader, None] = {}
        """Hosts with something to read, perhaps, each once."""
        self._ready: list[tuple[float, int, HostReader]] = []
        """A heap of the hosts of which something waits, by the time of its first entry; see ``HostReader.turn``."""
        self._taken = 0
        self._news: deque[News] = deque()
        self._closed = threading.Event()
        now = time.monotonic()
        self._readers = {host: HostReader(host, place, now) for host, place in places.items()}
        self._quiet = dict.fromkeys(self._readers.values())
        """Hosts without waiting entries."""
        self._history = dict.fromkeys(self._readers.values())
        """Whose history may be being read."""
        self._threads: dict[HostName, threading.Thread] = {}
        for reader in self._readers.values():
            self._connect(reader, 0.0)

    def next(self, timeout: float) -> News | None:
        """Return the next news; None if there were none in ``timeout`` seconds, or all is read."""
        now = time.monotonic()
        deadline, read_until = now + timeout, now + READ_SECONDS
        while True:
            self._read_heard()
            if self._news:
                return self._news.popleft()
            now = time.monotonic()
            first = self._find_first()
            hold_until = inf if first is None else self._hold_until(first.next_t, now)
            if first is not None and now >= hold_until:
                return self._take_first(first, now)
            if self._lines and self._heard and now < read_until:
                continue
            if self._lines:
                hold_lines_until = self._hold_lines_until(now)
                if now >= hold_lines_until:
                    line = self._lines.take()
                    return Delivered(line.host, (), (line.entry,), (line.t,))
                hold_until = min(hold_until, hold_lines_until)
            if self.exhausted or now >= deadline:
                return None
            with self._changed:
                if not (self._heard or self._news):
                    self._changed.wait(min(deadline, hold_until) - now)

    @property
    def exhausted(self) -> bool:
        return not self._lines and all(
            reader.done and not reader.waiting for reader in self._readers.values()
        )

    @property
    def has_more(self) -> bool:
        """Whether something has come that is not given out; lines do not count, as records pass them."""
        return bool(self._heard or self._news) or self._find_first() is not None

    def given_out(self) -> dict[HostName, JournalPlace]:
        """Return how far the journals are read of which no entry waits, silent entries included."""
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
            streams = [reader.stream for reader in self._readers.values() if reader.stream]
            threads = list(self._threads.values())
            self._changed.notify()
        for stream in streams:
            stream.close()
        # One that is still reaching for its host ends by itself once it has an answer.
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _hold_until(self, t: float, now: float) -> float:
        if t > time.time() - CATCH_UP_SECONDS:
            return now
        quiet = [
            reader.quiet_since + (HOLD_SECONDS if reader.was_reached else REACH_SECONDS)
            for reader in self._quiet
            if reader.connected and not (reader.done or (self._lines and reader.read_to >= t))
        ]
        return max(quiet, default=now)

    def _hold_lines_until(self, now: float) -> float:
        """Return the time until which lines wait for a host whose history is being read, so that records come first."""
        history = time.time() - CATCH_UP_SECONDS
        while self._history:
            reader = next(iter(self._history))
            until = min(reader.read_at + HOLD_SECONDS, reader.found_at + HOLD_LINES_SECONDS)
            old = reader.read_to < history
            if old and until > now and reader.connected and not reader.done:
                return until
            del self._history[reader]  # until more of it is read
        return now

    def _find_first(self) -> HostReader | None:
        while self._ready:
            _, turn, reader = self._ready[0]
            if reader.waiting and reader.turn == turn:
                return reader
            heappop(self._ready)
        return None

    def _take_first(self, reader: HostReader, now: float) -> Delivered:
        heappop(self._ready)
        other = self._find_first()
        # An item may hold minutes of history, and another host's lies between its entries.
        until = inf if other is None else other.next_t
        delivered = reader.take(inf if until > time.time() - CATCH_UP_SECONDS else until)
        self._queue(reader, now)
        self._heard[reader] = None  # it has room again
        return delivered

    def _queue(self, reader: HostReader, now: float) -> None:
        """Give a host another turn, by its next waiting entry, if it has one."""
        if reader.waiting:
            reader.turn = self._taken = self._taken + 1  # of equal times the one that came first
            heappush(self._ready, (reader.next_t, self._taken, reader))
            self._quiet.pop(reader, None)
        else:
            reader.quiet_since = now
            self._quiet[reader] = None

    def _connect(self, reader: HostReader, pause_seconds: float) -> None:
        """Have a thread connect to a host after a pause; it ends once the host is connected."""
        thread = threading.Thread(
            target=self._open, args=(reader, pause_seconds), name=f"journal-{reader.host}", daemon=True
        )  # fmt: skip
        with self._changed:
            self._threads[reader.host] = thread
        thread.start()

    def _open(self, reader: HostReader, pause_seconds: float) -> None:
        while not self._closed.wait(pause_seconds):
            place = reader.place
            reader.began_at = place.seq
            try:
                stream = self._open_stream(reader.host, place.seq, place.journal)
            except NodeError as error:
                self._lost(reader, error)
                if reader.done:
                    return
                pause_seconds = self._pause(reader)
                continue
            with self._changed:
                reader.stream = stream
                if not reader.connected:
                    self._say_link(reader, connected=True)
                reader.lost_since, reader.was_reached = None, True
                reader.quiet_since = reader.found_at = reader.read_at = time.monotonic()
                self._heard[reader] = None
            stream.listen(partial(self._hear, reader))
            if self._closed.is_set():
                stream.close()
            return

    def _pause(self, reader: HostReader) -> float:
        """Return the seconds until the next try of a host; twice as long if it sends nothing new."""
        if reader.place.seq > reader.began_at:
            reader.retry_seconds = FIRST_RETRY_SECONDS
        seconds = reader.retry_seconds * random.uniform(0.8, 1.2)  # noqa: S311
        reader.retry_seconds = min(2 * reader.retry_seconds, MAX_RETRY_SECONDS)
        return seconds

    def _hear(self, reader: HostReader) -> None:
        with self._changed:
            self._heard[reader] = None
            self._changed.notify()

    def _read_heard(self) -> None:
        if not self._heard:
            return
        with self._changed:
            heard, self._heard = self._heard, {}
        for reader in heard:
            self._read(reader)

    def _read(self, reader: HostReader) -> None:
        stream = reader.stream
        if stream is None:
            return
        self._history[reader] = None
        try:
            for _ in range(QUEUED_BATCHES):
                told = reader.in_hand or stream.take(0.0)
                reader.in_hand = None
                if told is None:
                    return
                if not self._has_room(reader):
                    reader.in_hand = told
                    return
                self._take(reader, told, stream.clock_offset)
                if reader.done:
                    break
            else:
                self._heard[reader] = None  # the next ones have their turn before
                return
        except StopIteration:
            # All was sent. Where its end cannot be read it never will be: asked again, it is the same.
            reader.done = bool(reader.unread)
        except NodeError as error:
            self._lost(reader, error)
        reader.stream = None
        stream.close()
        if not (reader.done or self._closed.is_set()):
            self._connect(reader, self._pause(reader))

    def _take(self, reader: HostReader, told: Entries, offset: float) -> None:
        entries = told.entries
        if told.trouble is not None:
            self._tell(trouble_finding(self._run, reader.host, told.trouble))
            reader.troubled_since = time.monotonic() if told.trouble else None
        if told.after is not None and told.after < reader.place.seq:
            self._go_back(reader, told.after)
        if told.unread and reader.unread is None:
            self._tell(unread_finding(self._run, reader.host, told.unread))
        if told.unread:
            reader.unread = (reader.unread or 0) + told.unread
        new = self._news_in(reader, told)
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
        self._tell_gap(reader, gap)
        if new:
            reader.waiting.append(delivered)
            if len(reader.waiting) == 1:
                self._queue(reader, time.monotonic())
            if self._lines is not None and (
                self._lines.of(reader.host)
                or sum(len(entry.text) for entry in entries if isinstance(entry, LogEntry))
                > LINES_AT_ONCE
            ):
                self._let_lines_wait(reader, self._lines)
        reader.done = isinstance(entries[-1], EndEntry)
        reader.read_to, reader.read_at = entries[-1].t + offset, time.monotonic()

    def _tell(self, *news: News) -> None:
        with self._changed:
            self._news += news
            self._changed.notify()

    def _has_room(self, reader: HostReader) -> bool:
        if self._lines is not None and len(reader.waiting) >= QUEUED_BATCHES:
            self._let_lines_wait(reader, self._lines)
        return len(reader.waiting) < QUEUED_BATCHES

    def _let_lines_wait(self, reader: HostReader, lines: WaitingLines) -> None:
        waiting, reader.waiting = reader.waiting, deque()
        begin, reader.begun = reader.begun, 0
        for delivered in waiting:
            told = zip(delivered.entries[begin:], delivered.times[begin:], strict=True)
            begin = 0
            records, left_out = lines.sift(reader.host, told)
            if left_out is not None and not self._left_out_told:
                self._left_out_told = True
                self._tell(lines_finding(self._run, *left_out[:2]))
            if records:
                entries, times = zip(*records, strict=True)
                reader.waiting.append(Delivered(reader.host, (), entries, times, delivered.place))
        self._queue(reader, time.monotonic())

    def _tell_gap(self, reader: HostReader, gap: range) -> None:
        """Report numbers that did not come, unless as many entries came that cannot be read."""
        if len(gap) > (reader.unread or 0):
            self._tell(gap_finding(self._run, reader.host, gap))
        elif reader.unread:
            reader.unread -= len(gap)

    def _go_back(self, reader: HostReader, after: int) -> None:
        """Read on from the last entry that a host's journal shares with the store; keep the entries that it has lost."""
        before = reader.place
        reader.place, reader.retold = before.back_to(after), None
        known = bool(before.journal) or after > 0
        loss = loss_finding(self._run, reader.host, after + 1, before.seq, known=known)
        self._tell(loss, Delivered(reader.host, (), (), (), JournalPlace(after)))

    def _news_in(self, reader: HostReader, told: Entries) -> list[tuple[JournalEntry, bytes]]:
        known = reader.place.seq
        each = zip(told.entries, told.bodies, strict=True)
        fresh = [(entry, body) for entry, body in each if entry.seq > known]
        if not fresh or not reader.place.lost_last:
            return fresh
        if reader.retold is None:
            reader.retold = self._know_again(reader.host, reader.place)
        found = []
        for entry, body in fresh:
            before = json.loads(body)
            news = reader.retold.news_in(before)
            if news is before:
                found.append((entry, body))
            elif news is not None:
                rest: JournalEntry = msgspec.convert(news, threadsafe(JournalEntry))
                found.append((rest, encode_entry(news)))
        return found

    def _lost(self, reader: HostReader, error: NodeError) -> None:
        gone = isinstance(error, RequestError) and error.code == NO_SUCH_RUN
        if reader.connected or gone:
            self._say_link(reader, connected=False, reason=error.message)
        if reader.lost_since is None:
            reader.lost_since = time.monotonic()
        if gone:
            reader.done = True
            self._hear(reader)

    def _say_link(self, reader: HostReader, *, connected: bool, reason: str = "") -> None:
        reader.connected = connected
        self._tell(
            LinkChanged(
                t=time.time(), run=self._run, host=reader.host, connected=connected, reason=reason
            )
        )
