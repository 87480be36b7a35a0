"""Looks who listens where the ranks of a run will meet, until one of them does.

Torch's store has no secret, and whoever sets SO_REUSEADDR can listen on the port that is kept for it, until
a process of the run listens there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable

from distconsole_agent.coordination.whose import is_trusted, listener_at
from distconsole_agent.supervisor import notes
from distconsole_agent.supervisor.proctree import descendants
from distconsole_agent.system.users import user_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distconsole_agent.coordination.whose import Holder
    from distconsole_agent.system.loop import Loop, Timer

LOOK_SECONDS = 0.1
"""Between two looks at first. A rank needs longer than that from its start until it can meet others."""

LOOK_SHARE = 0.01
LONGEST_LOOK_SECONDS = 5.0
"""A script that does not meet for long, or never, is looked at ever more rarely."""


class PortWatch:
    """One attempt's.

    Args:
        address: Of this node, by which the ranks meet.
        ports: Where they do; empty where that is not on this node.
        note: Told what the operator should know.
        refuse: Called once, with the words, when a process of another user listens.
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        ports: Sequence[int],
        note: Callable[[dict[str, Any]], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._address = address
        self._ports = set(ports)
        self._note = note
        self._refuse = refuse
        self._began = 0.0
        self._timer: Timer | None = None

    def look(self) -> str:
        """Say who listens that is not of the run; empty where nobody does."""
        for port in list(self._ports):
            try:
                listener = listener_at((self._address, port))
            except ValueError:  # a name: whom it means to the ranks is not known here
                self._ports.clear()
                return ""
            if listener is None:
                continue
            if not is_trusted(listener.uid):
                return (
                    f"user {user_name(listener.uid)} listens on port {port}, where the ranks meet"
                )
            self._ports.discard(port)
            if not _is_of_run(listener):
                self._note(notes.port_taken(port))
        return ""

    def begin(self) -> None:
        """Look from now on."""
        self._began = self._loop.clock()
        self._wait()

    def close(self) -> None:
        """Look for the last time, for a rank may have failed because of whom it would find; tell of him."""
        if self._timer is not None and self._ports:
            self._timer.cancel()
            if told := self.look():
                self._note(notes.port_stranger(told))
        self._ports.clear()

    def _wait(self) -> None:
        if self._ports:
            waited = LOOK_SHARE * (self._loop.clock() - self._began)
            pause = min(max(LOOK_SECONDS, waited), LONGEST_LOOK_SECONDS)
            self._timer = self._loop.call_later(pause, self._look_again)

    def _look_again(self) -> None:
        if told := self.look():
            self._ports.clear()
            self._refuse(told)
        self._wait()


def _is_of_run(listener: Holder) -> bool:
    """Return whether a process below this one listens; also where that is not to be seen."""
    for pid in descendants(os.getpid()):
        folder = f"/proc/{pid}/fd"
        try:
            if any(_leads_to(f"{folder}/{name}", listener) for name in os.listdir(folder)):
                return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def _leads_to(path: str, listener: Holder) -> bool:
    try:
        return os.readlink(path) == listener.open_file
    except FileNotFoundError:
        return False
