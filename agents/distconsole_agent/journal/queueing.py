"""For how much of its time a process's main thread waits for a processor, as where another one runs on its cores."""

from __future__ import annotations

import time


class Queueing:
    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def percent(self, pid: int) -> float | None:
        """Return that of the time since the last call, 0 to 100; None at the first, and where nothing says."""
        try:
            with open(f"/proc/{pid}/schedstat", "rb") as file:
                queued_ns = int(file.read(100).split()[1])
        except (OSError, ValueError, IndexError):
            return None
        now_ns = time.monotonic_ns()
        before, self._before = self._before, (now_ns, queued_ns)
        if before is None or now_ns <= before[0]:
            return None
        share = (queued_ns - before[1]) / (now_ns - before[0])
        return round(100 * min(1.0, max(0.0, share)), 1)
