"""Reads files of /proc that may not answer, without waiting for them.

What is in a process's memory, as its environment and its arguments are, is read through the kernel's lock on that
memory. Where a process hangs with it (a mount or a swap device that is gone), so does who reads. A thread
does it here, which is left behind then, until the kernel lets it go.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES = 1 << 20

PATIENCE_SECONDS = 1.0
"""A file that takes longer hangs."""

MAX_HANGING = 8
"""Threads that are left behind; with so many nothing more is read."""

_hanging: dict[str, threading.Thread] = {}


def read_in_time(paths: Sequence[str]) -> dict[str, bytes | None]:
    """Return what the files hold: empty where one cannot be read, None where it is not known in time."""
    for path in [path for path, thread in _hanging.items() if not thread.is_alive()]:
        del _hanging[path]
    found: dict[str, bytes | None] = dict.fromkeys(paths)
    left = [path for path in paths if path not in _hanging]
    while left and len(_hanging) < MAX_HANGING:
        reader = _Reader(left)
        try:
            reader.start()
        except RuntimeError:  # the system has no thread left
            reader.run()
        reader.wait()
        taken = list(reader.found)
        found.update(taken)
        if len(taken) == len(left):
            break
        _hanging[left[len(taken)]] = reader
        left = left[len(taken) + 1 :]
    return found


class _Reader(threading.Thread):
    """Reads files one after the other; ``found`` has those that it has read."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(daemon=True, name="reader of /proc")
        self._paths = paths
        self._given_up = False
        self.found: list[tuple[str, bytes]] = []

    def run(self) -> None:
        for path in self._paths:
            text = _read(path)
            if self._given_up:
                return
            self.found.append((path, text))

    def wait(self) -> None:
        """Wait for the end, as long as there is one file after the other."""
        seen = -1
        while self.is_alive() and len(self.found) > seen:
            seen = len(self.found)
            self.join(PATIENCE_SECONDS)
        self._given_up = True


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return b""
