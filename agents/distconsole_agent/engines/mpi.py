"""A run by mpirun: its ranks as they report themselves, and the shim on each node.

mpirun reports too little on a failed rank, and its daemons are the parents of the ranks. So every
rank runs below a few lines of ``sh`` (``launch/launchers/mpi.py``) that write to the pipe ``reports`` in the run's
folder, open to this user alone. mpirun's commands for ssh come the same way, and go to the other
node's shim, below which all of its processes are.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from functools import partial
from typing import Callable

from distconsole_agent.contract.runspec import RankSpec, RunSpec
from distconsole_agent.coordination.blame import BY_ENGINE, ENDED_EARLY, MAX_ERROR_CHARS, Failure
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.coordination.restarts import Restart
from distconsole_agent.node_folder.folders import remove_tree
from distconsole_agent.supervisor import notes
from distconsole_agent.supervisor.failures import (
    TAIL_BYTES,
    describe_exit,
    first_reason,
    read_raised,
    read_tail,
)
from distconsole_agent.supervisor.postmortem import RAISED_EXIT_CODE
from distconsole_agent.supervisor.processes import Places, RankProcess, exit_of_shell, make_rank
from distconsole_agent.supervisor.proctree import descendants
from distconsole_agent.supervisor.shim import Shim
from distconsole_agent.supervisor.spawning import ChildCommand, login_shell
from distconsole_agent.system import steady
from distconsole_agent.system.kernel_files import end_of, read_foreign
from distconsole_agent.system.line_pipe import LinePipe
from distconsole_agent.system.loop import Loop, Timer

REPORTS, REMOTE, SCRATCH = "reports", "remote", "engine"
MAX_COMMAND_BYTES = 48 * 1024

_STARTED = re.compile(rb"^started (\d{1,7}) (\d{1,7}) (\d{1,10})$")
_EXITED = re.compile(rb"^exited (\d{1,7}) (\d{1,3})$")
_REMOTE = re.compile(rb"^remote ([0-9A-Za-z.:_-]{1,255}) (\d{1,10})$")
_ABORTED = re.compile(
    r"MPI_ABORT was invoked on rank (\d{1,7}) .{0,400}?errorcode:? (-?\d{1,9})", re.DOTALL | re.I
)
"""Of Open MPI 4 and 5, which print it on the first node."""

_ABORTS = re.compile(
    r"application called MPI_Abort\([^,)]{1,80}, (-?\d{1,9})\) - process (\d{1,7})"
)
"""Of the MPICH family: the rank itself prints it, and is killed together with the process that would have reported it."""

_UNCONNECTED = "Open MPI failed to TCP connect to a peer MPI process"
"""Printed by Open MPI 4 and 5, which do not try that connection again: 4.1.4 waits for ever if the ranks need it,
5.0.7 ends them."""

REMOTE_SCRIPT = """\
#!/bin/sh
# mpirun starts this in place of ssh: it hands the command to the run's shim on this host,
# which has it run by the shim on that host.
trap '' TERM INT QUIT USR1 USR2 ALRM
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
umask 077
mkfifo {folder}/$$.end && printf '%s' "$*" >{folder}/$$ || exit 1
printf 'remote %s %s\\n' "$host" $$ 1<>{reports}
read code <{folder}/$$.end
exit "$code"
"""
"""Stays until the command has ended: mpirun takes an earlier end for a failure. Slurm signals it too."""

SUSPECT_SECONDS = 0.3
"""Seconds by which the cause may end after its effect: a rank that called MPI_Abort after the ranks that mpirun then
ends, mpirun after a daemon that it ends."""

RAISED_SECONDS = 0.5
"""How long a rank may live on after an uncaught exception: at its exit MPI_Finalize waits
for the other ranks, which wait for it, for ever."""

LOOK_SECONDS = 0.25

CUT_SECONDS = 1.0
"""Seconds between two checks that the hosts have not lost each other."""

QUIET_SECONDS = 3.0
"""Seconds without a message from a host after which a cut is possible; shims send one each second."""

WAITING_SECONDS = 15.0
"""Seconds that ranks with a failed connection may wait before they are restarted, or the length of the cut if that is longer:
TCP retransmits within that."""

MAX_COMMANDS = 16
"""Daemons of one node: mpirun starts one, and another for ranks that a script spawns by MPI."""


class MpiRanks:
    """The ranks of this node, as they report themselves; ``spec``: the run, for the processes below mpirun."""

    def __init__(
        self,
        loop: Loop,
        spec: RunSpec,
        on_started: Callable[[RankProcess], None],
        on_exited: Callable[[RankProcess], None],
        on_remote: Callable[[str, str, str], None],
    ) -> None:
        self._on_started, self._on_exited, self._on_remote = on_started, on_exited, on_remote
        self.spec = spec._replace(engine_ranks=True, ranks=())
        self.places: Places | None = None
        self.reports = LinePipe(loop, self._take)
        self._ranks: dict[int, RankProcess] = {}

    @property
    def alive(self) -> list[RankProcess]:
        return [rank for rank in self._ranks.values() if rank.ended is None]

    def open(self, places: Places) -> None:
        """Create the files of the ranks and of mpirun in the run's folder, or raise OSError."""
        self.places = places
        folder = os.path.join(places.run_dir, SCRATCH)
        os.mkdir(folder, 0o700)
        reports = os.path.join(places.run_dir, REPORTS)
        self.reports.open(reports)
        text = REMOTE_SCRIPT.format(folder=shlex.quote(folder), reports=shlex.quote(reports))
        flags, path = os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.path.join(places.run_dir, REMOTE)
        with open(os.open(path, flags, 0o700), "w", encoding="utf-8") as file:
            file.write(text)

    def discard(self) -> None:
        """Remove the results of ``open``, and mpirun's shared memory beside the rings."""
        # Late: a shim starts sooner without it.
        from distconsole_agent.journal.rings import CHECKED_SUFFIX, RING_SUFFIX

        if self.places is None:
            return
        run_dir, rings = self.places.run_dir, self.places.rings
        paths = [os.path.join(run_dir, name) for name in (REPORTS, REMOTE)]
        with contextlib.suppress(OSError):
            remove_tree(os.path.join(run_dir, SCRATCH))
        with contextlib.suppress(OSError):
            left, kept = os.listdir(rings), (RING_SUFFIX, CHECKED_SUFFIX)
            paths += [os.path.join(rings, name) for name in left if not name.endswith(kept)]
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def remote_ended(self, name: str, exit_code: int) -> None:
        if self.places is None or not name.isdigit():
            return
        path = os.path.join(self.places.run_dir, SCRATCH, f"{name}.end")
        with contextlib.suppress(OSError):  # mpirun may have ended it, or be gone
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            with open(os.open(path, flags), "wb", buffering=0) as pipe:
                pipe.write(b"%d\n" % (exit_code & 0xFF))

    def failure(self, process: RankProcess, stopping: bool) -> Failure | None:
        """Return how mpirun, or its daemon here, failed; None when it ended as it should."""
        self.reports.read()
        ended = process.ended
        assert ended is not None
        over = {number for number, rank in self._ranks.items() if rank.ended is not None}
        ranks = self.spec.nodes[self.spec.node_index].ranks
        missing = [number for number in ranks if number not in over]
        foreign = [number for number in sorted(self._ranks) if number not in ranks]
        if ended.exit_code == 0 and not missing and not foreign:
            return None
        if (aborted := self._aborting(process)) is not None:
            return aborted
        if stopping:
            return None
        rank = missing[0] if missing else process.spec.rank
        exit_code, number = ended.exit_code or 1, ended.signal
        told = read_tail(process.command.stderr_path, process.stderr_from)
        found = _ABORTED.search(told.traceback)
        if found is not None:
            rank, exit_code, number = int(found[1]), int(found[2]) & 0xFF or 1, None
            error = f"MPI_Abort with code {int(found[2])}"
        elif ended.exit_code == 0 and foreign:
            rank = foreign[0]
            error = f"mpirun started rank {rank} on {self.spec.host}, not on the host of the plan"
        elif ended.exit_code == 0:
            error = f"{ENDED_EARLY} {rank} had not said how it ended"
        else:
            words = describe_exit(ended.exit_code, ended.signal, None)
            program = os.path.basename(process.spec.argv[0])
            name = f"mpirun's daemon on {self.spec.host}" if self.spec.node_index else program
            paths = (process.command.stderr_path, process.command.stdout_path)
            logs = (
                end_of(p, TAIL_BYTES, process.logged.get(os.path.basename(p), 0)) for p in paths
            )
            reason = next(filter(None, map(first_reason, logs)), "")
            error = f"{name} {words}: {reason}" if reason else f"{name} {words}"
        if process.spawn_failure is not None:
            error = process.spawn_failure.error
        how = (exit_code, number, error[:MAX_ERROR_CHARS], told.traceback)
        return Failure(self.spec.node_index, rank, process.pid, ended.t_ns, *how)

    def _aborting(self, process: RankProcess) -> Failure | None:
        """Return the failure of a rank that printed that it called MPI_Abort, unless it reported an end of its own."""
        assert process.ended is not None
        for rank in self._ranks.values():
            if rank.ended is not None and rank.ended.signal is None:
                continue
            told = read_tail(rank.command.stderr_path, rank.stderr_from)
            found = _ABORTS.search(told.traceback)
            if found is not None and int(found[2]) == rank.spec.rank:
                code = int(found[1])
                how = (code & 0xFF or 1, None, f"MPI_Abort with code {code}", told.traceback)
                index, number = self.spec.node_index, rank.spec.rank
                return Failure(index, number, rank.pid, process.ended.t_ns, *how)
        return None

    def _take(self, line: bytes) -> None:
        t_ns = steady.now_ns()
        if (found := _STARTED.match(line)) is not None:
            self._started(int(found[1]), int(found[2]), int(found[3]), t_ns)
        elif (found := _EXITED.match(line)) is not None:
            rank = self._ranks.get(int(found[1]))
            if rank is not None and rank.ended is None:
                rank.ended = exit_of_shell(int(found[2]), t_ns)
                self._on_exited(rank)
        elif (found := _REMOTE.match(line)) is not None and self.spec.node_index == 0:
            self._remote(found[1].decode("ascii"), found[2].decode("ascii"))

    def _started(self, number: int, local_rank: int, pid: int, t_ns: int) -> None:
        assert self.places is not None
        if number in self._ranks or not any(number in node.ranks for node in self.spec.nodes):
            return
        stem = os.path.join(self.places.logs, f"rank-{number}")
        command = ChildCommand((), {}, "", None, f"{stem}.out", f"{stem}.err")
        rank = RankProcess(RankSpec(number, local_rank, (), {}), command, self.places.logged)
        rank.pid, rank.started_ns = pid, t_ns
        if self.spec.enter:
            rank.arrive(pid, self.places.run_dir)
        self._ranks[number] = rank
        self._on_started(rank)

    def _remote(self, host: str, name: str) -> None:
        assert self.places is not None
        path = os.path.join(self.places.run_dir, SCRATCH, name)
        with contextlib.suppress(OSError):
            command = os.fsdecode(read_foreign(path, MAX_COMMAND_BYTES + 1))
            os.unlink(path)
            if len(command) <= MAX_COMMAND_BYTES:
                self._on_remote(host, command, name)


