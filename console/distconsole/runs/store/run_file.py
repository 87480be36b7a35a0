"""One run on the disk: its record, and the journal entries of its nodes."""

from __future__ import annotations

import contextlib
import heapq
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Where
from distconsole.model.time_text import TOO_FAR_SECONDS, is_time
from distconsole.runs.store.network_disk import is_on_network
from distconsole.runs.store.place import JournalPlace

SCHEMA_VERSION = 1
"""``PRAGMA user_version`` of a file; 0 is the first version's, which has no places."""

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    host TEXT NOT NULL, seq INTEGER NOT NULL, t REAL NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (host, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS places (
    host TEXT PRIMARY KEY, seq INTEGER NOT NULL, journal TEXT NOT NULL, shift INTEGER NOT NULL,
    lost_first INTEGER NOT NULL, lost_last INTEGER NOT NULL
) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
HOSTS = """
WITH RECURSIVE named (host) AS (
    SELECT min(host) FROM entries
    UNION ALL
    SELECT (SELECT min(host) FROM entries WHERE host > named.host) FROM named WHERE named.host IS NOT NULL
) SELECT host FROM named WHERE host IS NOT NULL
"""
"""The hosts, each looked up behind the one before: ``DISTINCT`` would read all entries."""
BUSY_SECONDS = 5.0
KIND_BYTES = 80
"""Agents write an entry's kind behind its number and its time, within this many bytes."""
PRINTED = b'"kind":"log"'
"""In the entries of printed lines, which are most of them and the longest."""
NEAR_ENTRIES, NEAR_BYTES = 32, 1 << 16
"""Entries and bytes that are read at each place of a journal: a second of eight ranks, and no more of a flood."""
NO_ROOM = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
)
"""SQLite's message if the folder has no room for the memory that users of a file share."""


class NewerFileError(sqlite3.DatabaseError):
    """A file of a newer version of this program, which this one would misread."""

    sqlite_errorcode = sqlite3.SQLITE_MISMATCH


class StoredEntry(NamedTuple):
    """One journal entry: ``t`` on the console's clock, ``body`` as the node wrote it (JSON)."""

    host: HostName
    seq: int
    t: float
    body: bytes


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run without its entries; JSON is empty if unknown.

    Attributes:
        started: UNIX seconds.
        hosts: In the order of nodes.
        request: As JSON, for ``rerun``; as ``plan`` and ``facts``, not of a run that was attached to.
        plan, end: The events as JSON.
        where: The hosts as they were asked for, to reach them again.
        facts: Host -> fact -> value as JSON, as known when it began.
        earlier: Result of ``earlier`` on the runs before it, as JSON.
    """

    run: RunId
    name: str = ""
    started: float = 0.0
    hosts: tuple[str, ...] = ()
    request: bytes = b""
    plan: bytes = b""
    end: bytes = b""
    where: Where = field(default_factory=Where)
    facts: bytes = b""
    earlier: bytes = b""


def lay_out(path: Path) -> None:
    """Make the file's tables, and those that a file of an older version lacks.

    Raises sqlite3.Error if the disk refuses, or the file is none of ours, or of a newer version.
    """
    with contextlib.closing(connect(path)) as db:
        if _schema_version(db) < SCHEMA_VERSION:
            db.executescript(SCHEMA)
        # A file on a network disk cannot share memory between machines.
        shared = is_on_network(path)
        db.execute(f"PRAGMA journal_mode={'TRUNCATE' if shared else 'WAL'}")


def connect(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Return a connection to a run's file, for any thread, one at a time; ``alone`` keeps others out."""
    # Statements of as many rows as there are differ each time: 128 of them were kept, with 120 MB.
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False, cached_statements=0)
    try:
        if alone:
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
        # A write-ahead log is sound after a power cut, though its last seconds may be missing.
        if not is_on_network(path):
            db.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def _readable(path: Path) -> sqlite3.Connection:
    """Return a connection to a run's file that was tried; on a full disk one that keeps others out."""
    try:
        return _try_reading(connect(path))
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in NO_ROOM:
            raise
    return _try_reading(connect(path, alone=True))


def _try_reading(db: sqlite3.Connection) -> sqlite3.Connection:
    try:
        _schema_version(db)
        db.execute("SELECT 1 FROM meta LIMIT 1")
    except BaseException:
        db.close()
        raise
    return db


