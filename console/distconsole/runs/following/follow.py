"""A run's events as they happen: stored history first, then the nodes' journals, stored as they come, to their end."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from distconsole.model.names import HostName
from distconsole.model.run_events import LinkChanged, RunEvents, RunFinding
from distconsole.rpc.frames import JournalEntry, LogEntry
from distconsole.runs.following.feed import Delivered, JournalFeed, OpenStream
from distconsole.runs.following.findings import full_finding, store_finding
from distconsole.runs.following.freed_memory import return_freed_memory
from distconsole.runs.following.waiting_lines import MOST_BYTES, WaitingLines
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.network_disk import KeeperLock, is_on_network
from distconsole.runs.store.place import BEGINNING, JournalPlace, Retold
from distconsole.runs.store.planned import reducer_of, stored_end
from distconsole.runs.store.run_file import (
    KIND_BYTES,
    PRINTED,
    RunFile,
    RunRecord,
    StoredEntry,
    connect,
)
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import keep_whole, replay, stored_events, stored_timeline

POLL_SECONDS = 0.5
GIVE_UP_SECONDS = 15.0
"""Longest wait for a host without connection once the others have reported the run's end."""
MUTE_SECONDS = 120.0
"""Longest wait for a silent connected host then: one that attends to a run reports its load each second."""
SILENT_SECONDS = 5.0
"""How long to await a host that was away and sends nothing, once it has been reached or not."""
UNORDERED_SECONDS = 2.0
"""An entry that comes later than that of another host by more cannot be added to sums any more."""
RETELL_SECONDS, RETELL_SHARE = 10.0, 20
"""A run is folded again after this long since the last time, or this many times its cost, whichever is longer."""
KEPT_SECONDS = 14 * 86400.0
"""Hosts forget a run this long after its end (``KEEP_RUN_SECONDS`` of the agent)."""


BATCH_ENTRIES = 4096
"""So many are written without waiting for more."""

WAITING_BYTES = 8 * 1024 * 1024
"""So much may wait for the disk; then the feed waits, and behind it the node's journal."""

BATCH_SECONDS = 0.25

ROWS = 4000 if sqlite3.sqlite_version_info >= (3, 32) else 160
"""Rows of one statement, of six values each: SQLite takes 32,766 values, and before that version 999."""

FLUSH_SECONDS = 30.0
"""How long entries that are to be known again may take to the disk."""


def follow(
    store: RunStore,
    record: RunRecord,
    open_stream: OpenStream,
    left: Callable[[], bool] = lambda: False,
    until: Mapping[HostName, JournalPlace] | None = None,
    over: Callable[[], bool] = lambda: False,
    limit_bytes: int | None = None,
    note: Callable[[bool, bool], None] = lambda _behind, _unordered: None,
    retell: Callable[[Iterator[RunEvents]], None] | None = None,
    *,
    whole: bool = False,
) -> Iterator[RunEvents]:
    """Yield a run's events from its beginning, and keep its entries, each once.

    Ends after ``RunEnded``, when ``left`` returns True, or at the entries of ``until``.

    Args:
        record: The run; its hosts' ends make its end.
        left: Asked at least twice a second: True once no consumer wants more.
        until: Host to the place in its journal up to which to read; None reads to the end.
        over: Asked while no host answers: True if the run has ended by another source.
        limit_bytes: The most to store of it; beyond it the ranks' output is left out, and all else kept.
        note: Called with two booleans: more of it has come than was yielded; and a host reported events
            older than ones already yielded, so that sums of these are wrong.
        retell: Called then, once all is read, with all events so far in the order of time; further events go
            on from there. A caller that passes on yielded events gives none, so that none is repeated or lost.
        whole: Every printed line is yielded, each in its place, as it is to ``until``. Else records pass
            lines that the consumer has not taken, and some may be left out, with a notice.
    """
    return_freed_memory()
    reducer = reducer_of(record)
    with store.create(record) as run_file:
        # Not the present end of the file: another console that follows the run may have written on.
        places, stored = run_file.places(), {HostName(host): 0 for host in record.hosts}
        note(True, False)
        lines = None if whole or until is not None else WaitingLines()
        is_long = not record.end and run_file.path.stat().st_size > MOST_BYTES
        yield from replay(run_file, reducer, last=stored, lines=lines if is_long else None)
        if reducer.ended is not None:
            _keep_end(run_file, reducer)
            return
        seen = {host: _place_of(places.get(host), last) for host, last in stored.items()}
        if until is not None and _has_reached(seen, until):
            return
        with closing(Keeping(run_file.path, limit_bytes)) as keeping:
            feed = JournalFeed(
                record.run, open_stream, dict(seen), keeping.keep, keeping.know_again, lines
            )
            fold = _Fold(reducer, retell)
            try:
                for event in _live(feed, fold, over, seen):
                    if event is not None:
                        yield event
                        continue
                    more = feed.has_more and fold.reducer.ended is None
                    if fold.may_retell and not (more or lines) and keeping.is_whole():
                        fold.retell(run_file, seen | feed.given_out())
                    note(more, fold.unordered)
                    yield from keeping.findings(record.run)
                    if left() or (until is not None and _has_reached(seen, until)):
                        break
            finally:
                feed.close()
                keeping.close()
                # For a run without an end, attach fetches the rest.
                why = keeping.failure or _keep_end(run_file, fold.reducer)
        yield from keeping.findings(record.run, why)


