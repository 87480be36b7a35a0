"""A node's MPI, and its facts for a run by Horovod or MPI, or a build of Horovod."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from distconsole_agent.probes.arguments import Shell, bad_arguments, bounded, probe_failure
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

_WHEEL = re.compile(r"^[0-9A-Za-z_.+-]{1,128}/[0-9A-Za-z_.+-]{1,160}\.whl$")


def look(seconds: float, *, shell: Shell) -> dict[str, object]:
    """Return the facts of group ``mpi``; the node's shell runs ``setup`` first."""
    if enter := words_into(shell):
        return _look_inside(enter, shell.setup, seconds)
    environment = after_setup(shell.setup, seconds / 3)
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


def _look_inside(enter: tuple[str, ...], setup: str | None, seconds: float) -> dict[str, object]:
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


def look_before_run(
    seconds: float, *, shell: Shell, engines: Sequence[str] = ()
) -> dict[str, object]:
    """Return ``{"horovod": …, "mpi": …, "own_addresses": […], "own_name_error": …}``, null unless asked for.

    ``own_addresses`` are IPv4 addresses of the node's own name, as the node resolves it;
    ``own_name_error`` is the resolver's message if the name has no address of any family.

    Args:
        engines: Some of ``horovod`` and ``mpi``.
    """
    looks: dict[str, Callable[[], dict[str, object]]] = {
        "horovod": lambda: {"horovod": _horovod(shell, seconds), **_own_name()},
        "mpi": lambda: {"mpi": _mpi_or_none(shell, seconds)},
    }
    if not set(engines) <= looks.keys():
        raise bad_arguments("engines is a list of horovod and mpi")
    facts: dict[str, object] = dict.fromkeys(("horovod", "mpi", "own_addresses", "own_name_error"))
    for found in look_at_once(lambda name: looks[name](), sorted(set(engines))):
        facts.update(found)
    return facts


def _mpi_or_none(shell: Shell, seconds: float) -> dict[str, object] | None:
    with contextlib.suppress(OSError):
        return look(seconds, shell=Shell(setup=shell.setup, container=shell.container))
    return None


def _horovod(shell: Shell, seconds: float) -> dict[str, object]:
    facts = python_env.look(seconds, shell=shell, controllers=True)
    horovod = facts["horovod"]
    return {
        "present": horovod["present"],
        "version": horovod.get("version", ""),
        "torch": facts["torch"].get("version", ""),
        "against": horovod.get("against", {}).get("pytorch"),
        "library": bool(horovod.get("torch_library")),
        "controllers": horovod.get("controllers"),
    }


def _own_name() -> dict[str, object]:
    """Resolve this node's own name; the addresses are in the order of the resolver."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, 0, socket.SOCK_STREAM)
    except OSError as error:
        return {"own_addresses": [], "own_name_error": error.strerror or str(error)}
    by_ipv4 = (str(entry[4][0]) for entry in found if entry[0] == socket.AF_INET)
    return {"own_addresses": list(dict.fromkeys(by_ipv4)), "own_name_error": ""}


def look_before_build(
    seconds: float, *, shell: Shell, modules: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Return the facts of ``inspect_build``, with ``torch`` and ``mpi`` as other groups have them.

    Args:
        modules: Modules that a build imports -> the package that brings each.
    """
    facts, _ = ask_python("inspect_build", {"modules": modules}, shell, seconds)
    torch = python_env.look(seconds, shell=shell)["torch"]
    facts["torch"] = torch if torch.get("version") else None
    facts["mpi"] = _mpi_or_none(shell, seconds) or {"present": False}
    return facts


def read_wheel(_seconds: float, *, wheel: str, offset: int = 0) -> dict[str, object]:
    """Return a part of a wheel: ``{"size": bytes in all, "data": base64}``.

    Args:
        wheel: Its folder and name below ``~/.cache/distconsole/wheels``.
    """
    if not _WHEEL.match(wheel) or ".." in wheel:
        raise bad_arguments(f"{wheel[:64]!r} is not a wheel of ours")
    path = os.path.join(home(), *WHEELS, wheel)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(int(bounded(offset, 0, MAX_WHEEL_BYTES)))
            data = file.read(MAX_PIECE_BYTES)
    except OSError as error:
        raise probe_failure(f"{path}: {error.strerror}") from None
    return {"size": size, "data": base64.b64encode(data).decode("ascii")}
