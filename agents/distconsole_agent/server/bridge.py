"""Program of the SSH channel that must start the agent first: it does so, and copies bytes."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time

from distconsole_agent.contract.limits import CONNECT_SECONDS, FREED_MEMORY
from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.contract.refusal import Refusal, start_failed
from distconsole_agent.node_folder.folders import NodeFolders, Program, this_program
from distconsole_agent.node_folder.node_owner import take_node_dir
from distconsole_agent.server.joining import ANSWER_SECONDS, GREETING, copy
from distconsole_agent.system import unix

MAX_STARTS = 3
"""Starts of an agent that dies at once."""


def bridge(node_dir: str) -> int:
    """Connect stdin and stdout to the agent of ``node_dir`` until one of them ends; return the exit code."""
    try:
        node_dir, _held = take_node_dir(node_dir)  # until this process ends
        folders = NodeFolders(node_dir, this_program().tag)
        agent = reach_agent(folders, this_program(), CONNECT_SECONDS)
    except Refusal as refusal:
        sys.stdout.write(json.dumps({"error": refusal.as_json()}) + "\n")
        sys.stdout.flush()
        return 1
    with agent:
        sys.stdout.flush()
        os.write(1, GREETING + os.fsencode(sys.executable) + b"\n")
        copy(agent.fileno(), 0, 1)
    return 0


def reach_agent(folders: NodeFolders, program: Program, seconds: float) -> socket.socket:
    """Return a connection to the agent, started if there is none, or raise Refusal in time."""
    deadline = time.monotonic() + seconds
    pause = 0.01
    starts = 0
    while True:
        try:
            return unix.connect(folders.socket, ANSWER_SECONDS)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            pass
        except OSError as error:
            raise start_failed(f"{folders.socket}: {error.strerror}") from None
        starts += start_agent(folders, program)
        if starts > MAX_STARTS or time.monotonic() > deadline:
            from distconsole_agent.server.shim_calls import last_line

            words = last_line(folders.log)
            raise start_failed(
                f"the agent could not be started{words and f': {words}'}",
                f"look into {folders.log} on that node",
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def start_agent(folders: NodeFolders, program: Program) -> bool:
    """Start an agent unless one lives already; return True if this call started it.

    The agent inherits the lock taken here: of any number of racing starters one
    starts an agent, and none starts a second one while it lives.

    Raises Refusal (``storage`` or ``start_failed``) when the system refuses.
    """
    import subprocess

    from distconsole_agent.server.shim_calls import inherit_environment

    try:
        lock = os.open(folders.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Refusal(ErrorCode.STORAGE, f"{folders.lock}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with open(os.open(folders.log, flags, 0o600), "ab") as log:
            started = subprocess.Popen(
                [*program.argv, "agent", "--node-dir", folders.node_dir, "--lock-fd", str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
                env={**inherit_environment(None), **FREED_MEMORY},
            )
        # It outlives us on purpose: init is its parent once we end.
        started.returncode = 0
    except BlockingIOError:
        return False
    except OSError as error:
        raise start_failed(f"cannot start the agent: {error}") from None
    finally:
        os.close(lock)
    return True
