"""Forks and executes programs in a clean state: ranks, and the node's agent if it has died during a run."""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import signal
import struct
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from distconsole_agent.node_folder.folders import NodeFolders
from distconsole_agent.node_folder.proofs import may_be_held
from distconsole_agent.system.descriptors import give_back_limit
from distconsole_agent.system.loop import Loop, Timer
from distconsole_agent.system.memory import memory_file

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

NOT_FOUND_EXIT_CODE = 127
NOT_EXECUTABLE_EXIT_CODE = 126

_LIBC = ctypes.CDLL(None, use_errno=True)
_REPORT = struct.Struct("<iB")
_STAGES = {
    "prepare": ("the process cannot start", ""),
    "workdir": (
        "the working folder {workdir} cannot be used",
        "create it on this host, or name another one with --workdir",
    ),
    "logs": ("{log} cannot be written", "make room"),
    "exec": (
        "{program} cannot be executed",
        "it must be on this host's PATH and executable; --python names the interpreter, "
        "--setup runs a command before it",
    ),
}
"""A child's steps until the exec; the error of each, and a hint."""

BASH = "/bin/bash"
"""Preferred to dash, which unblocks every signal for its children."""

CHECK_SECONDS = 5.0
LONGEST_CHECK_SECONDS = 80.0
"""An agent that keeps dying is started ever more rarely, down to this pace."""


class ChildCommand(NamedTuple):
    """A command, run after ``setup`` in its shell; ``blocked`` signals, ``pipes`` for output, or ``detached``."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    setup: str | None
    stdout_path: str
    stderr_path: str
    blocked: tuple[int, ...] = ()
    pipes: tuple[str, str] | None = None
    detached: bool = False


class SpawnFailure(NamedTuple):
    """Why a command was not executed."""

    exit_code: int
    error: str
    hint: str


def become_subreaper(on: bool = True) -> None:
    """Have orphans below this process become its children (prctl(2)), or raise OSError."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(on))


def spawn(command: ChildCommand) -> tuple[int, int]:
    """Fork and execute ``command`` in a session of its own that dies with the calling thread.

    Returns the child's pid, and a descriptor for ``read_failure`` that ends empty once it was executed.

    Raises OSError when the system has no process or descriptor left.
    """
    words, setup_fds = wrap_in_setup(command.setup, command.argv)
    try:
        report_read, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        for descriptor in setup_fds:
            os.close(descriptor)
        raise
    parent = os.getpid()
    # Our handlers are in the child until it resets them, and would swallow an early SIGTERM.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(command, words, parent, report_write, setup_fds)
    except OSError:
        os.close(report_read)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in (report_write, *setup_fds):
            os.close(descriptor)
    return pid, report_read


