"""A node's MPI, and its facts for a run by Horovod or MPI, or a build of Horovod."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import socket
from typing import Any, Callable

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import bad_arguments, probe_failure
from distconsole_agent.probes.at_once import look_at_once
from distconsole_agent.probes.environment import home, session_environment
from distconsole_agent.probes.programs import run_program
from distconsole_agent.probes.scripts import ask_python, words_into
from distconsole_agent.probes.software import python_env
from distconsole_agent.probes.software.container import run_inside

_VERSIONS = (
    ("Open MPI", re.compile(r"mpirun \((?:Open MPI|OpenRTE)\) (\S+)")),
    ("Open MPI", re.compile(r"mpirun \(PRRTE\) (\S+)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version (.+?)(?: Build|$)", re.MULTILINE)),
    ("MPICH", re.compile(r"HYDRA.*?Version:\s*(\S+)", re.DOTALL)),
)


_DAEMONS = ("orted", "prted", "hydra_pmi_proxy")

WHEELS = (".cache", "distconsole", "wheels")
MAX_PIECE_BYTES = 1024 * 1024
MAX_WHEEL_BYTES = 512 * 1024 * 1024

_NAME = re.compile(r"^[A-Za-z_]\w{0,63}$")
_WHEEL = re.compile(r"^[0-9A-Za-z_.+-]{1,128}/[0-9A-Za-z_.+-]{1,160}\.whl$")


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``mpi``; the node's shell runs ``setup`` first."""
    setup = read.optional_text(args, "setup")
    if enter := words_into(args, setup):
        return _look_inside(enter, setup, seconds)
    environment = after_setup(setup, seconds / 3)
    path = shutil.which("mpirun", path=environment.get("PATH"))
    if path is None:
        return {"present": False}
    ended = run_program([path, "--version"], seconds / 3, env=environment)
    family, version = parse_version(ended.out + ended.err)
    daemons = (shutil.which(name, path=environment.get("PATH")) for name in _DAEMONS)
    return {
        "present": True,
        "mpirun": os.path.realpath(path),
        "family": family,
        "version": version,
        "daemon": next(filter(None, daemons), None),
    }


def _look_inside(enter: tuple[str, ...], setup: str | None, seconds: float) -> dict[str, Any]:
    names = f"mpirun {' '.join(_DAEMONS)}"
    text = f"for name in {names}; do command -v $name; done\necho; mpirun --version 2>&1\nexit 0\n"
    found, _, banner = run_inside(text, seconds, enter, setup).out.partition("\n\n")
    path, *daemons = found.splitlines() or [""]
    if not path.endswith("/mpirun"):
        return {"present": False}
    family, version = parse_version(banner)
    about = {"family": family, "version": version, "daemon": next(iter(daemons), None)}
    return {"present": True, "mpirun": path, **about}


def parse_version(banner: str) -> tuple[str, str]:
    """Return family and version from the output of ``mpirun --version``; empty if unknown."""
    for family, pattern in _VERSIONS:
        found = pattern.search(banner)
        if found:
            return family, found.group(1).strip()
    return "", ""


def after_setup(setup: str | None, seconds: float) -> dict[str, str]:
    """Return the environment that a program started after ``setup`` has."""
    if setup is None:
        return dict(session_environment())
    # By its path: after the setup command there may be no PATH left that finds it.
    env = shutil.which("env", path=session_environment().get("PATH")) or "/usr/bin/env"
    ended = run_program((env, "-0"), seconds, f"{{ {setup}\n}} >&2")
    pairs = (entry.partition("=") for entry in ended.out.split("\0") if entry)
    return {name: value for name, _, value in pairs} or dict(session_environment())


def look_before_run(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"horovod": …, "mpi": …, "own_addresses": […], "own_name_error": …}``, null unless asked for.

    ``own_addresses`` are IPv4 addresses of the node's own name, as the node resolves it;
    ``own_name_error`` is the resolver's message if the name has no address of any family.

    Args:
        args: ``engines``: some of ``horovod`` and ``mpi``; ``python``: the ranks' interpreter;
            ``setup``: run first by the node's shell.
    """
    asked = read.items(args, "engines")
    if not set(asked) <= {"horovod", "mpi"}:
        raise bad_arguments("engines is a list of horovod and mpi")
    facts: dict[str, Any] = dict.fromkeys(("horovod", "mpi", "own_addresses", "own_name_error"))
    engines: dict[str, Callable[[], dict[str, Any]]] = {
        "horovod": lambda: {"horovod": _horovod(args, seconds), **_own_name()},
        "mpi": lambda: {"mpi": _mpi_or_none(args, seconds)},
    }
    for found in look_at_once(lambda name: engines[name](), sorted(set(asked))):
        facts.update(found)
    return facts


def _mpi_or_none(args: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    with contextlib.suppress(OSError):
        return look({name: args.get(name) for name in ("setup", "container")}, seconds)
    return None


def _horovod(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    facts = python_env.look({**args, "controllers": True, "load": False}, seconds)
    horovod = facts["horovod"]
    return {
        "present": horovod["present"],
        "version": horovod.get("version", ""),
        "torch": facts["torch"].get("version", ""),
        "against": horovod.get("against", {}).get("pytorch"),
        "library": bool(horovod.get("torch_library")),
        "controllers": horovod.get("controllers"),
    }


def _own_name() -> dict[str, Any]:
    """Resolve this node's own name; the addresses are in the order of the resolver."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, 0, socket.SOCK_STREAM)
    except OSError as error:
        return {"own_addresses": [], "own_name_error": error.strerror or str(error)}
    by_ipv4 = (str(entry[4][0]) for entry in found if entry[0] == socket.AF_INET)
    return {"own_addresses": list(dict.fromkeys(by_ipv4)), "own_name_error": ""}


def look_before_build(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of ``inspect_build``, with ``torch`` and ``mpi`` as other groups have them.

    Args:
        args: ``python``: the ranks' interpreter; ``setup``: run first in the node's shell;
            ``modules``: modules that a build imports -> the package that brings each.
    """
    modules = args.get("modules", {})
    if not isinstance(modules, dict) or not all(map(_NAME.match, map(str, modules))):
        raise bad_arguments("modules are no names")
    facts, _ = ask_python("inspect_build", {"modules": modules}, args, seconds)
    torch = python_env.look(args, seconds)["torch"]
    facts["torch"] = torch if torch.get("version") else None
    facts["mpi"] = _mpi_or_none(args, seconds) or {"present": False}
    return facts


def read_wheel(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Return a part of a wheel: ``{"size": bytes in all, "data": base64}``.

    Args:
        args: ``wheel``: its folder and name below ``~/.cache/distconsole/wheels``; ``offset``.
    """
    name = read.text(args, "wheel")
    if not _WHEEL.match(name) or ".." in name:
        raise bad_arguments(f"{name[:64]!r} is not a wheel of ours")
    offset = read.whole(args, "offset", 0, 0, MAX_WHEEL_BYTES)
    path = os.path.join(home(), *WHEELS, name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            data = file.read(MAX_PIECE_BYTES)
    except OSError as error:
        raise probe_failure(f"{path}: {error.strerror}") from None
    return {"size": size, "data": base64.b64encode(data).decode("ascii")}
