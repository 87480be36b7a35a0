"""Waits of a rank's process and activity of its DataLoader workers: a few files of /proc, once a second."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from distconsole_agent.contract.protocol import Values
from distconsole_agent.journal.rank_states import Entry
from distconsole_agent.system.procfs import read_head, stat_fields

TICKS = os.sysconf("SC_CLK_TCK")
MAX_WORKERS = 64
"""Most workers that are looked at."""
DATA_SHARE, DATA_MS = 0.1, 1.0
"""Workers are looked at while a rank waits for its data for this share of a step, and this long."""


class _Stat(NamedTuple):
    name: bytes
    state: bytes
    cpu_ticks: int
    disk_ticks: int


class ProcessWaits:
    """The rank's process as it was at the last look."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._before: tuple[int, int, int] | None = None
        self._ticks: dict[int, int] = {}
        """Worker -> clock ticks of a processor that it had used, at ``_looked_ns``."""
        self._looked_ns = 0

    def look(self, pid: int) -> Values:
        """Return ``cpu_wait`` and ``disk_wait`` of the time since the last look, 0 to 100; null if unknown."""
        try:
            queued_ns = int(read_head(f"{self._root}/{pid}/schedstat", 100).split()[1])
        except (ValueError, IndexError):
            queued_ns = -1
        stat, now_ns = self._stat(pid), time.monotonic_ns()
        disk_ticks = stat.disk_ticks if stat else 0
        before, self._before = self._before, (now_ns, queued_ns, disk_ticks)
        told: Values = {"cpu_wait": None, "disk_wait": None}
        if before is None or now_ns <= before[0]:
            return told
        if queued_ns >= 0 <= before[1]:
            told["cpu_wait"] = _percent(queued_ns - before[1], now_ns - before[0])
        if stat is not None:
            # Few kernels count it (kernel.task_delayacct); else use the process's present state.
            waited_ns = (disk_ticks - before[2]) * 10**9 // TICKS
            now = 100.0 * (stat.state == b"D")
            told["disk_wait"] = _percent(waited_ns, now_ns - before[0]) if disk_ticks else now
        return told

    def look_at_workers(self, pid: int, window: Entry) -> list[float] | None:
        """Return how many DataLoader workers ``pid`` has, percent of a processor that each uses, of them in state D.

        None if ``window`` shows hardly any wait for data, and at the first look.
        """
        step_ms, data_ms = (window["step_ms"] or [0.0])[0] or 0.0, window["data_ms"] or 0.0
        if data_ms < max(DATA_MS, DATA_SHARE * step_ms):
            return None
        pids = read_head(f"{self._root}/{pid}/task/{pid}/children", 4096).split()
        stats = {int(each): self._stat(int(each)) for each in pids[:MAX_WORKERS]}
        children = {child: stat for child, stat in stats.items() if stat is not None}
        # As torch names them; before version 2.6 every child has its parent's name.
        named = {child: s for child, s in children.items() if s.name == b"pt_data_worker"}
        workers = named or children
        now_ns = time.monotonic_ns()
        used = [s.cpu_ticks - self._ticks[w] for w, s in workers.items() if w in self._ticks]
        over_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        self._ticks = {worker: stat.cpu_ticks for worker, stat in workers.items()}
        if not used or over_ns <= 0:
            return None
        busy = _percent(sum(used) * 10**9 // TICKS, over_ns * len(used))
        blocked = sum(stat.state == b"D" for stat in workers.values())
        return [len(workers), busy, round(100 * blocked / len(workers), 1)]

    def _stat(self, pid: int) -> _Stat | None:
        name, fields = stat_fields(read_head(f"{self._root}/{pid}/stat", 4096))
        if len(fields) < 40:
            return None
        return _Stat(name, fields[0], int(fields[11]) + int(fields[12]), int(fields[39]))


def _percent(part: int, whole: int) -> float:
    return round(100 * min(1.0, max(0.0, part / whole)), 1)
