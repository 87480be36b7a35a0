"""Tells the operator when the disk of the node folder runs low while a run goes on."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Callable

from distconsole_agent.supervisor import notes
from distconsole_agent.system.room import Disk, disk_of

if TYPE_CHECKING:
    from distconsole_agent.system.loop import Loop

LOOK_SECONDS = 3.0

MOST_LOW_BYTES = 4 << 30
"""A disk is low below a tenth of it, but not above this."""

AGAIN_SHARE = 1.25
"""It has recovered with so much more: what comes and goes at the limit is told once."""


class DiskWatch:
    """Watches one disk between ``begin`` and ``end``.

    Args:
        note: Told of what the operator should know, by the loop's thread.
        ask: Returns the room on the disk, or raises OSError. A thread of its own calls it: a
            filesystem that hangs delays nothing.
    """

    def __init__(
        self,
        loop: Loop,
        folder: str,
        host: str,
        note: Callable[[dict[str, Any]], None],
        ask: Callable[[str], Disk] = disk_of,
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._host = host
        self._note = note
        self._ask_room = ask
        self._seen: Disk | None = None
        self._low = False
        self._over = threading.Event()

    def begin(self) -> None:
        """Look from now on; where no thread can be had, at nothing."""
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._ask, name="disk", daemon=True).start()
            self._look()

    def end(self) -> None:
        """Say nothing any more."""
        self._over.set()

    def _ask(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                self._seen = self._ask_room(self._folder)
            self._over.wait(LOOK_SECONDS)

    def _look(self) -> None:
        if self._over.is_set():
            return
        disk = self._seen
        if disk is not None:
            limit = min(disk.total // 10, MOST_LOW_BYTES)
            if not self._low and disk.free < limit:
                self._low = True
                self._note(notes.disk_low(self._host, self._folder, disk))
            elif disk.free >= limit * AGAIN_SHARE:
                self._low = False
        self._loop.call_later(LOOK_SECONDS, self._look)
