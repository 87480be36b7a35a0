"""The nodes that a run has lost sight of while it goes on there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable

from distconsole_agent.coordination.channel import LinkTimes
from distconsole_agent.supervisor import notes


class Supervision:
    """One side of a run's links."""

    def __init__(
        self, times: LinkTimes, note: Callable[[dict[str, Any]], None], written: Callable[[], int]
    ) -> None:
        self._times = times
        self._note = note
        self._written = written
        self._quiet: dict[str, float] = {}
        self._written_then = 0

    def look(self, missed: Mapping[str, float | None]) -> None:
        """Take for how many seconds hosts have not been heard of; None of one that there is a link to.

        Of a host that is left out nothing is said any more.
        """
        quiet = {host: seconds for host, seconds in missed.items() if seconds is not None}
        late = {host for host, seconds in quiet.items() if seconds >= self._times.silent}
        back = [host for host in self._quiet if host in missed and host not in quiet]
        new = [host for host in quiet if host in late and host not in self._quiet]
        if back:
            self._note(notes.supervised(back, max(self._quiet[host] for host in back)))
        if new:
            if not self._quiet:
                self._written_then = self._written()
            self._note(notes.unsupervised(new, self._times.silent, self._times.give_up))
        self._quiet = {host: quiet[host] for host in quiet if host in late or host in self._quiet}

    def ranks_went_on(self) -> bool:
        """Return whether the ranks here have made steps since a host was missed."""
        return bool(self._quiet) and self._written() > self._written_then


def count_records(rings: str) -> int:
    """Return how many records the rings in a folder have got."""
    # Late: it is asked for only where a link is quiet.
    from distconsole_agent.journal.rings import RING_SUFFIX, Ring

    total = 0
    try:
        names = os.listdir(rings)
    except OSError:
        return 0
    for name in names:
        if name.endswith(RING_SUFFIX):
            try:
                ring = Ring(os.path.join(rings, name))
            except (OSError, ValueError):
                continue
            total += ring.header.written
            ring.close()
    return total
