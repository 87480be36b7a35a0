"""Takes down every process of a run on this node: SIGTERM, after a grace SIGKILL, until none is left.

A subreaper without children has no descendants, so "none is left" is what waitpid says, not a guess.
What left the tree all the same (it was started before a shim became a subreaper, or through
another daemon) is found by its environment.
"""

from __future__ import annotations

import os
import signal
from typing import Callable

from distconsole_agent.supervisor.processes import Processes
from distconsole_agent.supervisor.proctree import (
    TIDY_SECONDS,
    Stat,
    descendants,
    pids_of_run,
    read_stat,
    send,
    send_group,
    tidies_up,
)
from distconsole_agent.system import steady
from distconsole_agent.system.loop import Loop, Timer

KILL_AGAIN_SECONDS = 0.1
LAST_LOOK_SECONDS = 0.5
UNKILLABLE_SECONDS = 10.0
"""A process that outlives SIGKILL for so long waits in the kernel: for a disk, a mount, a driver."""

LINGER_SECONDS = 1.0


class Teardown:
    """One node's way to the end; call ``check`` whenever a child has ended.

    Attributes:
        told: Whether the processes have had their SIGTERM from somebody else.
        spared: The processes of an engine, without its ranks: they get no SIGTERM, for an engine
            that gets it ends its ranks in its own way and faster.
    """

    def __init__(
        self,
        loop: Loop,
        ranks: Processes,
        run_dir: str,
        on_gone: Callable[[], None],
        on_unkillable: Callable[[list[int]], None],
    ) -> None:
        self._loop = loop
        self._ranks = ranks
        self._run_dir = run_dir
        self._on_gone = on_gone
        self._on_unkillable = on_unkillable
        self._told_of_unkillable = False
        self._timer: Timer | None = None
        self._kill_at: float | None = None
        self._killing_since: float | None = None
        self._strays: dict[int, Stat] = {}
        self.spared: Callable[[], set[int]] = set
        self.begun_ns: int | None = None
        self.told = False

    @property
    def begun(self) -> bool:
        """Whether anything was sent yet."""
        return self._kill_at is not None

    def begin(self, grace_seconds: float) -> None:
        """Send SIGTERM once, and have SIGKILL follow; a later call can only shorten the grace."""
        kill_at = self._loop.clock() + grace_seconds
        if self._kill_at is None:
            self._kill_at = kill_at
            self.begun_ns = steady.now_ns()
            if grace_seconds > 0 and not self.told:
                self._terminate()
        elif kill_at < self._kill_at:
            self._kill_at = kill_at
        self._schedule()
        self.check()

    def terminate_late(self, pid: int) -> None:
        """Send SIGTERM to a rank that began after the others were sent it."""
        stat = read_stat(pid)
        if stat is not None:
            for each, of in {pid: stat, **descendants(pid)}.items():
                _terminate_one(each, of)

    def check(self) -> None:
        """Report it once nothing of the run is left."""
        if not self.begun or not self._ranks.childless:
            return
        self._strays = pids_of_run(self._run_dir)
        if self._strays:
            self._schedule(LAST_LOOK_SECONDS)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_gone()

    def _schedule(self, longest_seconds: float = float("inf")) -> None:
        assert self._kill_at is not None
        if self._timer is not None:
            self._timer.cancel()
        wait = min(self._kill_at - self._loop.clock(), longest_seconds)
        if self._killing_since is not None:
            wait = KILL_AGAIN_SECONDS
        self._timer = self._loop.call_later(wait, self._tick)

    def _tick(self) -> None:
        assert self._kill_at is not None
        self._timer = None
        if self._loop.clock() >= self._kill_at:
            self._kill()
            self._schedule()
        elif self._strays:
            for pid, stat in self._strays.items():
                _terminate_one(pid, stat)
            self._schedule(LAST_LOOK_SECONDS)
        self._ranks.reap()

    def _terminate(self) -> None:
        """Each process gets one SIGTERM; a stopped one is continued, or it could not act on it."""
        spared = self.spared()
        groups = {rank.pid for rank in self._ranks.alive} - spared
        for pgid in groups:
            if send_group(pgid, signal.SIGTERM):
                send_group(pgid, signal.SIGCONT)
            elif (forked := read_stat(pgid)) is not None:
                # Just forked: its session, and so its group, is not made yet.
                _terminate_one(pgid, forked)
        for pid, stat in descendants(os.getpid()).items():
            if stat.pgid not in groups and pid not in spared:
                _terminate_one(pid, stat)

    def _kill(self) -> None:
        now = self._loop.clock()
        if self._killing_since is None:
            self._killing_since = now
        patient = now - self._killing_since < TIDY_SECONDS
        left = {**descendants(os.getpid()), **self._strays}
        for pid, stat in left.items():
            if not (patient and tidies_up(pid)):
                send(pid, stat, signal.SIGKILL)
        if not patient:
            for rank in self._ranks.alive:
                send_group(rank.pid, signal.SIGKILL)
        if now - self._killing_since > UNKILLABLE_SECONDS and not self._told_of_unkillable:
            self._told_of_unkillable = True
            self._on_unkillable([pid for pid in left if read_stat(pid) is not None])


def _terminate_one(pid: int, stat: Stat) -> None:
    send(pid, stat, signal.SIGTERM)
    send(pid, stat, signal.SIGCONT)


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
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._over = True
        self._on_late(sorted(descendants(os.getpid())))