def _place_of(place: JournalPlace | None, stored: int) -> JournalPlace:
    """Return the place in a journal up to its last stored entry, number ``stored``."""
    if place is None:
        return JournalPlace(stored)  # the first version followed it
    return place.at(max(place.seq, stored - place.shift), place.journal)


def _keep_end(run_file: RunFile, reducer: RunReducer) -> str:
    """Keep how the run ended, if it did; return why that could not be, or nothing."""
    if reducer.ended is not None:
        try:
            run_file.write_end(msgspec.json.encode(reducer.ended))
        except sqlite3.Error as error:
            return f"{run_file.path} cannot be written: {error}"
    return ""


def _has_reached(
    seen: Mapping[HostName, JournalPlace], until: Mapping[HostName, JournalPlace]
) -> bool:
    """Return True if the store reaches as far; a number of another writer stands for another entry."""
    return all(
        seen.get(host, BEGINNING).seq >= last.seq
        and last.journal in ("", seen.get(host, BEGINNING).journal)
        for host, last in until.items()
    )


class _Fold:
    """The reducer of all that was given out, and whether that was in the order of time."""

    def __init__(
        self, reducer: RunReducer, retell: Callable[[Iterator[RunEvents]], None] | None
    ) -> None:
        self.reducer = reducer
        self.unordered = False
        self._retell = retell
        self._newest, self._host = -math.inf, ""
        self._not_before = 0.0

    def feed(self, host: HostName, entry: JournalEntry, t: float) -> Iterator[RunEvents]:
        if t >= self._newest:
            self._newest, self._host = t, host
        elif (
            t < self._newest - UNORDERED_SECONDS
            and host != self._host
            and not isinstance(entry, LogEntry)  # lines wait for records
        ):
            self.unordered = True
        return self.reducer.feed(host, entry, t)

    @property
    def may_retell(self) -> bool:
        """Return True if a retelling is due; a host that is always late causes one again and again."""
        over = self.reducer.ended is not None
        return (
            self._retell is not None
            and self.unordered
            and (over or time.monotonic() >= self._not_before)
        )

    def retell(self, run_file: RunFile, seen: Mapping[HostName, JournalPlace]) -> None:
        """Fold the stored entries up to ``seen`` again, in the order of time."""
        began, self.unordered = time.monotonic(), False
        last = {host: place.seq + place.shift for host, place in seen.items()}
        self.reducer = reducer_of(run_file.record())
        if self._retell is not None:
            self._retell(stored_events(run_file, (), self.reducer, last))
        took = time.monotonic() - began
        self._not_before = began + max(RETELL_SECONDS, RETELL_SHARE * took)