class MpiShim(Shim):
    def _prepare_attempt(self) -> None:
        super()._prepare_attempt()
        self._commands, self._idle = 0, False
        self._names: dict[RankProcess, str] = {}
        self._looking: Timer | None = None
        self._cut_look: Timer | None = None
        self._engine = MpiRanks(
            self._loop, self._spec, self._rank_started, self._rank_exited, self._remote
        )
        self._rank_spec = self._engine.spec
        self._teardown.spared = self._engine_processes

    def close(self) -> None:
        self._engine.reports.close()
        super().close()

    def _forget_attempt(self, restart: Restart) -> None:
        for timer in (self._looking, self._cut_look):
            if timer is not None:
                timer.cancel()
        self._engine.reports.close()
        self._engine.discard()
        super()._forget_attempt(restart)

    def _make_places(self) -> Places:
        places = super()._make_places()
        self._engine.open(places)
        return places

    # mpirun's commands for other hosts

    def _remote(self, address: str, command: str, name: str) -> None:
        named = [(node.address, node.host.replace(":", "-")) for node in self._spec.nodes]
        index = next((at for at, names in enumerate(named) if address in names), 0)
        if index and self._coordinator is not None:
            self._coordinator.command(index, name, command)
            return
        why = f"mpirun wants to start something on {address}, which is not another host of the run"
        self._fail(self._own_failure(why))

    def _command(self, name: str, command: str) -> None:
        places = self._engine.places
        if self._teardown.begun or self._commands >= MAX_COMMANDS or places is None:
            return
        self._commands += 1
        daemon = RankSpec(self._spec.node_index, 0, (login_shell(), "-c", command), {})
        process = make_rank(self._spec, daemon, self._master_port, places)
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
            if self._coordinator is not None:
                self._look_for_cut()
        if self._teardown.begun:
            self._teardown.terminate_late(rank.pid)

    def _rank_exited(self, rank: RankProcess) -> None:
        self._output.flush()
        super()._exited(rank)
        self._end_engines()

    # mpirun and its daemons

    def _read_ends(self) -> None:
        super()._read_ends()  # first: ranks end by themselves once their daemon is gone
        self._engine.reports.read()

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
        found: set[int] = set()
        for process in self._ranks.alive:
            found |= {process.pid, *descendants(process.pid)}
        for rank in self._engine.alive:
            found -= {rank.pid, *descendants(rank.pid)}
        return found

    def _look_for_raised(self) -> None:
        """Count a rank as failed if it raised and does not end."""
        places = self._engine.places
        if self._teardown.begun or places is None:
            return
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look_for_raised)
        by_pid = {rank.inner: rank for rank in self._engine.alive}
        for noted in read_raised(places.errors):
            raised = noted._replace(t_ns=steady.of_wall(noted.t_ns))
            rank = by_pid.get(raised.pid)
            if rank is None or not rank.started_ns <= raised.t_ns:
                continue
            if steady.now_ns() - raised.t_ns > RAISED_SECONDS * 1e9:
                index, number = self._spec.node_index, rank.spec.rank
                told = (raised.t_ns, RAISED_EXIT_CODE, None, raised.error, raised.traceback)
                self._fail(Failure(index, number, rank.pid, *told))
                return

    def _look_for_cut(self) -> None:
        """Report lost connections of Open MPI if hosts were silent while the ranks met."""
        assert self._coordinator is not None
        if self._teardown.begun:
            return
        heard = self._coordinator.quiet_seconds.items()
        quiet = {host: seconds for host, seconds in heard if seconds >= QUIET_SECONDS}
        waits = self._all_meet() if quiet else False
        if waits is None:
            return
        logs = [(each.command.stderr_path, each.stderr_from) for each in self._ranks.alive]
        if not waits or not any(_UNCONNECTED in end_of(p, TAIL_BYTES, since) for p, since in logs):
            self._cut_look = self._loop.call_later(CUT_SECONDS, self._look_for_cut)
            return
        seconds = max(WAITING_SECONDS, *quiet.values())
        again = self._restart < self._spec.max_restarts
        if again:
            self._cut_look = self._loop.call_later(seconds, partial(self._blame_cut, quiet))
        self._note(notes.connection_lost(quiet, seconds if again else 0.0))

    def _blame_cut(self, quiet: dict[str, float]) -> None:
        if not self._teardown.begun and self._all_meet():
            assert self._coordinator is not None
            told = f"Open MPI failed to connect ranks as {notes.not_heard_of(quiet)}"
            self._coordinator.blame_host(min(quiet), told)

    def _all_meet(self) -> bool | None:
        from distconsole_agent.journal.rings import all_meet  # late: as above

        places = self._engine.places
        return places is not None and all_meet(places.rings, self._restart + 1)

    def _judge(self, rank: RankProcess, stopped_ns: int | None) -> None:
        """Delay the judgement of a rank that died of SIGTERM: mpirun sends it after another rank's MPI_Abort."""
        assert rank.ended is not None
        if stopped_ns is None and rank.ended.signal == signal.SIGTERM:
            judge = partial(super()._judge, rank, None)
            self._call_in_attempt(SUSPECT_SECONDS, judge, lambda: self._ending.gone)
        else:
            super()._judge(rank, stopped_ns)

    def _fail(self, failure: Failure) -> None:
        if failure.signal == signal.SIGTERM and failure.pid != os.getpid():
            failure = failure._replace(error=f"{failure.error}{BY_ENGINE}")
        super()._fail(failure)

    def _tell_started(self, rank: RankProcess) -> None:
        """Report no start: mpirun and its daemons are no ranks."""

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
        # Until this shim kills, a daemon that SIGKILL ended is no victim: mpirun sends it none.
        by_others = rank.ended.signal == signal.SIGKILL and not self._teardown.kills
        failure = self._engine.failure(rank, self._teardown.begun and not by_others)
        if failure is None:
            return
        if name is not None and failure.signal is None and not failure.traceback:
            # mpirun, which ends its daemons when it refuses, may still print the reason.
            fail = partial(self._fail, failure)
            self._call_in_attempt(SUSPECT_SECONDS, fail, lambda: self._teardown.begun)
        else:
            self._fail(failure)

    def _command_ended(self, _node: int, name: str, exit_code: int) -> None:
        self._engine.remote_ended(name, exit_code)

    def _end_leftovers(self) -> None:
        if self._spec.node_index == 0 or self._commands:
            super()._end_leftovers()
