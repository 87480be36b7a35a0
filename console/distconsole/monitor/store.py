"""What is kept of every run: the nodes' journal entries, one SQLite file a run. It interprets none."""

from __future__ import annotations

import contextlib
import heapq
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

import msgspec

from distconsole.config.spelling import nearest
from distconsole.errors import ConsoleError, RunNotFoundError
from distconsole.model.decoding import threadsafe
from distconsole.model.names import RUN_ID_PATTERN, HostName, RunId
from distconsole.model.requests import Where
from distconsole.model.time_text import TOO_FAR_SECONDS, is_time
from distconsole.monitor.catalogue import Catalogue, stamps_in

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    host TEXT NOT NULL, seq INTEGER NOT NULL, t REAL NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (host, seq)
) WITHOUT ROWID;
"""
BATCH_ENTRIES = 4096
BATCH_SECONDS = 0.25
QUEUE_BATCHES = 64
"""Batches that may wait for the disk; then the feed waits, and behind it the node's journal."""
BUSY_SECONDS = 5.0


class StoredEntry(NamedTuple):
    """One journal entry: ``t`` on the console's clock, ``body`` as the node wrote it (JSON)."""

    host: HostName
    seq: int
    t: float
    body: bytes


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known of a run without reading its entries.

    Attributes:
        started: UNIX seconds.
        hosts: In the order of nodes.
        request: The request as JSON, for ``rerun``; empty for a run that was attached to.
        plan: The ``plan`` event as JSON; empty likewise.
        end: The ``end`` event as JSON; empty while it is not known.
        where: The hosts as they were asked for, to reach them again.
        facts: Host -> fact -> value as JSON, as known when it began; empty for a run that was attached to.
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


class RunStore:
    """The folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalogue = Catalogue(folder)

    def create(self, record: RunRecord) -> RunFile:
        """Begin a run's file (0600, in a folder of 0700), or go on with the one that is there.

        Raises:
            ConsoleError: if the disk refuses.
        """
        path = self._path(record.run)
        known = path.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            with contextlib.closing(_connect(path)) as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(SCHEMA)
            run_file = RunFile(path)
        except (OSError, sqlite3.Error) as error:
            if not known:
                with contextlib.suppress(OSError):
                    self.remove(record.run)
            raise _disk_error(self.folder, error) from None
        run_file.write_record(record)
        return run_file

    def open(self, run: RunId) -> RunFile:
        """Return the file of a run that is there.

        Raises:
            RunNotFoundError: if there is none.
            ConsoleError: if it cannot be read.
        """
        path = self._path(run)
        if not path.exists():
            raise _not_found(run)
        try:
            return RunFile(path)
        except sqlite3.Error as error:
            raise _disk_error(path, error) from None

    def remove(self, run: RunId) -> None:
        """Remove a run's file; one that is not there is no error."""
        path = self._path(run)
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            each.unlink(missing_ok=True)

    def runs(self) -> list[RunRecord]:
        """Return every run, newest first; files that cannot be read are left out."""
        found: list[RunRecord] = []
        for path in self._files():
            with (
                contextlib.suppress(sqlite3.Error, msgspec.MsgspecError),
                RunFile(path) as run_file,
            ):
                found.append(run_file.record())
        return sorted(found, key=lambda record: record.started, reverse=True)

    def names(self) -> list[tuple[float, str, RunId]]:
        """Return start, name and id of every run that can be read; only such are opened as no list has seen."""
        known = self.catalogue.read()
        found: list[tuple[float, str, RunId]] = []
        for run, stamp in stamps_in(self.folder).items():
            kept = known.get(run)
            if kept is not None and kept.stamp == stamp:
                found.append((kept.started, kept.name, RunId(run)))
            elif RUN_ID_PATTERN.match(run):
                with (
                    contextlib.suppress(sqlite3.Error, msgspec.MsgspecError),
                    RunFile(self._path(run)) as run_file,
                ):
                    record = run_file.record()
                    found.append((record.started, record.name, record.run))
        return found

    def resolve(self, wanted: str) -> RunId:
        """Return the run that ``wanted`` means: an id, a unique prefix, a name, or ``last``.

        Of several runs with that name it is the newest.

        Raises:
            RunNotFoundError: if there is none, or a prefix fits several.
        """
        ids = [path.stem for path in self._files()]
        if wanted in ids:
            return RunId(wanted)
        known = sorted(self.names(), reverse=True)
        if wanted == "last":
            if not known:
                raise RunNotFoundError("there are no runs yet", "distconsole run SCRIPT makes one")
            return known[0][2]
        named = [run for _, name, run in known if wanted and name == wanted]
        if named:
            return named[0]
        fitting = sorted(run for run in ids if run.startswith(wanted))
        if len(fitting) == 1:
            return RunId(fitting[0])
        if fitting:
            listed = ", ".join(fitting[:5])
            raise RunNotFoundError(f"{wanted} may be {len(fitting)} runs", f"one of: {listed}")
        raise _not_found(wanted, (*ids, *(name for _, name, _ in known if name)))

    def words(self) -> list[str]:
        """Return what runs are called: ids and names."""
        return [word for _, name, run in self.names() for word in (run, name) if word]

    def _files(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.glob("*.db") if RUN_ID_PATTERN.match(path.stem)]

    def _path(self, run: str) -> Path:
        if not RUN_ID_PATTERN.match(run):
            raise _not_found(run)
        return self.folder / f"{run}.db"