def _live(
    feed: JournalFeed, fold: _Fold, over: Callable[[], bool], seen: dict[HostName, JournalPlace]
) -> Iterator[RunEvents | None]:
    """Yield events to the run's end; None when for a while nothing came, or after a delivery."""
    heard = time.monotonic()
    while (reducer := fold.reducer).ended is None:
        match news := feed.next(POLL_SECONDS):
            case Delivered():
                heard = time.monotonic()
                for entry, t in zip(news.entries, news.times, strict=True):
                    yield from fold.feed(news.host, entry, t)
                if news.place is not BEGINNING:  # a line that others have passed is at no place
                    seen[news.host] = news.place
            case None:
                seen.update(feed.given_out())
                mute = reducer.judged and time.monotonic() - heard > MUTE_SECONDS
                if mute or _nobody_will_answer(feed, reducer, over):
                    yield from reducer.lost_for_good(time.time())
            case _:
                yield news
        yield None


def _nobody_will_answer(feed: JournalFeed, reducer: RunReducer, over: Callable[[], bool]) -> bool:
    """Return True if the missing hosts will not report more.

    A run without a known end may be going on unseen, and is awaited.
    """
    if feed.exhausted:
        return True
    waiting = [HostName(host) for host in reducer.waiting]
    return feed.lost_seconds(waiting) > GIVE_UP_SECONDS and (reducer.judged or over())


def hosts_to_ask(record: RunRecord, store: RunStore) -> list[HostName]:
    end = stored_end(record)
    if end is None or time.time() - end.t > KEPT_SECONDS:
        return []
    with store.open(record.run) as run_file:
        return run_file.without_end(record.hosts)


def fetch_late(
    store: RunStore, record: RunRecord, hosts: list[HostName], open_stream: OpenStream
) -> dict[HostName, str]:
    """Fetch the entries of ``hosts``, away when a run ended; return why the others could not be asked.

    Raises ConsoleError if the disk refuses.
    """
    away: dict[HostName, str] = {}
    with store.create(record) as run_file:
        known = run_file.places()
        places = {host: _place_of(known.get(host), run_file.last_seq(host)) for host in hosts}
        with closing(Keeping(run_file.path)) as keeping:
            feed = JournalFeed(record.run, open_stream, places, keeping.keep, keeping.know_again)
            with closing(feed):
                while len(away) < len(hosts) and not feed.exhausted and not keeping.failure:
                    news = feed.next(SILENT_SECONDS)
                    if news is None:
                        break  # all present entries have come: the run may go on there
                    if isinstance(news, LinkChanged):
                        away.pop(HostName(news.host), None)
                        if not news.connected:
                            away[HostName(news.host)] = news.reason
        timeline = stored_timeline(run_file)
        if timeline.end is not None:
            run_file.write_end(msgspec.json.encode(timeline.end))
        keep_whole(run_file, timeline)
    return away


class Keeping:
    """Keeps one run's entries while it is followed; threads of the feed use it."""

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self._path = path
        self._limit = limit_bytes
        self._lock = KeeperLock(path) if is_on_network(path) else None
        self._writer = EntryWriter(path, limit_bytes)
        self._told: set[str] = set()

    @property
    def failure(self) -> str:
        """Why the rest is not kept; empty while it is."""
        if self._lock is not None and self._lock.holder:
            return f"{self._lock.holder} keeps this run in {self._path} already"
        return self._writer.failure

    def is_whole(self) -> bool:
        """Whether all entries are in the file now; waits for it."""
        self._writer.flush(FLUSH_SECONDS)
        return not (self.failure or self._writer.left_out or self._writer.is_behind)

    def findings(self, run: str, failure: str = "") -> Iterator[RunFinding]:
        """Yield each reason why entries are not kept, once; ``failure`` concerns the end."""
        found = []
        if failure or self.failure:
            found.append(store_finding(run, self.failure or failure))
        if self._writer.left_out:
            found.append(full_finding(run, self._limit or 0))
        for finding in found:
            if finding.check not in self._told:
                self._told.add(finding.check)
                yield finding

    def close(self) -> None:
        """Write the rest; may be called several times."""
        self._writer.close()
        if self._lock is not None:
            self._lock.close()

    def keep(self, delivered: Delivered) -> None:
        """Keep a delivery, unless another console does."""
        if not self.failure:
            self._writer.put(_rows(delivered), {delivered.host: delivered.place})

    def know_again(self, host: HostName, place: JournalPlace) -> Retold:
        self._writer.flush(FLUSH_SECONDS)
        with RunFile(self._path) as run_file:
            return Retold(run_file.bodies(host, place.lost_first, place.lost_last))


