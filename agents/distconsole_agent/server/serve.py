"""The agent: accepts bridges and has their requests answered."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import threading
import time

from distconsole_agent.contract import limits
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.node_folder.compiled import keep_compiled
from distconsole_agent.node_folder.folders import NodeFolders, this_program
from distconsole_agent.node_folder.hook_files import remove_leftovers
from distconsole_agent.node_folder.node_owner import keep_from_cleaners, take_node_dir
from distconsole_agent.node_folder.runs import NodeRuns
from distconsole_agent.server.answers import Answers
from distconsole_agent.server.connection import (
    NO_DESCRIPTORS,
    NO_THREADS,
    TOO_MANY_CONSOLES,
    ConsoleConnection,
)
from distconsole_agent.system import unix
from distconsole_agent.system.descriptors import is_scarce, raise_limit
from distconsole_agent.system.own_log import complain
from distconsole_agent.telemetry.sampling import Sampling, Telemetry

LOCK_SECONDS = 1.0
"""A process that only asks whether an agent lives holds its lock for an instant."""

LOOK_SECONDS = 1.0
"""Pace of starting the sampling and of asking whether to leave."""


def serve(node_dir: str, idle_seconds: float | None, lock_fd: int | None) -> int:
    """Be the agent of ``node_dir`` until a request to leave or idle; return the exit code; ``lock_fd``: as taken."""
    raise_limit()
    for name in limits.FREED_MEMORY:
        os.environ.pop(name, None)
    try:
        program = this_program()
        node_dir, held = take_node_dir(node_dir)
        kept = keep_from_cleaners(node_dir)
        folders = NodeFolders(node_dir, program.tag)
    except Refusal as refusal:
        complain(f"{refusal.message}: {refusal.hint}")
        return 1
    lock = _take_lock(folders.lock) if lock_fd is None else lock_fd
    if lock is None:
        return 0
    os.set_inheritable(lock, False)
    os.chdir("/")
    Agent(folders, limits.IDLE_SECONDS if idle_seconds is None else idle_seconds).work()
    for descriptor in (lock, held, kept):
        if descriptor is not None:
            os.close(descriptor)
    return 0


class Agent:
    def __init__(self, folders: NodeFolders, idle_seconds: float) -> None:
        self._folders = folders
        self._idle_seconds = idle_seconds
        self._runs = NodeRuns(folders, this_program())
        telemetry = Telemetry()
        self._sampling = Sampling(
            telemetry,
            lambda: [(run.rank_processes(), run.give_sample) for run in self._runs.active],
        )
        self._answers = Answers(folders.node_dir, self._runs, telemetry, self._leave)
        self._threads = threading.BoundedSemaphore(limits.MAX_THREADS)
        self._connections: set[ConsoleConnection] = set()
        self._lock = threading.Lock()
        self._leaving = threading.Event()

    def work(self) -> None:
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._compile, name="compile", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self._leaving.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        listener = unix.listen(self._folders.socket, limits.MAX_CONNECTIONS)
        self._runs.pick_up()
        try:
            while not self._leaving.is_set():
                self._accept_until_idle(listener)
                if self._leaving.is_set():
                    break
                # Take the name away, then look once more: no bridge may be left with a dead socket.
                with contextlib.suppress(
                    FileNotFoundError
                ):  # a request may have it leave meanwhile
                    os.unlink(self._folders.socket)
                if not self._accept(listener, 0.0):
                    return
                listener.close()
                listener = unix.listen(self._folders.socket, limits.MAX_CONNECTIONS)
        finally:
            listener.close()
            self._leave()
            with self._lock:
                connections = list(self._connections)
            for connection in connections:
                connection.close()
            self._runs.leave()

    def _accept_until_idle(self, listener: socket.socket) -> None:
        busy_at = time.monotonic()
        housekeep_at = 0.0
        while not self._leaving.is_set():
            now = time.monotonic()
            self._runs.reap()
            active = self._runs.active
            if active:
                self._sampling.ensure()
            if self._accept(listener, LOOK_SECONDS) or active or self._connections:
                busy_at = now
            if now >= housekeep_at:
                housekeep_at = now + limits.HOUSEKEEPING_SECONDS
                self._runs.housekeep()
                try:
                    remove_leftovers(self._folders)
                except OSError as error:
                    complain(f"old files stay: {error}")
            if now - busy_at >= self._idle_seconds:
                return

    def _accept(self, listener: socket.socket, seconds: float) -> bool:
        listener.settimeout(seconds)
        try:
            sock, _address = listener.accept()
        except (TimeoutError, socket.timeout, BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            # Out of descriptors, most likely: present connections go on.
            complain(f"cannot accept: {error}")
            time.sleep(seconds)
            return False
        if unix.peer_uid(sock) not in (os.getuid(), 0):
            sock.close()
            return False
        connection = ConsoleConnection(
            sock, self._answers.answer, self._threads, self._connection_over
        )
        scarce = is_scarce(sock.fileno())
        with self._lock:
            full = len(self._connections) >= limits.MAX_CONNECTIONS
            if not (full or scarce):
                self._connections.add(connection)
        if scarce:
            connection.turn_away(NO_DESCRIPTORS)
        elif full:
            connection.turn_away(TOO_MANY_CONSOLES)
        else:
            try:
                connection.begin()
            except RuntimeError as error:
                # Present connections go on, and so do the runs.
                complain(f"a connection is turned away: {error}")
                self._connection_over(connection)
                connection.turn_away(NO_THREADS)
        return True

    def _leave(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folders.socket)
        self._leaving.set()

    def _compile(self) -> None:
        """Compile the program so that later ones start faster, once the waiting sessions have been served."""
        archive = this_program().archive
        if archive is None or self._leaving.wait(limits.COMPILE_AFTER_SECONDS):
            return
        try:
            keep_compiled(archive)
        except OSError as error:
            complain(f"the program stays uncompiled: {error}")

    def _connection_over(self, connection: ConsoleConnection) -> None:
        with self._lock:
            self._connections.discard(connection)


def _take_lock(path: str) -> int | None:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        if time.monotonic() > deadline:
            os.close(lock)
            return None
        time.sleep(0.05)
