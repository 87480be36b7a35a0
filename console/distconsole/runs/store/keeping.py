"""What a feed delivers, on its way into a run's file, and what that file knows of a host's lost entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from distconsole.model.names import HostName
from distconsole.runs.following.news import Delivered
from distconsole.runs.store.entry_writer import EntryWriter
from distconsole.runs.store.keeper_lock import KeeperLock
from distconsole.runs.store.network_disk import is_on_network
from distconsole.runs.store.place import Place
from distconsole.runs.store.retold import Retold
from distconsole.runs.store.run_file import RunFile, StoredEntry

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
            self._writer.put(to_store(delivered), {delivered.host: delivered.place})

    def know_again(self, host: HostName, place: Place) -> Retold:
        """Return what a host told and its journal has lost."""
        self._writer.flush(FLUSH_SECONDS)
        with RunFile(self._path) as run_file:
            return Retold(run_file.bodies(host, place.lost_first, place.lost_last))


def encode_entry(body: dict[str, Any]) -> bytes:
    """Return an entry as it is stored: the JSON that the node sent, NaN included."""
    return json.dumps(body, separators=(",", ":")).encode()


def to_store(delivered: Delivered) -> list[StoredEntry]:
    """Return a delivery as rows."""
    shift = delivered.place.shift
    return [
        StoredEntry(delivered.host, entry.seq + shift, t, encode_entry(body))
        for entry, body, t in zip(
            delivered.entries, delivered.bodies, delivered.times, strict=True
        )
    ]
