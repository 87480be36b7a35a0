"""Listings of folders, read in threads: a file system that hangs holds up nothing but its own names."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
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
MAX_KEPT = 32


class Folders:
    """A ``Listing`` that never blocks for longer than ``PATIENCE_SECONDS``.

    Args:
        came: Called from a thread when a folder was read that somebody did not wait for.
        read: What reads a folder.
    """

    def __init__(self, came: Callable[[], None], read: Listing = read_folder) -> None:
        self._came = came
        self._read = read
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, tuple[float, list[tuple[str, bool]]]] = OrderedDict()
        self._reading: dict[Path, threading.Event] = {}
        self.waiting = ""
        """The folder that the last listing was asked of and that has not answered, or nothing."""

    def list(self, folder: Path) -> Iterable[tuple[str, bool]]:
        """Return the entries of ``folder``, or what was known of it, or nothing yet."""
        return self._known(folder, PATIENCE_SECONDS)

    def glance(self, folder: Path) -> Iterable[tuple[str, bool]]:
        """As ``list``, without waiting."""
        return self._known(folder, 0.0)

    def _known(self, folder: Path, patience_seconds: float) -> Iterable[tuple[str, bool]]:
        with self._lock:
            self.waiting = ""
            at, entries = self._kept.get(folder, (float("-inf"), []))
            if time.monotonic() - at < FRESH_SECONDS:
                return entries
            done = self._reading.get(folder)
            if done is None:
                if len(self._reading) >= MAX_READING:
                    self.waiting = str(folder)
                    return entries
                done = self._reading[folder] = threading.Event()
                threading.Thread(
                    target=self._work, args=(folder, done), name="folder", daemon=True
                ).start()
        if patience_seconds:
            done.wait(patience_seconds)
        with self._lock:
            if folder in self._reading:
                self.waiting = str(folder)
            return self._kept.get(folder, (0.0, entries))[1]

    def _work(self, folder: Path, done: threading.Event) -> None:
        entries = list(islice(self._read(folder), MAX_ENTRIES))
        with self._lock:
            self._kept[folder] = (time.monotonic(), entries)
            self._kept.move_to_end(folder)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            del self._reading[folder]
            late = self.waiting == str(folder)
        done.set()
        if late:
            self._came()
