"""The time that children of ranks which all ended well have to end by themselves. It ends none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable

from distconsole_agent.supervisor.proctree import descendants

if TYPE_CHECKING:
    from distconsole_agent.supervisor.processes import Processes
    from distconsole_agent.system.loop import Loop, Timer

LINGER_SECONDS = 1.0


class Lingering:
    """One attempt's.

    Args:
        on_late: Called with the processes that are left when the time is over; may be none.
    """

    def __init__(self, loop: Loop, ranks: Processes, on_late: Callable[[list[int]], None]) -> None:
        self._loop = loop
        self._ranks = ranks
        self._on_late = on_late
        self._timer: Timer | None = None
        self._over = False

    def wait(self) -> bool:
        """Return whether there is something to wait for: the time begins with the first question."""
        if self._ranks.childless or self._over:
            return False
        if self._timer is None:
            self._timer = self._loop.call_later(LINGER_SECONDS, self._end)
        return True

    def close(self) -> None:
        """Forget it."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._over = True
        self._on_late(sorted(descendants(os.getpid())))
