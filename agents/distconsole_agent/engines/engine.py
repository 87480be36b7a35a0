"""The ranks of a run that mpirun starts: each tells the shim of its start and its end through a pipe.

mpirun's own exit code and words say too little of which rank failed, and its daemons, not the shim,
are the parents of the ranks. So every rank runs below a few lines of ``sh`` (``launch/launchers/mpi.py``) that
write to the named pipe ``reports`` in the run's folder. What mpirun would give to ssh comes the same
way, as ``remote``. Every line is checked: whoever is this user may write there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import signal
from typing import Callable

from distconsole_agent.contract.runspec import RankSpec, RunSpec
from distconsole_agent.coordination.blame import MAX_ERROR_CHARS, Failure
from distconsole_agent.node_folder.folders import remove_tree
from distconsole_agent.supervisor.failures import describe_exit, read_tail
from distconsole_agent.supervisor.processes import Exit, Places, RankProcess
from distconsole_agent.supervisor.spawning import Command
from distconsole_agent.system import steady
from distconsole_agent.system.loop import READ, Loop

REPORTS, REMOTE, SCRATCH = "reports", "remote", "engine"
BASH = "/bin/bash"
"""Where it is there, it stands in for dash, which unblocks every signal for what it starts."""

MAX_COMMAND_BYTES = 48 * 1024
MAX_LINE_BYTES = 512
READ_BYTES = 1 << 16

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
"""Of the MPICH family: the rank itself prints it, and is killed with what would have reported it."""

REMOTE_SCRIPT = """\
#!/bin/sh
# mpirun starts this where it would start ssh: it hands the command to the run's shim on this host,
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


