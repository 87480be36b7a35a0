"""Takes down every process of a run on this node: SIGTERM, after a grace SIGKILL, until none is left.

A subreaper without children has no descendants, so "none is left" is waitpid's result, not a guess.
Processes that left the tree all the same (started before a shim became a subreaper, or through
another daemon) are found by their environment.
"""

from __future__ import annotations

import os
import signal
from typing import Callable

from distconsole_agent.contract.runspec import TORCHRUN, RunSpec
from distconsole_agent.coordination.blame import NODE_LOST, Failure
from distconsole_agent.supervisor import proctree
from distconsole_agent.supervisor.containers import forget_scripts
from distconsole_agent.supervisor.processes import Processes
from distconsole_agent.system import steady
from distconsole_agent.system.loop import Loop, Timer
from distconsole_agent.system.procfs import Process, read_process

KILL_AGAIN_SECONDS = 0.1
LAST_LOOK_SECONDS = 0.5
UNKILLABLE_SECONDS = 10.0
"""A process that outlives SIGKILL for this long waits in the kernel: for a disk, a mount, a driver."""

LINGER_SECONDS = 1.0
"""Seconds for children of ended ranks to end by themselves."""

HELPERS_SECONDS = 10.0
"""As ``LINGER_SECONDS``, for helpers of packages that are known to do so: 5.6 s at most were measured, on busy processors."""

ROUND_NODES = b"GROUP_WORLD_SIZE"
"""torchrun's variable with the number of nodes of a rank's round."""


