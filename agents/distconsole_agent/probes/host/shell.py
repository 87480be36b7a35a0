"""Which programs the node's shell finds, as a login shell and as the one that ssh starts."""

from __future__ import annotations

import os
import pwd
from typing import Any

from distconsole_agent.probes.asking import session_environment
from distconsole_agent.probes.programs import run_program

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
