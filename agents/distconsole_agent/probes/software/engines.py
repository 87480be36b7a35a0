"""What a run by Horovod or MPI needs of a node, asked just before it: as little as can be.

It starts no job and imports neither torch nor Horovod.
"""

from __future__ import annotations

import contextlib
import contextvars
import socket
import threading
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import bad_arguments
from distconsole_agent.probes.programs import inspected
from distconsole_agent.probes.software import mpi

MARK = "distconsole-horovod "


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"horovod": …, "mpi": …, "own_addresses": [...]}``, each null unless asked for.

    ``own_addresses`` is what the node's own name means to itself.

    Args:
        args: ``engines``: some of ``horovod`` and ``mpi``; ``python``: the ranks' interpreter;
            ``setup``: what the node's shell runs first.
        seconds: For all of it.

    Raises:
        ProbeError: when the interpreter does not answer.
    """
    asked = read.items(args, "engines")
    if not set(asked) <= {"horovod", "mpi"}:
        raise bad_arguments("engines is a list of horovod and mpi")
    horovod = "horovod" in asked
    facts: dict[str, Any] = {"mpi": None}
    context = contextvars.copy_context()
    beside = threading.Thread(target=context.run, args=(_mpi, args, seconds, facts))
    if "mpi" in asked:
        beside.start()
    try:
        facts["horovod"] = _horovod(args, seconds) if horovod else None
        facts["own_addresses"] = _own_addresses() if horovod else None
    finally:
        if "mpi" in asked:
            beside.join()
    return facts


def _mpi(args: dict[str, Any], seconds: float, facts: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        facts["mpi"] = mpi.look({"setup": args.get("setup")}, seconds)


def _horovod(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    return inspected("inspect_horovod", [], args, seconds, MARK)[0]


def _own_addresses() -> list[str]:
    """Return the IPv4 addresses of this node's own name, in the order in which they are tried."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
