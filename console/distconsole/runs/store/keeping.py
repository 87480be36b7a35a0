"""What a feed delivers, on its way into a run's file, and what that file knows of a host's lost entries."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, Full, Queue
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from distconsole.model.names import HostName
from distconsole.runs.following.feed import Delivered
from distconsole.runs.store.network_disk import KeeperLock, is_on_network
from distconsole.runs.store.place import Place
from distconsole.runs.store.retold import Retold
from distconsole.runs.store.run_file import KIND_BYTES, RunFile, StoredEntry, connect

BATCH_ENTRIES = 4096
BATCH_SECONDS = 0.25
QUEUE_BATCHES = 64
"""Batches that may wait for the disk; then the feed waits, and behind it the node's journal."""
PRINTED = b'"kind":"log"'
CACHE_KIB = 256
"""Pages that a writer holds: it appends, and reads nothing again."""
FLUSH_SECONDS = 30.0
"""How long entries that are to be known again may take to the disk."""


class Keeping:
    """Keeps one run's entries while it is followed; threads of the feed use it."""

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self._path = path
        self._lock = KeeperLock(path) if is_on_network(path) else None
        self._writer = EntryWriter(path, limit_bytes)

    @property
    def failure(self) -> str:
        """Why the rest is not kept; empty while it is."""
        if self._lock is not None and self._lock.holder:
            return f"{self._lock.holder} keeps this run in {self._path} already"
        return self._writer.failure

    @property
    def full(self) -> bool:
        """Whether it has what it may take, so that output is kept no more."""
        return self._writer.left_out > 0

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


class Handed(NamedTuple):
    """What is to be written together."""

    entries: Sequence[StoredEntry]
    places: Mapping[HostName, Place]
    written: threading.Event | None = None
    """Set once it is, and all that was handed over before it."""


class EntryWriter:
    """Writes entries on its own thread and connection, in batches; the feed waits when it is behind.

    A disk that refuses ends the keeping, not the watching: ``failure`` says why. Once the file has
    ``limit_bytes`` what ranks print is kept no more: ``left_out`` counts its entries.
    """

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self.failure: str = ""
        self.left_out = 0
        self.written = 0
        self._path = path
        self._limit = limit_bytes
        self._ended = False
        self._queue: Queue[Handed | None] = Queue(QUEUE_BATCHES)
        self._thread = threading.Thread(target=self._run, name=f"store-{path.stem}", daemon=True)
        self._thread.start()

    def put(
        self,
        entries: Sequence[StoredEntry],
        places: Mapping[HostName, Place] = MappingProxyType({}),
    ) -> None:
        """Hand entries over; waits while ``QUEUE_BATCHES`` batches are not on the disk.

        Args:
            places: How far the journals of their hosts are known with them.
        """
        self._hand(Handed(entries, places))

    def flush(self, seconds: float) -> bool:
        """Wait until what was handed over is in the file; return whether it is."""
        written = threading.Event()
        self._hand(Handed((), {}, written))
        return written.wait(seconds)

    def close(self) -> None:
        """Write what is left and end; may be called several times."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _hand(self, handed: Handed) -> None:
        while not self.failure:
            try:
                self._queue.put(handed, timeout=0.5)
            except Full:
                continue
            return

    def _run(self) -> None:
        try:
            with contextlib.closing(connect(self._path)) as db:
                db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                while not self._ended:
                    self._write(db, self._next_batch())
        except sqlite3.Error as error:
            self.failure = f"{self._path} cannot be written: {error}"
            self._drain()

    def _next_batch(self) -> list[Handed]:
        batch: list[Handed] = []
        entries = 0
        deadline: float | None = None
        while entries < BATCH_ENTRIES:
            wait = None if deadline is None else deadline - time.monotonic()
            if wait is not None and wait <= 0:
                break
            try:
                handed = self._queue.get(timeout=wait)
            except Empty:
                break
            if handed is None:
                self._ended = True
                break
            batch.append(handed)
            entries += len(handed.entries)
            if handed.written is not None:
                break
            deadline = deadline or time.monotonic() + BATCH_SECONDS
        return batch

    def _write(self, db: sqlite3.Connection, batch: Sequence[Handed]) -> None:
        entries = self._within_limit([entry for handed in batch for entry in handed.entries])
        places = {host: place for handed in batch for host, place in handed.places.items()}
        if entries or places:
            with db:
                db.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", entries)
                db.executemany(
                    "INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?)",
                    ((host, *place) for host, place in places.items()),
                )
        self.written += len(entries)
        for handed in batch:
            if handed.written is not None:
                handed.written.set()

    def _within_limit(self, entries: list[StoredEntry]) -> list[StoredEntry]:
        if self._limit is None or self._size() < self._limit:
            return entries
        kept = [entry for entry in entries if PRINTED not in entry.body[:KIND_BYTES]]
        self.left_out += len(entries) - len(kept)
        return kept

    def _size(self) -> int:
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _drain(self) -> None:
        """Take what still comes, so that nobody waits for a writer that is gone."""
        while not self._ended:
            try:
                self._ended = self._queue.get(timeout=0.5) is None
            except Empty:
                return


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