def wrap_in_setup(
    setup: str | None, argv: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the words that run ``setup`` in a shell and become ``argv`` then, and descriptors for them alone.

    It may hold a secret, and every user can read a command line: the shell reads it from memory. bash is
    preferred: setups (``source``, ``module load``, ``conda activate``) are written for it.
    The caller closes the descriptors. Raises OSError if there is none left.
    """
    if setup is None:
        return argv, ()
    shell = next((path for path in (BASH, "/usr/bin/bash") if os.path.exists(path)), "/bin/sh")
    memory = memory_file("distconsole-setup", os.fsencode(setup))
    # Other shells take no number of two digits for a descriptor: they leave it open, and empty.
    read, close = ("<", f"exec {memory}<&-") if shell.endswith("/bash") else ("cat ", ":")
    script = (
        f"distconsole_setup=$({read}/dev/fd/{memory}); : >/dev/fd/{memory}\n"
        f'{close}; eval "$distconsole_setup"\n'
        'distconsole_code=$?; [ "$distconsole_code" = 0 ] || '
        'echo "distconsole: the setup command ended with code $distconsole_code" >&2\n'
        "unset distconsole_code distconsole_setup\n"
        'exec "$@"'
    )
    return (shell, "-c", script, "sh", *argv), (memory,)


def login_shell() -> str:
    """Return the shell in which sshd would run a command of this user's."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    name = os.path.basename(shell)
    usable = os.access(shell, os.X_OK) and name not in ("nologin", "false")
    if (not usable or name in ("sh", "dash")) and os.access(BASH, os.X_OK):
        return BASH
    return shell if usable else "/bin/sh"


def read_failure(report: bytes, command: ChildCommand) -> SpawnFailure | None:
    """Return why a child was not executed; None when it was."""
    if len(report) < _REPORT.size:
        return None
    number, index = _REPORT.unpack(report[: _REPORT.size])
    what, hint = list(_STAGES.values())[index]
    what = what.format(workdir=command.workdir, log=command.stdout_path, program=command.argv[0])
    return SpawnFailure(_exit_code(number, index), f"{what}: {os.strerror(number)}", hint)


def _become(
    command: ChildCommand,
    words: tuple[str, ...],
    parent: int,
    report_fd: int,
    kept: tuple[int, ...],
) -> NoReturn:
    stage = 0
    exit_code = NOT_EXECUTABLE_EXIT_CODE
    try:
        os.setsid()
        if command.detached:
            if os.fork():
                os._exit(0)
        else:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before it could be noticed
                os.kill(os.getpid(), signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, command.blocked)
        give_back_limit()
        stage = 2
        _redirect(command)
        stage = 1
        os.chdir(command.workdir)
        first, highest = 3, max(int(name) for name in os.listdir("/proc/self/fd"))
        for descriptor in (*sorted((*kept, report_fd)), highest + 1):
            os.closerange(first, descriptor)
            first = descriptor + 1
        for descriptor in kept:
            os.set_inheritable(descriptor, True)
        stage = 3
        os.execvpe(words[0], words, dict(command.env))  # noqa: S606 - the user's own command
    except OSError as error:
        exit_code = _exit_code(error.errno or 0, stage)
        os.write(report_fd, _REPORT.pack(error.errno or 0, stage))
    finally:
        os._exit(exit_code)


def _exit_code(number: int, stage: int) -> int:
    """Return a shell's exit code: 127 when there is no such command, else 126 (POSIX, 2.8.2)."""
    missing = number == errno.ENOENT and stage == len(_STAGES) - 1
    return NOT_FOUND_EXIT_CODE if missing else NOT_EXECUTABLE_EXIT_CODE


def _redirect(command: ChildCommand) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    out, err = command.pipes or (command.stdout_path, command.stderr_path)
    for target, path, how in ((0, os.devnull, os.O_RDONLY), (1, out, flags), (2, err, flags)):
        fd = os.open(path, how, 0o600)
        os.dup2(fd, target, inheritable=True)
        if fd != target:
            os.close(fd)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class AgentWatch:
    """Looks at the agent's lock every few seconds; empty ``argv`` leaves a dead agent dead."""

    def __init__(self, loop: Loop, folders: NodeFolders, argv: tuple[str, ...]) -> None:
        self._loop = loop
        self._folders = folders
        self._argv = argv
        self._pause = CHECK_SECONDS
        self._starter = 0
        self._timer: Timer | None = None
        if argv:
            self._timer = loop.call_later(CHECK_SECONDS, self._check)

    def reaped(self, pids: list[int]) -> None:
        """Hear of children that ended: the process that started the agent may be among them."""
        if self._starter in pids:
            self._starter = 0
            become_subreaper()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        if self._starter:
            pass
        elif agent_lives(self._folders.lock):
            self._pause = CHECK_SECONDS
        else:
            self._start()
            self._pause = min(2 * self._pause, LONGEST_CHECK_SECONDS)
        self._timer = self._loop.call_later(self._pause, self._check)

    def _start(self) -> None:
        """Start it as an orphan: an agent below the shim would count as part of the run.

        An orphan goes to the nearest subreaper above it, so the shim is none until the process in
        between has ended. A rank's orphan that slips away meanwhile is found by its environment.
        """
        log = self._folders.log
        become_subreaper(False)
        try:
            command = ChildCommand(self._argv, os.environ, "/", None, log, log, detached=True)
            self._starter, report = spawn(command)
        except OSError:
            become_subreaper()
            return
        os.close(report)


def agent_lives(lock_path: str) -> bool:
    """Return True if a process holds the agent's lock; one that cannot be tested counts as held."""
    return may_be_held(lock_path) or not os.path.isdir(os.path.dirname(lock_path))
