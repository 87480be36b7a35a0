"""Writes journal entries into a run's file, behind the feed. It reads none."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Full, Queue

from distconsole.monitor.run_file import StoredEntry, connect

BATCH_ENTRIES = 4096
BATCH_SECONDS = 0.25
QUEUE_BATCHES = 64
"""Batches that may wait for the disk; then the feed waits, and behind it the node's journal."""
CACHE_KIB = 256
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
            with contextlib.closing(connect(self._path)) as db:
                db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
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
