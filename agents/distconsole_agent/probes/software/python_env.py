"""Facts of a process that starts here as ranks do: packages, programs, limits, variables.

It asks the interpreter that the ranks will use, in the shell that they will be started from, and
imports torch only for ``import_torch``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.probes.arguments import ProbeError, Shell, bounded
from distconsole_agent.probes.collectives.preloaded import end_server
from distconsole_agent.probes.environment import change_environment, launch_environment
from distconsole_agent.probes.scripts import ask_python

MAX_FILES = 1 << 17
MAX_SERVED_SECONDS = 600.0

_ENDED: deque[str] = deque(maxlen=64)
"""Tokens that may be ended while torch is still imported."""


@cache
def _agent_pipe() -> tuple[int, int]:
    """Return a pipe whose first end reads as ended once this agent, which alone holds the second, has ended."""
    return os.pipe()


def look(
    seconds: float, *, shell: Shell, load: bool = False, controllers: bool = False
) -> dict[str, Any]:
    """Return ``{"python": …, "torch": …, "horovod": …, "env": …}``.

    Args:
        load: Also load Horovod's library, to report its features.
        controllers: List Horovod's controllers by the names in its library.
    """
    job = {"load": load, "controllers": controllers}
    facts, took = ask_python("inspect_python", job, shell, seconds)
    facts["python"]["seconds"] = round(took, 3)
    return facts


def import_torch(
    seconds: float, *, shell: Shell, token: str = "", serve_seconds: float = 0.0
) -> dict[str, object]:
    """Return the facts of group ``import`` by ``python`` after ``setup``; ``late`` if there was no time.

    Args:
        token: Fork ranks by it for ``serve_seconds``, or until ``end_import``.
    """
    job: dict[str, object] = {}
    fds: tuple[int, ...] = ()
    served = bounded(serve_seconds, 0.0, MAX_SERVED_SECONDS)
    if served > 0 and token and shell.container is None:
        agent, _ = fds = _agent_pipe()
        job = {"name": token, "serve_seconds": served, "agent": agent}
    try:
        return ask_python("inspect_torch", job, shell, seconds, fds=fds[:1])[0]
    except ProbeError as error:
        if error.code != ErrorCode.TIMED_OUT:
            raise
        return {"present": True, "error": "", "seconds": seconds, "late": True}
    finally:
        if token in _ENDED:
            end_import(seconds, token=token)


def end_import(_seconds: float, *, token: str) -> dict[str, object]:
    """End the process that forks ranks by ``token``; ``ending`` is false where there is none."""
    _ENDED.append(token)
    try:
        end_server(token)
    except OSError:
        return {"ending": False}
    return {"ending": True}


def start(
    seconds: float,
    *,
    shell: Shell,
    add: Mapping[str, str] = {},
    remove: Sequence[str] = (),
    names: Sequence[str] = (),
    files: int = 0,
    tmp: bool = False,
) -> dict[str, object]:
    """Start a process as a rank is started and return its facts (see ``inspect_launch``).

    Args:
        add: Variables, after those of the launch, and ``remove`` those that go.
        names: Variables to read back.
        files: How many files to open.
        tmp: Whether to try the temporary folder.
    """
    wanted = {"names": list(names), "files": int(bounded(files, 0, MAX_FILES)), "tmp": tmp}
    env = change_environment(launch_environment(shell), add, remove)
    return ask_python("inspect_launch", wanted, shell, seconds, env)[0]