class Engine:
    """The ranks of this node, as they report themselves; ``spec`` is the run as it is for one of them.

    Args:
        on_remote: Gets a host's address, a command for it, and a name for ``remote_ended``.
    """

    def __init__(
        self,
        loop: Loop,
        spec: RunSpec,
        on_started: Callable[[RankProcess], None],
        on_exited: Callable[[RankProcess], None],
        on_remote: Callable[[str, str, str], None],
    ) -> None:
        self._loop = loop
        self._on_started, self._on_exited, self._on_remote = on_started, on_exited, on_remote
        self.spec = spec._replace(engine_ranks=True, ranks=())
        self._places: Places | None = None
        self._fd = -1
        self._unread = b""
        self._ranks: dict[int, RankProcess] = {}

    @property
    def alive(self) -> list[RankProcess]:
        return [rank for rank in self._ranks.values() if rank.ended is None]

    def open(self, places: Places) -> None:
        """Make what the ranks and mpirun need in the run's folder, or raise OSError."""
        self._places = places
        folder = os.path.join(places.run_dir, SCRATCH)
        os.mkdir(folder, 0o700)
        reports = os.path.join(places.run_dir, REPORTS)
        os.mkfifo(reports, 0o600)
        # Open for writing too: a reader alone is told of an end whenever the last writer leaves.
        self._fd = os.open(reports, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop.watch(self._fd, READ, lambda _events: self.read())
        text = REMOTE_SCRIPT.format(folder=shlex.quote(folder), reports=shlex.quote(reports))
        script = os.open(
            os.path.join(places.run_dir, REMOTE), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700
        )
        with open(script, "w", encoding="utf-8") as file:
            file.write(text)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def read(self) -> None:
        while self._fd >= 0:
            try:
                chunk = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            *lines, rest = (self._unread + chunk).split(b"\n")
            self._unread = rest[-MAX_LINE_BYTES:]
            for line in lines:
                self._take(line)

    def remote_ended(self, name: str, exit_code: int) -> None:
        """Tell mpirun that a command on another host has ended."""
        if self._places is None or not name.isdigit():
            return
        path = os.path.join(self._places.run_dir, SCRATCH, f"{name}.end")
        with contextlib.suppress(OSError):  # mpirun may have ended it, or be gone
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(fd, b"%d\n" % (exit_code & 0xFF))
            finally:
                os.close(fd)

    def failure(self, process: RankProcess, stopping: bool) -> Failure | None:
        """Return how mpirun, or its daemon here, failed; None when it ended as it should."""
        self.read()
        ended = process.ended
        assert ended is not None
        over = {number for number, rank in self._ranks.items() if rank.ended is not None}
        ranks = self.spec.nodes[self.spec.node_index].ranks
        missing = [number for number in ranks if number not in over]
        if ended.exit_code == 0 and not missing:
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
        elif ended.exit_code == 0:
            error = f"mpirun ended, and rank {rank} had not said how it ended"
        else:
            words = describe_exit(ended.exit_code, ended.signal, None)
            error = f"{_name(process, self.spec)} {words}"
        if process.spawn_failure is not None:
            error = process.spawn_failure.error
        how = (exit_code, number, error[:MAX_ERROR_CHARS], told.traceback)
        return Failure(self.spec.node_index, rank, process.pid, ended.t_ns, *how)

    def _aborting(self, process: RankProcess) -> Failure | None:
        """Return the failure of a rank here that called MPI_Abort and could not report its end."""
        assert process.ended is not None
        for rank in self.alive:
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
            self._exited(int(found[1]), int(found[2]), t_ns)
        elif (found := _REMOTE.match(line)) is not None and self.spec.node_index == 0:
            self._remote(found[1].decode("ascii"), found[2].decode("ascii"))

    def _started(self, number: int, local_rank: int, pid: int, t_ns: int) -> None:
        assert self._places is not None
        if number in self._ranks or not any(number in node.ranks for node in self.spec.nodes):
            return
        stem = os.path.join(self._places.logs, f"rank-{number}")
        command = Command((), {}, "", None, f"{stem}.out", f"{stem}.err")
        logged = self._places.logged.get(f"rank-{number}.err", 0)
        rank = RankProcess(RankSpec(number, local_rank, (), {}), command, logged)
        rank.pid, rank.started_ns = pid, t_ns
        self._ranks[number] = rank
        self._on_started(rank)

    def _exited(self, number: int, code: int, t_ns: int) -> None:
        rank = self._ranks.get(number)
        if rank is None or rank.ended is not None:
            return
        # ``$?`` of a shell does not tell a signal from an exit code above 128.
        by_signal = code - 128 if 128 < code < 128 + signal.NSIG else None
        rank.ended = Exit(code, by_signal, t_ns)
        self._on_exited(rank)

    def _remote(self, host: str, name: str) -> None:
        assert self._places is not None
        path = os.path.join(self._places.run_dir, SCRATCH, name)
        with contextlib.suppress(OSError):
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                command = file.read(MAX_COMMAND_BYTES + 1)
            os.unlink(path)
            if len(command) <= MAX_COMMAND_BYTES:
                self._on_remote(host, command, name)


def discard(places: Places) -> None:
    """Remove what an engine that has ended left: what ``open`` made, and its shared memory beside the rings."""
    # Late: a shim starts sooner without it.
    from distconsole_agent.journal.rings import CHECKED_SUFFIX, RING_SUFFIX

    paths = [os.path.join(places.run_dir, name) for name in (REPORTS, REMOTE)]
    with contextlib.suppress(OSError):
        remove_tree(os.path.join(places.run_dir, SCRATCH))
    with contextlib.suppress(OSError):
        left = os.listdir(places.rings)
        segments = [name for name in left if not name.endswith((RING_SUFFIX, CHECKED_SUFFIX))]
        paths += [os.path.join(places.rings, name) for name in segments]
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _name(process: RankProcess, spec: RunSpec) -> str:
    name = os.path.basename(process.spec.argv[0])
    return name if spec.node_index == 0 else f"mpirun's daemon on {spec.host}"


def login_shell() -> str:
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    usable = os.access(shell, os.X_OK) and os.path.basename(shell) not in ("nologin", "false")
    name = os.path.basename(shell)
    if (not usable or name in ("sh", "dash")) and os.access(BASH, os.X_OK):
        return BASH
    return shell if usable else "/bin/sh"
