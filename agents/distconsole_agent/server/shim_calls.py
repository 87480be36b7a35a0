"""Starts shims and asks them, one line each way; the caller makes the request."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from typing import Callable

from distconsole_agent.contract import records
from distconsole_agent.contract.limits import SHIM_START_SECONDS
from distconsole_agent.contract.protocol import ErrorCode, Values
from distconsole_agent.contract.refusal import Refusal, start_failed
from distconsole_agent.contract.requests import ShimRequest
from distconsole_agent.journal.rings import RUN_VARIABLES
from distconsole_agent.node_folder.folders import Program
from distconsole_agent.supervisor.proctree import ENV_RUN_DIR
from distconsole_agent.system import unix
from distconsole_agent.system.descriptors import UsersProgram
from distconsole_agent.system.kernel_files import end_of

MAX_ANSWER_BYTES = 64 * 1024


def inherit_environment(environment: dict[str, str] | None) -> dict[str, str]:
    """Return the environment for a run's processes: ``environment``, else ours, less the marks of another run."""
    source = os.environ if environment is None else environment
    return {k: v for k, v in source.items() if k not in (*RUN_VARIABLES, ENV_RUN_DIR)}


def shim_words(program: Program, folder: str) -> list[str]:
    """Return the command of the shim of the run in ``folder``, without installed packages."""
    python, *rest = program.argv
    bare = [python, "-S", *rest] if program.archive is not None else program.argv
    return [*bare, "shim", "--run", folder]


def start_shim(
    program: Program, folder: str, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start the shim of the run in ``folder``, which outlives this process, or raise OSError."""
    path = os.path.join(folder, "shim.log")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open(os.open(path, flags, 0o600), "ab") as log:
        return UsersProgram(
            shim_words(program, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )


def await_shim(folder: str, shim: subprocess.Popen[bytes]) -> Values:
    """Return ``prepare``'s answer for a new shim, or raise Refusal with its last words."""
    prepared = poll_shim(folder, SHIM_START_SECONDS, lambda: shim.poll() is not None)
    if prepared is not None:
        return prepared
    words = last_line(os.path.join(folder, "shim.log")) or "it said nothing"
    how = f"code {shim.returncode}" if shim.poll() is not None else "no answer"
    raise start_failed(f"the run's supervisor did not start ({how}): {words}")


def poll_shim(folder: str, seconds: float, is_over: Callable[[], bool]) -> Values | None:
    """Return ``prepare``'s answer for the shim of the run in ``folder``; None if it is over, or not in time."""
    deadline, pause = time.monotonic() + seconds, 0.002
    while time.monotonic() < deadline and not is_over():
        with contextlib.suppress(OSError):
            status = ask_shim(os.path.join(folder, "shim.sock"), ShimRequest("status"), seconds)
            known = {key: status.get(key) for key in ("coordinator", "master_port")}
            return {**known, "shim_pid": status.get("pid")}
        time.sleep(pause)
        pause = min(pause * 1.1, 0.1)
    return None


def ask_shim(path: str, request: ShimRequest, seconds: float) -> Values:
    """Return a shim's answer. Raises Refusal as it does, OSError when none comes in time."""
    with unix.connect(path, seconds) as shim:
        shim.sendall(json.dumps(records.write(request)).encode("ascii") + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            chunk = shim.recv(MAX_ANSWER_BYTES)
            if not chunk or len(answer) > MAX_ANSWER_BYTES:
                raise ConnectionResetError("the supervisor hung up")
            answer += chunk
    try:
        message = json.loads(answer)
    except ValueError:
        raise ConnectionResetError("the supervisor speaks nonsense") from None
    error = message.get("error")
    if isinstance(error, dict):
        code = str(error.get("code") or ErrorCode.INTERNAL)
        raise Refusal(code, str(error.get("message") or ""), str(error.get("hint") or ""))
    return dict(message)


def last_line(path: str) -> str:
    """Return the last line of a log; empty without one, or if it cannot be read."""
    lines = end_of(path, 2000).strip().splitlines()
    return lines[-1][:500] if lines else ""
