"""The ranks of this node as processes: starts them, notes their ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Callable, NamedTuple

from distconsole_agent.contract.protocol import fill
from distconsole_agent.contract.runspec import MPI, RankSpec, RunSpec
from distconsole_agent.supervisor import containers
from distconsole_agent.supervisor.proctree import ENV_JOB, ENV_RUN_DIR, SLURM_JOB, host_pid
from distconsole_agent.supervisor.rank_output import RankOutput
from distconsole_agent.supervisor.spawning import ChildCommand, SpawnFailure, read_failure, spawn
from distconsole_agent.system import steady
from distconsole_agent.system.loop import READ, Loop

ENV_RUN, ENV_RINGS = "DISTCONSOLE_RUN", "DISTCONSOLE_RINGS"
ENV_ERRORS, ENV_HOOK = "DISTCONSOLE_ERRORS", "DISTCONSOLE_HOOK"
ENV_ATTEMPT = "DISTCONSOLE_ATTEMPT"
"""As in ``distconsole_training.records``, which a shim does not import."""

ENGINE_LOG = "engine"
"""Stem of the log of a process that starts the ranks below it (torchrun, mp.spawn)."""

MAX_REPORT_BYTES = 64

MAX_ENGINE_PIPES = 256
"""Ranks below an engine that print through pipes; others write their logs themselves."""

SLURMS_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
"""Slurm sends a job's signals to every process of it. mpirun and its daemons would end the ranks in
their own way on some, hand others on a second time, and die of the rest: the ranks get them all the
same. A handler would replace a signal that is ignored, but not one that is blocked."""

_scripts = count()
"""Numbers scripts: an engine may start several processes of one name here."""


class Exit(NamedTuple):
    """An end: ``exit_code`` is 128+S for signal S; ``t_ns`` is steady time."""

    exit_code: int
    signal: int | None
    t_ns: int


def exit_of_shell(code: int, t_ns: int, *, told: bool = True) -> Exit:
    """Return an end as a shell or an engine ``told`` it: a signal then looks like a code above 128."""
    by_signal = told and 128 < code < 128 + signal.NSIG
    return Exit(code, code - 128 if by_signal else None, t_ns)


def exit_of(status: int, t_ns: int, *, told: bool = False) -> Exit:
    """Return an end from its wait status; ``told`` as for ``exit_of_shell``."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Exit(128 + number, number, t_ns)
    return exit_of_shell(os.WEXITSTATUS(status), t_ns, told=told)


class RankProcess:
    """One process of the run.

    Attributes:
        logged: The size of each log when it was started, by name: attempts share the files.
        ended: How it ended, once that is known; then ``peak_bytes`` is the most memory that it held.
        script: The name of the script that it is inside of a container; empty without one.
        is_outside: The rank has not entered its container yet: ``pid`` is the engine's program.
    """

    def __init__(
        self,
        spec: RankSpec,
        command: ChildCommand,
        logged: Mapping[str, int] = MappingProxyType({}),
        script: str = "",
    ) -> None:
        self.spec = spec
        self.command = command
        self.logged = logged
        self.script = script
        self.is_outside = bool(script)
        self.pid = 0
        self._child = self._inner = 0
        self.started_ns = 0
        self.report_fd = -1
        self.spawn_failure: SpawnFailure | None = None
        self.ended: Exit | None = None
        self.peak_bytes = 0

    @property
    def stderr_from(self) -> int:
        """Where its words begin in its standard error's file."""
        return self.logged.get(os.path.basename(self.command.stderr_path), 0)

    @property
    def child(self) -> int:
        """The process that was forked: with a container that is the engine's program."""
        return self._child or self.pid

    @property
    def inner(self) -> int:
        return self._inner or self.pid

    def arrive(self, inner: int, run_dir: str) -> None:
        """Take that the rank runs in its container, with the pid ``inner`` there."""
        self.is_outside = False
        self._child, self._inner = self.child, inner
        self.pid = host_pid(inner, run_dir, self.spec.rank) or self.child

    def explain_outside(self, container: str, run_dir: str) -> tuple[str, str]:
        """Take an end before the rank has run in its container for the engine's; return why, and a hint."""
        from distconsole_agent.supervisor.failures import read_tail  # late: ``shim.load_late``

        assert self.ended is not None
        told = read_tail(self.command.stderr_path, self.stderr_from)
        said = f"{told.traceback}\n{told.error}"
        container = str(containers.parse_container(container))
        why = containers.explain_end(container, run_dir, self.ended.exit_code, said)
        self.spawn_failure = self.spawn_failure or SpawnFailure(self.ended.exit_code, *why)
        return why

    def is_of(self, pid: int, rank: int) -> bool:
        """Whether this is the process with that pid: in containers several may have one pid."""
        numbered = self.script.startswith("rank-")
        return pid == self.inner and (not numbered or rank in (-1, self.spec.rank))


