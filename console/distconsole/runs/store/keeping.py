"""What a feed delivers, on its way into a run's file, and what that file knows of a host's lost entries."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from distconsole.model.names import HostName
from distconsole.model.run_events import RunFinding
from distconsole.runs.following.feed import Delivered
from distconsole.runs.following.findings import full_finding, store_finding
from distconsole.runs.store.network_disk import KeeperLock, is_on_network
from distconsole.runs.store.place import Place, Retold
from distconsole.runs.store.run_file import KIND_BYTES, RunFile, StoredEntry, connect

BATCH_ENTRIES = 4096
"""So many may wait for the disk; then the feed waits, and behind it the node's journal."""
BATCH_SECONDS = 0.25
PRINTED = b'"kind":"log"'
FLUSH_SECONDS = 30.0
"""How long entries that are to be known again may take to the disk."""


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

    def findings(self, run: str, failure: str = "") -> Iterator[RunFinding]:
        """Yield what is not kept, each once; ``failure`` is why the end is not."""
        found = []
        if failure or self.failure:
            found.append(store_finding(run, self.failure or failure))
        if self._writer.left_out:
            found.append(full_finding(run, self._limit or 0))
        for finding in found:
            if finding.check not in self._told:
                self._told.add(finding.check)
                yield finding

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left; may be called several times."""
        self._writer.close()
        if self._lock is not None:
            self._lock.close()

    def keep(self, delivered: Delivered) -> None:
        """Keep a delivery, unless somebody else does."""
        if not self.failure:
            self._writer.put(_rows(delivered), {delivered.host: delivered.place})

    def know_again(self, host: HostName, place: Place) -> Retold:
        """Return what a host told and its journal has lost."""
        self._writer.flush(FLUSH_SECONDS)
        with RunFile(self._path) as run_file:
            return Retold(run_file.bodies(host, place.lost_first, place.lost_last))


class EntryWriter:
    """Writes entries on its own thread and connection, in batches; who puts waits when it is behind.

    A disk that refuses ends the keeping: ``failure`` says why. Once the file has ``limit_bytes``, what ranks
    print is kept no more: ``left_out`` counts its entries.
    """

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self.failure = ""
        self.left_out = 0
        self._path = path
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._entries: list[StoredEntry] = []
        self._places: dict[HostName, Place] = {}
        self._writing = self._hurry = self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"store-{path.stem}", daemon=True)
        self._thread.start()

    def put(
        self,
        entries: Sequence[StoredEntry],
        places: Mapping[HostName, Place] = MappingProxyType({}),
    ) -> None:
        """Hand entries over, and how far journals are known with them; waits while too much is not on the disk."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure or len(self._entries) < BATCH_ENTRIES)
            if not self.failure:
                self._entries += entries
                self._places.update(places)
                self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until what was handed over is in the file, or the disk has refused it."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.failure or not self._is_behind, seconds)

    def close(self) -> None:
        """Write what is left and end; may be called several times."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def _is_behind(self) -> bool:
        return bool(self._entries or self._places or self._writing)

    def _run(self) -> None:
        try:
            with contextlib.closing(connect(self._path)) as db:
                while not self._closed or self._is_behind:
                    self._write(db, *self._next_batch())
                    self._set(writing=False)
        except sqlite3.Error as error:
            self._set(writing=False, failure=f"{self._path} cannot be written: {error}")

    def _set(self, *, writing: bool, failure: str = "") -> None:
        with self._changed:
            self._writing, self.failure = writing, failure
            self._changed.notify_all()

    def _next_batch(self) -> tuple[list[StoredEntry], dict[HostName, Place]]:
        """Return what came in ``BATCH_SECONDS``, or sooner where it is much or somebody waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_behind)
            self._changed.wait_for(
                lambda: self._closed or self._hurry or len(self._entries) >= BATCH_ENTRIES,
                BATCH_SECONDS,
            )
            batch = self._entries, self._places
            self._entries, self._places, self._hurry = [], {}, False
            self._writing = True
            return batch

    def _write(
        self,
        db: sqlite3.Connection,
        entries: list[StoredEntry],
        places: Mapping[HostName, Place],
    ) -> None:
        entries = self._within_limit(entries)
        if entries or places:
            with db:
                db.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", entries)
                db.executemany(
                    "INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?)",
                    ((host, *place) for host, place in places.items()),
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


def encode_entry(body: dict[str, Any]) -> bytes:
    """Return an entry as it is stored: the JSON that the node sent, NaN included."""
    return json.dumps(body, separators=(",", ":")).encode()


def _rows(delivered: Delivered) -> list[StoredEntry]:
    shift = delivered.place.shift
    return [
        StoredEntry(delivered.host, entry.seq + shift, t, encode_entry(body))
        for entry, body, t in zip(
            delivered.entries, delivered.bodies, delivered.times, strict=True
        )
    ]
