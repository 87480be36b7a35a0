"""Starts the node's agent again when it has died during a run."""

from __future__ import annotations

import fcntl
import os
from typing import NoReturn

from distconsole_agent.node_folder.folders import NodeFolders
from distconsole_agent.supervisor.spawning import become_subreaper, reset_signals
from distconsole_agent.system.descriptors import give_back_limit
from distconsole_agent.system.loop import Loop, Timer

CHECK_SECONDS = 5.0
LONGEST_CHECK_SECONDS = 80.0
"""An agent that keeps dying is started ever more rarely, down to this pace."""


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
        """Start it as nobody's child: an agent below the shim would count as part of the run.

        An orphan goes to the nearest subreaper above it, so the shim is none until the process in
        between has ended. A rank's orphan that slips away meanwhile is found by its environment.
        """
        become_subreaper(False)
        try:
            self._starter = os.fork()
        except OSError:
            become_subreaper()
            return
        if self._starter == 0:
            _become_agent(self._argv, self._folders.log)


def agent_lives(lock_path: str) -> bool:
    """Return whether somebody holds the agent's lock; a lock that cannot be asked counts as held."""
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _become_agent(argv: tuple[str, ...], log_path: str) -> NoReturn:
    try:
        reset_signals()
        os.setsid()
        if os.fork() == 0:
            give_back_limit()
            os.chdir("/")
            null = os.open(os.devnull, os.O_RDWR)
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for fd, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(fd, target)
            os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
            os.execv(argv[0], argv)  # noqa: S606 - this is what it is for
    finally:
        os._exit(1)
