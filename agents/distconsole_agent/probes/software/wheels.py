"""What ``setup`` asks a node for: whether Horovod could be built there, and a wheel that was built.

It hands out wheels of the folder where they are built.
"""

from __future__ import annotations

import base64
import os
import re
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.environment import home
from distconsole_agent.probes.errors import bad_arguments, failed
from distconsole_agent.probes.scripts import ask_python
from distconsole_agent.probes.software import mpi, python_env

FOLDER = (".cache", "distconsole", "wheels")
MAX_PIECE_BYTES = 1024 * 1024
MAX_WHEEL_BYTES = 512 * 1024 * 1024

_NAME = re.compile(r"^[A-Za-z_]\w{0,63}$")
_WHEEL = re.compile(r"^[0-9A-Za-z_.+-]{1,128}/[0-9A-Za-z_.+-]{1,160}\.whl$")


def look_before_build(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of ``inspect_build``, with ``torch`` and ``mpi`` as other groups have them.

    Args:
        args: ``python``: the ranks' interpreter; ``setup``: what the node's shell runs first;
            ``modules``: what a build imports, by module the package that brings it.
    """
    modules = args.get("modules", {})
    if not isinstance(modules, dict) or not all(map(_NAME.match, map(str, modules))):
        raise bad_arguments("modules are no names")
    facts, _ = ask_python("inspect_build", {"modules": modules}, args, seconds)
    torch = python_env.look(args, seconds)["torch"]
    facts["torch"] = torch if torch.get("version") else None
    try:
        facts["mpi"] = mpi.look({"setup": args.get("setup")}, seconds)
    except OSError:
        facts["mpi"] = {"present": False}
    return facts


def read_wheel(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return a part of a wheel: ``{"size": bytes in all, "data": base64}``.

    Args:
        args: ``wheel``: its folder and name below ``~/.cache/distconsole/wheels``; ``offset``.
    """
    del seconds
    name = read.text(args, "wheel")
    if not _WHEEL.match(name) or ".." in name:
        raise bad_arguments(f"{name[:64]!r} is not a wheel of ours")
    offset = read.whole(args, "offset", 0, 0, MAX_WHEEL_BYTES)
    path = os.path.join(home(), *FOLDER, name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            data = file.read(MAX_PIECE_BYTES)
    except OSError as error:
        raise failed(f"{path}: {error.strerror}") from None
    return {"size": size, "data": base64.b64encode(data).decode("ascii")}