class Processes:
    """Starts and reaps.

    Args:
        on_settled: Gets ranks that are executed, or not.
        on_reaped: Gets the pids of other children that ended.

    Attributes:
        all: The ranks that were started, or should have been.
        childless: Whether this process, a subreaper, has no descendant left.
    """

    def __init__(
        self,
        loop: Loop,
        on_settled: Callable[[RankProcess], None],
        on_exited: Callable[[RankProcess], None],
        on_reaped: Callable[[list[int]], None],
    ) -> None:
        self._loop = loop
        self._on_settled, self._on_exited, self._on_reaped = on_settled, on_exited, on_reaped
        self.all: list[RankProcess] = []
        self.childless = True

    @property
    def alive(self) -> list[RankProcess]:
        return [rank for rank in self.all if rank.pid and rank.ended is None]

    @property
    def starting(self) -> bool:
        """True while a rank is between fork and exec."""
        return any(rank.report_fd >= 0 for rank in self.all)

    def start(self, ranks: Sequence[RankProcess]) -> None:
        """Start the ranks. Raises OSError when no process is left; started ones go on."""
        self.all.extend(ranks)
        for rank in ranks:
            rank.started_ns = steady.now_ns()
            rank.pid, rank.report_fd = spawn(rank.command)
            self.childless = False
            self._loop.watch(rank.report_fd, READ, partial(self._settle, rank))

    def reap(self) -> None:
        """Take every end that is there; call it after each SIGCHLD."""
        others = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                break
            if pid == 0:
                self.childless = False
                break
            if not self._ended(pid, status, usage.ru_maxrss << 10):
                others.append(pid)
        self._on_reaped(others)

    def _ended(self, pid: int, status: int, peak_bytes: int) -> bool:
        rank = next((one for one in self.all if one.child == pid and one.ended is None), None)
        if rank is None:
            return False
        t_ns, rank.peak_bytes = steady.now_ns(), peak_bytes
        self._settle(rank)
        rank.ended = exit_of(status, t_ns, told=bool(rank.script))
        self._on_exited(rank)
        return True

    def _settle(self, rank: RankProcess, _events: int = 0) -> None:
        """Read the child's report on its exec; silence at the end means that it happened."""
        if rank.report_fd < 0:
            return
        try:
            report = os.read(rank.report_fd, MAX_REPORT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            report = b""
        self._loop.unwatch(rank.report_fd)
        os.close(rank.report_fd)
        rank.report_fd = -1
        rank.spawn_failure = read_failure(report, rank.command)
        self._on_settled(rank)


class Places(NamedTuple):
    """The folders that a rank needs to know; ``hook`` is None when it is not watched.

    Attributes:
        logged: The size of each log at the beginning of the attempt, by name.
        output: None if the process prints into its logs itself.
    """

    run_dir: str
    logs: str
    errors: str
    rings: str
    hook: str | None
    logged: Mapping[str, int] = MappingProxyType({})
    output: RankOutput | None = None


def make_places(spec: RunSpec, run_dir: str, output: RankOutput) -> Places:
    """Return the places of a run's ranks; makes missing folders.

    Ranks below an engine open their pipes themselves (``launch/launchers/mpi.py``, ``launch/launchers/torch.py``);
    an engine that numbers its ranks itself leaves open which ranks this node will have.

    Raises OSError when they cannot be made.
    """
    places = Places(
        run_dir=run_dir,
        logs=os.path.join(run_dir, "logs"),
        errors=os.path.join(run_dir, "errors"),
        rings=spec.rings or os.path.join(run_dir, "rings"),
        hook=spec.hook if spec.watch else None,
    )
    for folder in (places.logs, places.errors, places.rings):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    output.flush()
    if not spec.engine_ranks:
        nodes = spec.nodes if spec.may_lose_nodes else (spec.nodes[spec.node_index],)
        for rank in [rank for node in nodes for rank in node.ranks][:MAX_ENGINE_PIPES]:
            _pipes(output, f"rank-{rank}")
    with os.scandir(places.logs) as entries:
        logged = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
    return places._replace(logged=logged, output=output)


def _pipes(output: RankOutput, stem: str) -> tuple[str, str]:
    return output.pipe(f"{stem}.out"), output.pipe(f"{stem}.err")


def make_rank(spec: RunSpec, rank: RankSpec, port: int | None, places: Places) -> RankProcess:
    """Return ``rank`` with the command and the environment that it is started with."""
    # Such a process is no rank: its number is that of the node.
    name = f"rank-{rank.rank}" if spec.engine_ranks else ENGINE_LOG
    stem = os.path.join(places.logs, name)
    command = ChildCommand(
        argv=tuple(fill(word, port, places.run_dir) for word in rank.argv),
        env=environment(spec, rank, port, places, os.environ),
        workdir=os.path.expanduser(fill(spec.workdir or "~", port, places.run_dir)),
        setup=spec.setup,
        stdout_path=f"{stem}.out",
        stderr_path=f"{stem}.err",
        blocked=SLURMS_SIGNALS if spec.below_slurm and spec.launcher == MPI else (),
        pipes=None if places.output is None else _pipes(places.output, name),
    )
    if not spec.enter:
        return RankProcess(rank, command, places.logged)
    script = f"{name}-{next(_scripts)}" if spec.engine_ranks else f"{name}-0-{next(_scripts)}"
    command = _enclose(command, spec, rank, port, places, script)
    return RankProcess(rank, command, places.logged, script)


def _enclose(
    command: ChildCommand,
    spec: RunSpec,
    rank: RankSpec,
    port: int | None,
    places: Places,
    script: str,
) -> ChildCommand:
    """Return ``command`` as one that runs it in the run's container; raises OSError.

    The engine's program has this node's own environment: the plan's is for the process inside.
    """
    shown = {name: os.environ[name] for name in containers.VISIBLE if name in os.environ}
    places = places._replace(errors=os.path.join(places.errors, script))
    os.makedirs(places.errors, mode=0o700, exist_ok=True)
    inside = containers.Inside(
        name=script,
        argv=command.argv,
        env=containers.with_own_pythonpath(
            environment(spec, rank, port, places, shown), places.hook
        ),
        unset=spec.unset,
        workdir=command.workdir,
        pipes=command.pipes or (command.stdout_path, command.stderr_path),
        first_on_path=places.hook,
    )
    path = containers.write_script(os.path.join(places.run_dir, containers.FOLDER), inside)
    outside = _inherited(spec, os.environ)
    return command._replace(argv=(*spec.enter, "sh", path), env=outside, workdir=places.run_dir)


def environment(
    spec: RunSpec, rank: RankSpec, port: int | None, places: Places, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return a rank's environment: the inherited variables that do not mislead it, and the plan's."""
    env = _inherited(spec, inherited)
    for added in (spec.env, rank.env):
        env.update({name: fill(value, port, places.run_dir) for name, value in added.items()})
    env.setdefault("PYTHONUNBUFFERED", "1")
    env[ENV_RUN] = spec.run
    env[ENV_RUN_DIR] = places.run_dir
    env[ENV_JOB] = env.get(SLURM_JOB, "")
    if places.hook is not None:
        old = env.get("PYTHONPATH")
        env["PYTHONPATH"] = f"{places.hook}:{old}" if old else places.hook
        env.update({ENV_HOOK: places.hook, ENV_RINGS: places.rings, ENV_ERRORS: places.errors})
        env[ENV_ATTEMPT] = str(spec.restart + 1)
    return env


def _inherited(spec: RunSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in inherited.items()
        if name not in spec.unset and not name.startswith(("PET_", "DISTCONSOLE_"))
    }