class RunFile:
    """One run's file: records, cursors, entries. One thread uses it; ``EntryWriter`` has its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: dict[str, str] = {}
        """Host -> why some of its entries could not be read, so far; an empty name stands for all."""
        self._db = _connect(path)

    def __enter__(self) -> RunFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called several times."""
        self._db.close()

    def record(self) -> RunRecord:
        """Return what is known of the run."""
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
        )

    def write_record(self, record: RunRecord) -> None:
        """Keep what is known of the run; empty fields leave what was there."""
        fields = {
            "name": record.name,
            "started": record.started,
            "hosts": record.hosts,
            "where": record.where,
        }
        rows: list[tuple[str, bytes]] = [("record", msgspec.json.encode(fields))]
        for key in ("request", "plan", "end", "facts"):
            value: bytes = getattr(record, key)
            if value:
                rows.append((key, value))
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def write_end(self, end: bytes) -> None:
        """Keep the run's last event."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('end', ?)", (end,))

    def kept_summary(self, *, whole: bool = False) -> bytes:
        """Return what ``keep_summary`` kept; empty if nothing.

        Args:
            whole: Only one that was made of all entries.
        """
        key = "whole_summary" if whole else "summary"
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return bytes(found[0]) if found is not None else b""

    def keep_summary(self, summary: bytes, *, whole: bool = False) -> None:
        """Keep a summary of a run that is over, so that it need not be made again.

        Args:
            whole: It was made of all entries, not of the last ones.
        """
        keys = ("summary", "whole_summary") if whole else ("summary",)
        with self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, summary) for key in keys]
            )

    def tail(self, hosts: Sequence[str], each: int) -> Iterator[StoredEntry]:
        """Yield the last ``each`` entries of every host, by time."""
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
        newest = "SELECT t FROM entries WHERE host = ? ORDER BY seq DESC LIMIT 1"
        rows = []
        for host in hosts:
            with contextlib.suppress(sqlite3.DatabaseError):  # a damaged part of the file
                rows.append(self._db.execute(newest, (host,)).fetchone())
        return max((row[0] for row in rows if row and is_time(row[0])), default=None)

    def _first_seen(self) -> float:
        """Return the time of the oldest entry that has one (UNIX seconds), or 0."""
        oldest = "SELECT min(t) FROM entries WHERE t BETWEEN ? AND ?"
        with contextlib.suppress(sqlite3.DatabaseError):
            far = TOO_FAR_SECONDS - 1
            return self._db.execute(oldest, (-far, far)).fetchone()[0] or 0.0
        return 0.0

    def entries(self, after: Mapping[str, int] | None = None) -> Iterator[StoredEntry]:
        """Yield all entries by time, or those ``after`` a number of each host; of one host in order of
        their numbers.

        A host's clock may be set back, so its order is kept by number and only the hosts are merged
        by time. What lies on a damaged part of the file is left out, and ``damage`` says so.
        """
        begun = after or {}
        hosts = [self._of_host(host, begun.get(host, 0)) for host in self._hosts()]
        yield from heapq.merge(*hosts, key=lambda entry: (entry.t, entry.host))

    def count(self) -> int:
        """Return how many entries there are; 0 where the file is too damaged to count them."""
        try:
            return int(self._db.execute("SELECT count(*) FROM entries").fetchone()[0])
        except sqlite3.DatabaseError as error:
            self.damage[""] = str(error)
            return 0

    def _hosts(self) -> list[str]:
        try:
            return [row[0] for row in self._db.execute("SELECT DISTINCT host FROM entries")]
        except sqlite3.DatabaseError as error:
            self.damage[""] = str(error)
            return list(self.record().hosts)

    def _of_host(self, host: str, last: int) -> Iterator[StoredEntry]:
        rows = "SELECT seq, t, body FROM entries WHERE host = ? AND seq > ? ORDER BY seq"
        try:
            for entry in _entries(host, self._db.execute(rows, (host, last))):
                last = entry.seq
                yield entry
        except sqlite3.DatabaseError as error:
            self.damage[host] = str(error)
            yield from self._behind_damage(host, last)

    def _behind_damage(self, host: str, last: int) -> Iterator[StoredEntry]:
        """Yield what can be read of a host's entries after a damaged part of the file."""
        rows = "SELECT seq, t, body FROM entries WHERE host = ? AND seq > ? ORDER BY seq DESC"
        found: list[tuple[int, float, bytes]] = []
        with contextlib.suppress(sqlite3.DatabaseError):
            found.extend(self._db.execute(rows, (host, last)))
        yield from _entries(host, reversed(found))


