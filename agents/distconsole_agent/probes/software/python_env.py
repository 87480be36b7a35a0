"""Facts of a process that starts here as ranks do: packages, programs, limits, variables.

It asks the interpreter that the ranks will use, in the shell that they will be started from, and
imports torch only for ``import_torch``.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import ProbeError
from distconsole_agent.probes.collectives.preloaded import end_server
from distconsole_agent.probes.environment import (
    change_environment,
    launch_environment,
)
from distconsole_agent.probes.scripts import ask_python

MAX_FILES = 1 << 17
MAX_SERVED_SECONDS = 600.0

_ENDED: deque[str] = deque(maxlen=64)
"""Tokens that may be ended while torch is still imported."""

_AGENT, _AGENT_LIVES = os.pipe()
"""The first end reads as ended once this agent, which alone holds the second, has ended."""


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"python": …, "torch": …, "horovod": …, "env": …}``.

    Args:
        args: ``python``: the interpreter, this one if not given; ``setup``: run first in the node's
            shell; ``load``: also load Horovod's library, to report its features;
            ``controllers``: list Horovod's controllers by the names in its library.
    """
    job = {name: bool(args.get(name)) for name in ("load", "controllers")}
    facts, took = ask_python("inspect_python", job, args, seconds)
    facts["python"]["seconds"] = round(took, 3)
    return facts


def import_torch(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``import`` by ``python`` after ``setup``; ``late`` if there was no time.

    Args:
        args: ``token``: fork ranks by it for ``serve_seconds``, or until ``end_import``.
    """
    job: dict[str, Any] = {}
    name = read.text(args, "token", "")
    served = read.number(args, "serve_seconds", 0.0, 0.0, MAX_SERVED_SECONDS)
    if served > 0 and name and read.optional_text(args, "container") is None:
        job = {"name": name, "serve_seconds": served, "agent": _AGENT}
    try:
        return ask_python("inspect_torch", job, args, seconds, fds=(_AGENT,))[0]
    except ProbeError as error:
        if error.code != ErrorCode.TIMED_OUT:
            raise
        return {"present": True, "error": "", "seconds": seconds, "late": True}
    finally:
        if name in _ENDED:
            end_import({"token": name}, seconds)


def end_import(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """End the process that forks ranks by ``token``; ``ending`` is false where there is none."""
    token = read.text(args, "token")
    _ENDED.append(token)
    try:
        end_server(token)
    except OSError:
        return {"ending": False}
    return {"ending": True}


def start(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Start a process as a rank is started and return its facts (see ``inspect_launch``).

    Args:
        args: ``python``, ``setup``; ``env`` and ``unset`` of a launch; ``set`` and ``remove``:
            variables, after these;
            ``names``: variables to read back; ``files``: how many files to open; ``tmp``:
            whether to try the temporary folder.
    """
    wanted = {
        "names": read.texts(args, "names"),
        "files": read.whole(args, "files", 0, 0, MAX_FILES),
        "tmp": args.get("tmp") is True,
    }
    env = change_environment(launch_environment(args), args, "set", "remove")
    return ask_python("inspect_launch", wanted, args, seconds, env)[0]
