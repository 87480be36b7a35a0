"""Listings of folders, read in threads, so that a file system that hangs holds up only its own names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from distconsole.grammar.completion.complete import Listing, read_folder

PATIENCE_SECONDS = 0.03
"""A key is answered well within 50 ms."""
FRESH_SECONDS = 2.0
MAX_ENTRIES = 20_000
MAX_READING = 8
"""So many folders may hang before no further one is read."""


class Folders:
    """A ``Listing`` that never blocks for longer than ``PATIENCE_SECONDS``.

    Args:
        came: Called from a thread when a folder was read that somebody did not wait for.
    """

    def __init__(self, came: Callable[[], None], read: Listing = read_folder) -> None:
        self._came = came
        self._read = read
        self._kept: dict[Path, tuple[float, list[tuple[str, bool]]]] = {}
        self._reading: dict[Path, threading.Thread] = {}
        self.waiting = ""
        """The folder that the last listing was asked of and that has not answered, or nothing."""

    def list(
        self, folder: Path, patience_seconds: float = PATIENCE_SECONDS
    ) -> Iterable[tuple[str, bool]]:
        """Return the entries of ``folder``, or what was known of it, or nothing yet."""
        self.waiting = ""
        at, entries = self._kept.get(folder, (float("-inf"), []))
        if time.monotonic() - at < FRESH_SECONDS:
            return entries
        self.waiting = str(folder)
        reader = self._reading.get(folder)
        if reader is None:
            if len(self._reading) >= MAX_READING:
                return entries
            reader = threading.Thread(
                target=self._work, args=(folder,), name="folder", daemon=True
            )
            self._reading[folder] = reader
            reader.start()
        reader.join(patience_seconds)
        if not reader.is_alive():
            self.waiting = ""
        return self._kept.get(folder, (0.0, entries))[1]

    def glance(self, folder: Path) -> Iterable[tuple[str, bool]]:
        """As ``list``, without waiting."""
        return self.list(folder, 0.0)

    def _work(self, folder: Path) -> None:
        entries = list(islice(self._read(folder), MAX_ENTRIES))
        if len(self._kept) > MAX_READING:
            self._kept = {}
        self._kept[folder] = (time.monotonic(), entries)
        del self._reading[folder]
        if self.waiting == str(folder):
            self._came()