WRITER_CACHE_KIB = 256
"""Pages that a writer holds: it appends, and reads nothing again."""


class EntryWriter:
    """Writes entries on its own thread and connection, in batches; the feed waits when it is behind.

    A disk that refuses ends the keeping, not the watching: ``failure`` says why.
    """

    def __init__(self, path: Path) -> None:
        self.failure: str = ""
        self.written = 0
        self._path = path
        self._ended = False
        self._queue: Queue[Sequence[StoredEntry] | None] = Queue(QUEUE_BATCHES)
        self._thread = threading.Thread(target=self._run, name=f"store-{path.stem}", daemon=True)
        self._thread.start()

    def put(self, entries: Sequence[StoredEntry]) -> None:
        """Hand entries over; waits while ``QUEUE_BATCHES`` batches are not on the disk."""
        while not self.failure:
            try:
                self._queue.put(entries, timeout=0.5)
            except Full:
                continue
            return

    def close(self) -> None:
        """Write what is left and end; may be called several times."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        try:
            with contextlib.closing(_connect(self._path)) as db:
                db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
                while not self._ended:
                    self._write(db, self._next_batch())
        except sqlite3.Error as error:
            self.failure = f"{self._path} cannot be written: {error}"
            self._drain()

    def _next_batch(self) -> list[StoredEntry]:
        batch: list[StoredEntry] = []
        deadline: float | None = None
        while len(batch) < BATCH_ENTRIES:
            wait = None if deadline is None else deadline - time.monotonic()
            if wait is not None and wait <= 0:
                break
            try:
                entries = self._queue.get(timeout=wait)
            except Empty:
                break
            if entries is None:
                self._ended = True
                break
            batch.extend(entries)
            deadline = deadline or time.monotonic() + BATCH_SECONDS
        return batch

    def _write(self, db: sqlite3.Connection, batch: Sequence[StoredEntry]) -> None:
        if not batch:
            return
        with db:
            db.executemany(
                "INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)",
                ((entry.host, entry.seq, entry.t, entry.body) for entry in batch),
            )
        self.written += len(batch)

    def _drain(self) -> None:
        """Take what still comes, so that nobody waits for a writer that is gone."""
        while not self._ended:
            try:
                self._ended = self._queue.get(timeout=0.5) is None
            except Empty:
                return


def _entries(host: str, rows: Iterable[tuple[int, float, bytes]]) -> Iterator[StoredEntry]:
    """Yield a host's rows as entries; one that is at no moment is at that of the one before it."""
    before = 0.0
    for seq, t, body in rows:
        before = t if is_time(t) else before
        yield StoredEntry(HostName(host), seq, before, body)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    db.execute("PRAGMA synchronous=NORMAL")
    return db


def _not_found(wanted: str, known: Iterable[str] = ()) -> RunNotFoundError:
    shown = re.sub(r"[^ -~]", "?", wanted)[:80]
    hint = f"{meant(wanted, known)}distconsole runs lists them"
    return RunNotFoundError(f"there is no run {shown}", hint)


def meant(wanted: str, known: Iterable[str]) -> str:
    """Return which of the ``known`` runs may have been meant, as the beginning of a hint; or nothing."""
    near = nearest(wanted[:80], (*known, "last"))
    return f"did you mean {near}? " if near else ""


def _disk_error(path: Path, error: Exception) -> ConsoleError:
    return ConsoleError(
        f"{path} cannot be used: {error}",
        "make room there; on Linux XDG_DATA_HOME names another place",
    )