def _schema_version(db: sqlite3.Connection) -> int:
    """Return the version of a file; raises NewerFileError if this program does not know it."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise NewerFileError(
            f"it is of a newer version of distconsole (schema {version}, this one knows "
            f"{SCHEMA_VERSION})"
        )
    return version


class RunFile:
    """One run's file: records, cursors, entries. One thread uses it; an ``EntryWriter`` has a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: dict[str, str] = {}
        """Host -> why some of its entries could not be read, so far; an empty name stands for all."""
        self._db = _readable(path)

    def __enter__(self) -> RunFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called several times."""
        self._db.close()

    def record(self) -> RunRecord:
        rows = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
        fields = msgspec.json.decode(rows.get("record", b"{}"), type=threadsafe(dict[str, Any]))
        started = fields.get("started", 0.0)
        return RunRecord(
            run=RunId(self.path.stem),
            name=fields.get("name", ""),
            started=started if is_time(started) else self._first_seen(),
            hosts=tuple(fields.get("hosts", ())),
            request=rows.get("request", b""),
            plan=rows.get("plan", b""),
            end=rows.get("end", b""),
            where=msgspec.convert(fields.get("where", {}), threadsafe(Where)),
            facts=rows.get("facts", b""),
            earlier=rows.get("earlier", b""),
        )

    def write_record(self, record: RunRecord) -> None:
        """Keep the record of the run; empty fields leave the stored value."""
        fields = {
            "name": record.name,
            "started": record.started,
            "hosts": record.hosts,
            "where": record.where,
        }
        rows: list[tuple[str, bytes]] = [("record", msgspec.json.encode(fields))]
        for key in ("request", "plan", "end", "facts", "earlier"):
            value: bytes = getattr(record, key)
            if value:
                rows.append((key, value))
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def write_end(self, end: bytes) -> None:
        """Keep the run's last event, and all that was kept before it, however the power goes."""
        self._db.execute("PRAGMA synchronous=FULL")
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('end', ?)", (end,))

    def kept_summary(self) -> bytes:
        found = self._db.execute("SELECT value FROM meta WHERE key = 'whole_summary'").fetchone()
        return bytes(found[0]) if found is not None else b""

    def keep_summary(self, summary: bytes) -> None:
        """Keep a summary of a run that is over, so that it need not be made again."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('whole_summary', ?)", (summary,))

    def tail(self, hosts: Sequence[str], each: int) -> Iterator[StoredEntry]:
        newest = (
            "SELECT seq, t, body FROM (SELECT seq, t, body FROM entries WHERE host = ? "
            "ORDER BY seq DESC LIMIT ?) ORDER BY seq"
        )
        rows = [
            list(_entries(host, self._db.execute(newest, (host, each)).fetchall()))
            for host in hosts
        ]
        yield from heapq.merge(*rows, key=lambda entry: (entry.t, entry.host))

    def last_seen(self, hosts: Sequence[str]) -> float | None:
        """Return the time of the last entry of ``hosts`` (UNIX seconds); None without any."""
        times = []
        for host in hosts:
            with contextlib.suppress(sqlite3.DatabaseError):  # a damaged part of the file
                times.append(self._newest(host).t)
        return max(filter(is_time, times), default=None)

    def _first_seen(self) -> float:
        """Return the time of the oldest entry that has one (UNIX seconds), or 0."""
        oldest = "SELECT min(t) FROM entries WHERE t BETWEEN ? AND ?"
        with contextlib.suppress(sqlite3.DatabaseError):
            far = TOO_FAR_SECONDS - 1
            return self._db.execute(oldest, (-far, far)).fetchone()[0] or 0.0
        return 0.0

    def entries(
        self, after: Mapping[str, int] | None = None, until: Mapping[HostName, int] | None = None
    ) -> Iterator[StoredEntry]:
        """Yield all entries by time, or those ``after`` a number of each host, or up to one; of one host
        in order of their numbers.

        A host's clock may be set back, so its order is kept by number and only the hosts are merged
        by time. Entries on a damaged part of the file are left out, and ``damage`` reports it.
        """
        begun = after or {}
        hosts = [self._of_host(host, begun.get(host, 0)) for host in self._hosts()]
        for entry in heapq.merge(*hosts, key=itemgetter(2)):
            if until is None or entry.seq <= until.get(entry.host, 0):
                yield entry

    def places(self) -> dict[HostName, JournalPlace]:
        """Return how far the hosts' journals are known; nothing of hosts that the first version followed."""
        with contextlib.suppress(sqlite3.OperationalError):  # no table: of the first version
            rows = self._db.execute(
                "SELECT host, seq, journal, shift, lost_first, lost_last FROM places"
            )
            return {HostName(host): JournalPlace(*place) for host, *place in rows}
        return {}

    def bodies(self, host: str, first: int, last: int) -> Iterator[bytes]:
        wanted = "SELECT body FROM entries WHERE host = ? AND seq BETWEEN ? AND ? ORDER BY seq"
        for (body,) in self._db.execute(wanted, (host, first, last)):
            yield body

    def spread_windows(self, host: str, most: int) -> Iterator[StoredEntry]:
        """Yield windows of at most ``most`` places that are spread evenly over a host's entries; the rest is not read."""
        ends = "SELECT min(seq), max(seq) FROM entries WHERE host = ?"
        first, last = self._db.execute(ends, (host,)).fetchone()
        if first is None:
            return
        places = dict.fromkeys(first + (last - first) * place // most for place in range(most))
        near = "SELECT seq, t, body FROM entries WHERE host = ? AND seq >= ? ORDER BY seq LIMIT ?"
        read = -1
        for place in places:
            room = NEAR_BYTES
            for entry in _entries(host, self._db.execute(near, (host, place, NEAR_ENTRIES))):
                room -= len(entry.body)
                if entry.seq > read and b'"kind":"window"' in entry.body[:KIND_BYTES]:
                    yield entry
                read = max(read, entry.seq)
                if room < 0:
                    break

    def last_seq(self, host: str) -> int:
        """Return the number of a host's last entry; 0 without any."""
        return self._newest(host).seq

    def without_end(self, hosts: Sequence[str]) -> list[HostName]:
        """Return those of ``hosts`` whose last entry is not stored; none of a damaged file."""
        with contextlib.suppress(sqlite3.DatabaseError):
            return [
                HostName(host)
                for host in hosts
                if b'"kind":"end"' not in self._newest(host).body[:KIND_BYTES]
            ]
        return []

    def _newest(self, host: str) -> StoredEntry:
        """Return a host's last entry; without any, one with number 0 and no time."""
        newest = "SELECT seq, t, body FROM entries WHERE host = ? ORDER BY seq DESC LIMIT 1"
        row = self._db.execute(newest, (host,)).fetchone()
        return StoredEntry(HostName(host), *(row or (0, math.nan, b"")))

    def count(self) -> int:
        """Return the number of entries; 0 if the file is too damaged to count them."""
        try:
            return int(self._db.execute("SELECT count(*) FROM entries").fetchone()[0])
        except sqlite3.DatabaseError as error:
            self.damage[""] = str(error)
            return 0

    def _hosts(self) -> list[str]:
        try:
            hosts = [row[0] for row in self._db.execute(HOSTS)]
        except sqlite3.DatabaseError as error:
            self.damage[""] = str(error)
            return sorted(self.record().hosts)
        named = [host for host in hosts if isinstance(host, str)]
        if named != hosts:
            self.damage[""] = "entries whose host is no name"
        return named

    def _of_host(self, host: str, last: int) -> Iterator[StoredEntry]:
        rows = "SELECT seq, t, body FROM entries WHERE host = ? AND seq > ? ORDER BY seq"
        try:
            for entry in _entries(host, self._db.execute(rows, (host, last))):
                last = entry.seq
                yield entry
        except sqlite3.DatabaseError as error:
            self.damage[host] = str(error)
            rows = "SELECT seq, t, body FROM entries WHERE host = ? AND seq > ? ORDER BY seq DESC"
            found: list[tuple[int, float, bytes]] = []
            with contextlib.suppress(sqlite3.DatabaseError):
                found.extend(self._db.execute(rows, (host, last)))
            yield from _entries(host, reversed(found))


def _entries(host: str, rows: Iterable[tuple[int, float, bytes]]) -> Iterator[StoredEntry]:
    """Yield a host's rows as entries; one that is at no moment is at that of the one before it.

    A damaged file may have anything in place of a body.
    """
    # Half the time of StoredEntry._make.
    before, name, made = 0.0, HostName(host), partial(tuple.__new__, StoredEntry)
    for seq, t, body in rows:
        before = t if is_time(t) else before
        yield made((name, seq, before, body if type(body) is bytes else b""))
