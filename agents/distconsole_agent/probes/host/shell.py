"""What the node's shell finds, and what a process is given that starts as ranks do: limits, variables, temporary folder."""

from __future__ import annotations

import os
import pwd
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.environment import (
    change_environment,
    launch_environment,
    session_environment,
)
from distconsole_agent.probes.programs import run_program
from distconsole_agent.probes.scripts import ask_python

PROGRAMS = ("python3", "mpirun", "orted", "prted", "torchrun", "horovodrun", "nvidia-smi", "srun")
_MARK = "distconsole-path "


def look(_args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``shell``: by shell and program the path, or null."""
    shell = _login_shell()
    script = "; ".join(
        f'printf "{_MARK}%s %s\\n" {program} "$(command -v {program} 2>/dev/null)"'
        for program in PROGRAMS
    )
    # ``ssh host cmd`` gives the shell a bare environment; the session's is that of ssh already.
    return {
        "shell": shell,
        "path": session_environment().get("PATH", ""),
        "noninteractive": _paths([shell, "-c", script], seconds / 2),
        "login": _paths([shell, "-lc", script], seconds / 2),
    }


def _login_shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"


def _paths(argv: list[str], seconds: float) -> dict[str, str | None] | None:
    """Return the path of each program; None when the shell did not answer."""
    try:
        ended = run_program(argv, seconds)
    except OSError:
        return None
    found: dict[str, str | None] = {}
    for line in ended.out.splitlines():
        if line.startswith(_MARK):
            name, _, path = line[len(_MARK) :].partition(" ")
            found[name] = path.strip() or None
    return found if set(found) == set(PROGRAMS) else None


MAX_FILES = 1 << 17


def start(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Start a process as a rank is started and return what it finds (see ``inspect_launch``).

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
    env = change_environment(launch_environment(args), args)
    return ask_python("inspect_launch", wanted, args, seconds, env=env)[0]