class EntryWriter:
    """Writes entries on its own thread and connection, in batches; ``put`` waits when it is behind.

    A disk that refuses ends the keeping, with the reason in ``failure``. Once the file has ``limit_bytes``, the
    ranks' output is kept no more: ``left_out`` counts its entries.
    """

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self.failure = ""
        self.left_out = 0
        self._path = path
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._entries: list[StoredEntry] = []
        self._waiting_bytes = 0
        self._places: dict[HostName, JournalPlace] = {}
        self._writing = self._hurry = self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"store-{path.stem}", daemon=True)
        self._thread.start()

    def put(
        self,
        entries: Sequence[StoredEntry],
        places: Mapping[HostName, JournalPlace] = MappingProxyType({}),
    ) -> None:
        """Hand entries over, and how far journals are known with them; waits while too much is not on the disk."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure or self._waiting_bytes < WAITING_BYTES)
            if not self.failure:
                self._entries += entries
                self._waiting_bytes += sum(len(entry.body) for entry in entries)
                self._places.update(places)
                self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all entries are in the file, or the disk has refused them."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.failure or not self.is_behind, seconds)

    def close(self) -> None:
        """Write the rest and end; may be called several times."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def is_behind(self) -> bool:
        return bool(self._entries or self._places or self._writing)

    def _run(self) -> None:
        try:
            with closing(connect(self._path)) as db:
                while not self._closed or self.is_behind:
                    self._write(db, *self._next_batch())
                    self._set(writing=False)
        except sqlite3.Error as error:
            self._set(writing=False, failure=f"{self._path} cannot be written: {error}")

    def _set(self, *, writing: bool, failure: str = "") -> None:
        with self._changed:
            self._writing, self.failure = writing, failure
            self._changed.notify_all()

    def _next_batch(self) -> tuple[list[StoredEntry], dict[HostName, JournalPlace]]:
        """Return the entries of ``BATCH_SECONDS``, or sooner if they are large or awaited."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.is_behind)
            self._changed.wait_for(
                lambda: self._closed or self._hurry or len(self._entries) >= BATCH_ENTRIES,
                BATCH_SECONDS,
            )
            batch = self._entries, self._places
            self._entries, self._places, self._hurry = [], {}, False
            self._waiting_bytes, self._writing = 0, True
            self._changed.notify_all()
            return batch

    def _write(
        self,
        db: sqlite3.Connection,
        entries: list[StoredEntry],
        places: Mapping[HostName, JournalPlace],
    ) -> None:
        entries = self._within_limit(entries)
        if entries or places:
            with db:
                _insert(db, "INSERT OR IGNORE INTO entries", entries)
                _insert(
                    db,
                    "INSERT OR REPLACE INTO places",
                    [(host, *place) for host, place in places.items()],
                )

    def _within_limit(self, entries: list[StoredEntry]) -> list[StoredEntry]:
        if self._limit is None or self._size() < self._limit:
            return entries
        kept = [entry for entry in entries if PRINTED not in entry.body[:KIND_BYTES]]
        self.left_out += len(entries) - len(kept)
        return kept

    def _size(self) -> int:
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())


def _insert(db: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert many rows at a time: for each statement the interpreter's lock is given away, and waited for."""
    for begin in range(0, len(rows), ROWS):
        some = rows[begin : begin + ROWS]
        row = f"({', '.join('?' * len(some[0]))})"
        db.execute(
            f"{into} VALUES {', '.join([row] * len(some))}", list(chain.from_iterable(some))
        )


def _rows(delivered: Delivered) -> list[StoredEntry]:
    shift = delivered.place.shift
    return [
        StoredEntry(delivered.host, entry.seq + shift, t, body)
        for entry, body, t in zip(
            delivered.entries, delivered.bodies, delivered.times, strict=True
        )
    ]
