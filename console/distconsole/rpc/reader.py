"""One thread reads from all nodes: it waits for all of them at once, and never for one.

A thread for each node would be woken for each of its lines, and a thousand that wait for the interpreter's lock leave no
time to its holder.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from contextlib import suppress
from typing import Protocol

TICK_SECONDS = 0.5
"""Seconds between two checks of each for too long a silence."""

MANY, REST_SECONDS = 64, 0.005
"""From this many sources on there is always news: read together, they wake the consumer once and not for each."""


class Source(Protocol):
    """A node's stream; both methods are called on the reader's thread, wait for nothing and do not raise."""

    @property
    def waits_on(self) -> tuple[int, ...]:
        """The descriptors that become readable when there is something; they are open until ``Reader.remove``."""
        ...

    def read(self) -> None: ...

    def look(self) -> None:
        """Check for too long a silence."""
        ...


class LinkReader:
    """May be used from any thread; its own one is there while anything is to be read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[Source, tuple[int, ...]] = {}
        self._selector: selectors.BaseSelector | None = None
        self._thread: threading.Thread | None = None
        self._stop = -1

    def add(self, source: Source) -> None:
        with self._lock:
            if self._thread is None:
                self._begin()
            self._sources[source] = ()
        self._watch(source)

    def remove(self, source: Source) -> None:
        """Read it no longer; may be called repeatedly, on the reader's thread too."""
        with self._lock:
            self._forget(self._sources.pop(source, ()))
            ended = self._thread
            if self._sources or ended is None:
                return
            self._thread = self._selector = None
            os.close(self._stop)
        if ended is not threading.current_thread():
            ended.join()

    def _begin(self) -> None:
        stopped, self._stop = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(
            target=self._run, args=(self._selector, stopped), name="link reader", daemon=True
        )
        self._thread.start()

    def _run(self, selector: selectors.BaseSelector, stopped: int) -> None:
        due = time.monotonic() + TICK_SECONDS
        while True:
            if len(self._sources) > MANY:
                time.sleep(REST_SECONDS)
            for key, _ in selector.select(max(0.0, due - time.monotonic())):
                source: Source | None = key.data
                if source is None:
                    selector.close()
                    os.close(stopped)
                    return
                source.read()
                if source.waits_on != self._sources.get(source):
                    self._watch(source)
            if (now := time.monotonic()) >= due:
                due = now + TICK_SECONDS
                with self._lock:
                    sources = list(self._sources)
                for source in sources:
                    source.look()

    def _watch(self, source: Source) -> None:
        """Wait on its present descriptors: one of its streams may have ended."""
        with self._lock:
            if source not in self._sources or self._selector is None:
                return
            self._forget(self._sources[source])
            self._sources[source] = source.waits_on
            for descriptor in self._sources[source]:
                # Closed meanwhile: then ``look`` finds out.
                with suppress(OSError, ValueError):
                    self._selector.register(descriptor, selectors.EVENT_READ, source)

    def _forget(self, descriptors: tuple[int, ...]) -> None:
        for descriptor in descriptors:
            with suppress(KeyError, ValueError, OSError):
                if self._selector is not None:
                    self._selector.unregister(descriptor)


READER = LinkReader()
"""That of all links of this program."""