class Teardown:
    """One node's way to the end of an attempt; call ``check`` whenever a child has ended.

    Args:
        on_late: Called with processes, other than idle helpers, that have lingered for too long; may be none.

    Attributes:
        told: Another program has sent the processes their SIGTERM.
        spared: The processes of an engine, without its ranks: they get no SIGTERM, for an engine
            that gets it ends its ranks in its own way and faster.

    Processes that a container engine runs for a rank are spared likewise: they end with the processes
    inside, which need not be below this process.
    """

    def __init__(
        self,
        loop: Loop,
        ranks: Processes,
        run_dir: str,
        on_gone: Callable[[], None],
        on_unkillable: Callable[[list[int]], None],
        on_late: Callable[[list[int]], None],
    ) -> None:
        self._loop = loop
        self._ranks = ranks
        self._run_dir = run_dir
        self._on_gone = on_gone
        self._on_unkillable = on_unkillable
        self._on_late = on_late
        self._told_of_unkillable = False
        self._timer: Timer | None = None
        self._kill_at: float | None = None
        self._killing_since: float | None = None
        self._strays: dict[int, Process] = {}
        self._lingering: Timer | None = None
        self._lingers_until = 0.0
        self._ending: set[int] = set()
        self._waited = False
        self.spared: Callable[[], set[int]] = set
        self.begun_ns: int | None = None
        self.terminated: set[int] = set()
        """Processes that lived when the SIGTERM of the stop was sent to them."""
        self.over: set[int] = set()
        """Ranks that had ended by themselves then or were ending: a GPU's driver may keep one for seconds."""
        self.told = False

    @property
    def begun(self) -> bool:
        return self._kill_at is not None

    @property
    def kills(self) -> bool:
        """True once it has begun to send SIGKILL."""
        return self._killing_since is not None

    def begin(self, grace_seconds: float) -> None:
        """Send SIGTERM once, and have SIGKILL follow; a later call can only shorten the grace."""
        kill_at = self._loop.clock() + grace_seconds
        if self._kill_at is None:
            self._kill_at = kill_at
            self.begun_ns = steady.now_ns()
            ranks = ((rank.pid, read_process(rank.pid)) for rank in self._ranks.alive)
            self.over = {pid for pid, stat in ranks if stat and stat.is_over}
            if grace_seconds > 0 and not self.told:
                self._terminate()
        elif kill_at < self._kill_at:
            self._kill_at = kill_at
        self._schedule()
        self.check()

    def close(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()

    def is_waiting(self) -> bool:
        """Whether children of the ranks still have time to end by themselves, which begins here."""
        if self._ranks.childless or self._waited:
            return False
        if self._lingering is None:
            self._lingers_until = self._loop.clock() + HELPERS_SECONDS
            self._lingering = self._loop.call_later(LINGER_SECONDS, self._end_waiting)
        return True

    def _end_waiting(self) -> None:
        left = proctree.descendants(os.getpid())
        helpers = proctree.find_helpers(left)
        more_seconds = self._lingers_until - self._loop.clock()
        self._ending = helpers.ending if more_seconds > 0 else set()
        late = set(left) - helpers.idle - self._ending
        if self._ending and not late:
            wait = min(more_seconds, LINGER_SECONDS)
            self._lingering = self._loop.call_later(wait, self._end_waiting)
        else:
            self._waited = True
            self._on_late(sorted(late))

    def terminate_late(self, pid: int) -> None:
        """Send SIGTERM to a rank that began after the others were sent it."""
        if (stat := read_process(pid)) is not None:
            for each, of in {pid: stat, **proctree.descendants(pid)}.items():
                self.terminated.add(each)
                _terminate_one(each, of)

    def check(self) -> None:
        """Report it once nothing of the run is left."""
        if not self.begun or not self._ranks.childless:
            return
        self._strays = proctree.pids_of_run(self._run_dir)
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

    def _around_containers(self) -> set[int]:
        enclosed = [rank for rank in self._ranks.alive if rank.script]
        if not enclosed:
            return set()
        inside = [rank.pid for rank in enclosed if not rank.is_outside]
        kept = {*inside, *(below for pid in inside for below in proctree.descendants(pid))}
        return (
            set(proctree.descendants(os.getpid()))
            - kept
            - set(proctree.pids_of_run(self._run_dir))
        )

    def _terminate(self) -> None:
        """Each process gets one SIGTERM; a stopped one is continued, or it could not act on it."""
        spared = self.spared() | self._around_containers() | self._ending
        groups = {rank.pid for rank in self._ranks.alive} - spared
        found = proctree.descendants(os.getpid()).items()
        self.terminated |= {pid for pid, stat in found if not stat.is_over and pid not in spared}
        for pgid in groups:
            if proctree.send_group(pgid, signal.SIGTERM):
                proctree.send_group(pgid, signal.SIGCONT)
            elif (forked := read_process(pgid)) is not None:
                # Just forked: its session, and so its group, is not made yet.
                _terminate_one(pgid, forked)
        for pid, stat in proctree.descendants(os.getpid()).items():
            if stat.pgid not in groups and pid not in spared:
                _terminate_one(pid, stat)

    def _kill(self) -> None:
        now = self._loop.clock()
        if self._killing_since is None:
            self._killing_since = now
        patient = now - self._killing_since < proctree.TIDY_SECONDS
        around = self._around_containers()
        if around:
            forget_scripts(self._run_dir)
            self._strays = proctree.pids_of_run(self._run_dir)
        left = {**proctree.descendants(os.getpid()), **self._strays}
        for pid, stat in left.items():
            if not (patient and (pid in around or proctree.tidies_up(pid, stat))):
                proctree.send(pid, stat, signal.SIGKILL)
        if not patient:
            for rank in self._ranks.alive:
                proctree.send_group(rank.pid, signal.SIGKILL)
        if now - self._killing_since > UNKILLABLE_SECONDS and not self._told_of_unkillable:
            self._told_of_unkillable = True
            self._on_unkillable([pid for pid in left if read_process(pid) is not None])


def _terminate_one(pid: int, stat: Process) -> None:
    if stat.name == proctree.SHM_MANAGER:
        return
    proctree.send(pid, stat, signal.SIGTERM)
    proctree.send(pid, stat, signal.SIGCONT)


class Rounds:
    """The rounds of a job below an elastic torchrun: ends the ranks of one that has lost a node.

    torchrun begins a round again, without the node that is gone, when its ranks fail. Ranks that wait in a
    collective for it wait as long as TCP and the collective's time limit let them.
    """

    def __init__(self, loop: Loop, spec: RunSpec) -> None:
        self._loop = loop
        self._spec = spec
        self._left = len(spec.nodes)
        self._ended = False

    def node_lost(self, _node: int) -> None:
        """End the ranks whose round goes over more nodes than are left: SIGTERM, then SIGKILL."""
        self._left -= 1
        if self._spec.launcher != TORCHRUN:
            return
        doomed = ranks_over(os.getpid(), self._left)
        self._ended = self._ended or bool(doomed)
        for pid, stat in doomed.items():
            _terminate_one(pid, stat)

        def kill() -> None:
            for pid, stat in doomed.items():
                proctree.send(pid, stat, signal.SIGKILL)

        self._loop.call_later(self._spec.failure_grace, kill)

    def explained(self, failure: Failure) -> Failure:
        """Return ``failure``, with a reason if ``node_lost`` caused it."""
        if self._ended and failure.signal in (signal.SIGTERM, signal.SIGKILL):
            return failure._replace(error=f"{failure.error}{NODE_LOST}")
        return failure


def ranks_over(root: int, nodes: int) -> dict[int, Process]:
    """Return the processes below ``root`` that are of a round over more than ``nodes`` nodes."""
    return {
        pid: stat
        for pid, stat in proctree.descendants(root).items()
        if (value := proctree.read_environ(pid).get(ROUND_NODES, b"")).isdigit()
        and int(value) > nodes
    }
