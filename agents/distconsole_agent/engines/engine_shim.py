"""The shim of a run by mpirun: node 0 starts mpirun, every other node the daemon that mpirun wants there.

What mpirun would do over ssh goes over the shims' own connection, so its daemons and all ranks are
below the shim of their node and end with it.
"""

from __future__ import annotations

import os
import signal
from functools import partial

from distconsole_agent.contract.runspec import RankSpec, RunSpec
from distconsole_agent.coordination import blame
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.coordination.restarts import Restart
from distconsole_agent.engines.engine import Engine, discard, login_shell
from distconsole_agent.supervisor.failures import read_raised
from distconsole_agent.supervisor.postmortem import RAISED_EXIT_CODE
from distconsole_agent.supervisor.processes import Places, RankProcess, make_rank
from distconsole_agent.supervisor.proctree import descendants
from distconsole_agent.supervisor.shim import Shim
from distconsole_agent.system import steady
from distconsole_agent.system.loop import Loop, Timer

SUSPECT_SECONDS = 0.3
"""How much later the rank may end whose MPI_Abort has mpirun end the others."""

RAISED_SECONDS = 0.5
"""How long a rank may live on after an exception that nobody caught: at its exit MPI_Finalize waits
for the other ranks, which wait for it, for ever."""

LOOK_SECONDS = 0.25

MAX_COMMANDS = 16
"""Daemons of one node: mpirun starts one, and another for ranks that a script spawns by MPI."""


class EngineShim(Shim):
    """One node of a run by mpirun."""

    def __init__(self, loop: Loop, run_dir: str, spec: RunSpec) -> None:
        self._engine = self._make_engine(loop, spec)
        self._places: Places | None = None
        self._commands = 0
        self._names: dict[RankProcess, str] = {}
        self._idle = False
        self._looking: Timer | None = None
        super().__init__(loop, run_dir, spec)
        self._rank_spec = self._engine.spec
        self._teardown.spared = self._engine_processes

    def close(self) -> None:
        self._engine.close()
        super().close()

    def _make_engine(self, loop: Loop, spec: RunSpec) -> Engine:
        return Engine(loop, spec, self._rank_started, self._rank_exited, self._remote)

    def _forget_attempt(self, restart: Restart) -> None:
        super()._forget_attempt(restart)
        self._engine.close()
        if self._places is not None:
            discard(self._places)
        self._engine = self._make_engine(self._loop, self._spec)
        self._rank_spec = self._engine.spec
        self._teardown.spared = self._engine_processes
        self._places, self._commands, self._idle = None, 0, False
        self._names.clear()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _make_places(self) -> Places:
        if self._places is None:
            self._places = super()._make_places()
            self._engine.open(self._places)
        return self._places

    # What mpirun wants of other hosts

    def _remote(self, address: str, command: str, name: str) -> None:
        addresses = [node.address for node in self._spec.nodes]
        index = addresses.index(address) if address in addresses else 0
        if index and self._coordinator is not None:
            self._coordinator.command(index, name, command)
            return
        why = f"mpirun wants to start something on {address}, which is not another host of the run"
        self._fail(self._own_failure(why))

    def _command(self, name: str, command: str) -> None:
        """Run what mpirun on node 0 wants to run here."""
        if self._teardown.begun or self._commands >= MAX_COMMANDS or self._places is None:
            return
        self._commands += 1
        daemon = RankSpec(self._spec.node_index, 0, (login_shell(), "-c", command), {})
        process = make_rank(self._spec, daemon, self._master_port, self._places)
        self._names[process] = name
        try:
            self._ranks.start([process])
        except OSError as error:
            self._fail(self._own_failure(f"mpirun's daemon cannot start here: {error}"))

    # Ranks, as they report themselves

    def _rank_started(self, rank: RankProcess) -> None:
        self._log.started(rank)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look_for_raised)
        if self._teardown.begun:
            self._teardown.terminate_late(rank.pid)

    def _rank_exited(self, rank: RankProcess) -> None:
        self._output.flush()
        super()._exited(rank)
        self._end_engines()

    # mpirun and its daemons

    def _begin_stop(self, reason: str, grace_seconds: float) -> None:
        super()._begin_stop(reason, grace_seconds)
        self._end_engines()

    def _end_engines(self) -> None:
        """Kill mpirun and its daemons once no rank is left anywhere: before, they end ranks at once."""
        if self._idle or self._state != "stopping" or self._engine.alive:
            return
        self._idle = True
        if isinstance(self._link, Peer):
            self._link.idle()
        elif self._coordinator is not None:
            self._coordinator.idle(0)

    def _engine_processes(self) -> set[int]:
        """Return mpirun or its daemon, and what is between it and the ranks."""
        found: set[int] = set()
        for process in self._ranks.alive:
            found |= {process.pid, *descendants(process.pid)}
        for rank in self._engine.alive:
            found -= {rank.pid, *descendants(rank.pid)}
        return found

    def _look_for_raised(self) -> None:
        """Take a rank that raised and does not end for one that failed."""
        if self._teardown.begun or self._places is None:
            return
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look_for_raised)
        alive = {f"{rank.pid}.json": rank for rank in self._engine.alive}
        if alive.keys().isdisjoint(os.listdir(self._places.errors)):
            return
        by_pid = {rank.pid: rank for rank in alive.values()}
        for noted in read_raised(self._places.errors):
            raised = noted._replace(t_ns=steady.of_wall(noted.t_ns))
            rank = by_pid.get(raised.pid)
            if rank is None or not rank.started_ns <= raised.t_ns:
                continue
            if steady.now_ns() - raised.t_ns > RAISED_SECONDS * 1e9:
                index, number = self._spec.node_index, rank.spec.rank
                told = (raised.t_ns, RAISED_EXIT_CODE, None, raised.error, raised.traceback)
                self._fail(blame.Failure(index, number, rank.pid, *told))
                return

    def _judge(self, rank: RankProcess, stopped_ns: int | None) -> None:
        """Wait with a rank that died of SIGTERM: where one calls MPI_Abort, mpirun ends the others."""
        assert rank.ended is not None
        if stopped_ns is None and rank.ended.signal == signal.SIGTERM:
            late = partial(self._judge_late, rank, self._restart)
            self._loop.call_later(SUSPECT_SECONDS, late)
        else:
            super()._judge(rank, stopped_ns)

    def _judge_late(self, rank: RankProcess, restart: int) -> None:
        if not self._ending.gone and restart == self._restart:
            super()._judge(rank, None)

    def _fail(self, failure: blame.Failure) -> None:
        if failure.signal == signal.SIGTERM and failure.pid != os.getpid():
            failure = failure._replace(error=f"{failure.error}{blame.BY_ENGINE}")
        super()._fail(failure)

    def _settled(self, rank: RankProcess) -> None:
        if rank.spawn_failure is not None:
            super()._settled(rank)
        elif not self._ranks.starting:
            self._settle_start()

    def _exited(self, rank: RankProcess) -> None:
        assert rank.ended is not None
        name = self._names.pop(rank, None)
        if name is not None and isinstance(self._link, Peer):
            self._link.command_ended(name, rank.ended.exit_code)
        failure = self._engine.failure(rank, self._teardown.begun)
        if failure is not None:
            self._fail(failure)

    def _command_ended(self, _node: int, name: str, exit_code: int) -> None:
        self._engine.remote_ended(name, exit_code)

    def _end_leftovers(self) -> None:
        if self._spec.node_index == 0 or self._commands:
            super()._end_leftovers()
