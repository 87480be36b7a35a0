"""What the SSH channel runs: finds or starts the agent and copies bytes; it understands none of them."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import sys
import time

from distconsole_agent import unix
from distconsole_agent.folders import NodeFolders, Program, open_node_dir, this_program
from distconsole_agent.limits import CONNECT_SECONDS
from distconsole_agent.protocol import ErrorCode
from distconsole_agent.refusal import Refusal

GREETING = b"distconsole-bridge 1 "
"""Begins the first line of ours on stdout; whatever came before it is the shell's own noise.

The session's interpreter follows: the agent's own may be one that another session named.
"""

BUFFER_BYTES = 256 * 1024
"""Most that is held in each direction before the bridge stops reading."""

ANSWER_SECONDS = 5.0
"""How long a full queue of the agent's socket is waited for."""

MAX_STARTS = 3
"""An agent that dies at once is started so often."""

FLUSH_SECONDS = 2.0
"""How long bytes already read may take to be handed on once the other side has gone."""


def bridge(node_dir: str) -> int:
    """Connect stdin and stdout to the agent of ``node_dir`` until one of them ends; return the exit code."""
    try:
        folders = NodeFolders(open_node_dir(node_dir), this_program().tag)
        agent = reach_agent(folders, this_program(), CONNECT_SECONDS)
    except Refusal as refusal:
        sys.stdout.write(json.dumps({"error": refusal.as_json()}) + "\n")
        sys.stdout.flush()
        return 1
    with agent:
        sys.stdout.flush()
        os.write(1, GREETING + os.fsencode(sys.executable) + b"\n")
        copy(agent, 0, 1)
    return 0


def reach_agent(folders: NodeFolders, program: Program, seconds: float) -> socket.socket:
    """Return a connection to the agent, which is started if there is none.

    Raises:
        Refusal: ``start_failed``, when none answers within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    pause = 0.01
    starts = 0
    while True:
        try:
            return unix.connect(folders.socket, ANSWER_SECONDS)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            pass
        except OSError as error:
            raise Refusal(ErrorCode.START_FAILED, f"{folders.socket}: {error.strerror}") from None
        starts += start_agent(folders, program)
        if starts > MAX_STARTS or time.monotonic() > deadline:
            raise Refusal(
                ErrorCode.START_FAILED,
                f"the agent could not be started{_last_words(folders.log)}",
                f"look into {folders.log} on that node",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def start_agent(folders: NodeFolders, program: Program) -> bool:
    """Start an agent unless one lives already; return whether one was started.

    The agent inherits the lock that was taken here, so that of any number of racing starters one
    starts an agent, and nobody starts a second one while it lives.

    Raises:
        Refusal: ``storage`` or ``start_failed``, when the system refuses.
    """
    import subprocess

    from distconsole_agent.shim_calls import inherited

    try:
        lock = os.open(folders.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refusal(ErrorCode.STORAGE, f"{folders.lock}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log = os.open(folders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            started = subprocess.Popen(
                [*program.argv, "agent", "--node-dir", folders.node_dir, "--lock-fd", str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
                env=inherited(None),
            )
        finally:
            os.close(log)
        # It outlives us on purpose: it is nobody's child once we end.
        started.returncode = 0
    except BlockingIOError:
        return False
    except OSError as error:
        raise Refusal(ErrorCode.START_FAILED, f"cannot start the agent: {error}") from None
    finally:
        os.close(lock)
    return True


def copy(agent: socket.socket, source: int, sink: int) -> None:
    """Copy ``source`` to the agent and the agent to ``sink`` until either ends.

    What one side does not take stays unread at the other, so memory is bounded.
    """
    for fd in (agent.fileno(), source, sink):
        os.set_blocking(fd, False)
    inward, outward = _Pipe(source, agent.fileno()), _Pipe(agent.fileno(), sink)
    while not (inward.ended or outward.ended):
        ready = _wait(inward, outward)
        if ready.get(sink, 0) & (select.POLLERR | select.POLLNVAL):
            return
        gone = select.POLLHUP | select.POLLERR
        for pipe in (inward, outward):
            pipe.step(bool(ready.get(pipe.source, 0) & (select.POLLIN | gone)))
    for pipe in (inward, outward):
        pipe.flush(FLUSH_SECONDS)


def _wait(inward: _Pipe, outward: _Pipe) -> dict[int, int]:
    """Return what became possible, by descriptor."""
    wanted = {outward.sink: 0}
    for pipe in (inward, outward):
        # A source without room is left out: its hang-up would be reported again and again.
        if pipe.room:
            wanted[pipe.source] = wanted.get(pipe.source, 0) | select.POLLIN
        if pipe.held:
            wanted[pipe.sink] = wanted.get(pipe.sink, 0) | select.POLLOUT
    poll = select.poll()
    for fd, mask in wanted.items():
        poll.register(fd, mask)
    return dict(poll.poll())


class _Pipe:
    """One direction of the copy."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.ended = False
        self.held = bytearray()

    @property
    def room(self) -> int:
        return BUFFER_BYTES - len(self.held)

    def step(self, readable: bool) -> None:
        """Read what may be read and write what may be written."""
        if readable and self.room:
            self._read()
        if self.held:
            self._write()

    def flush(self, seconds: float) -> None:
        """Write what is held, for at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.held and time.monotonic() < deadline:
            select.select([], [self.sink], [], max(0.0, deadline - time.monotonic()))
            if not self._write():
                return

    def _read(self) -> None:
        try:
            data = os.read(self.source, min(self.room, 65536))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.held += data
        self.ended = not data

    def _write(self) -> bool:
        try:
            del self.held[: os.write(self.sink, self.held)]
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
            return False
        return True


def _last_words(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1][:300]}" if lines else ""
