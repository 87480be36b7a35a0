"""Whether systemd-logind kills what a session leaves behind when it ends. It asks logind and changes nothing."""

from __future__ import annotations

import re
import shlex

from distconsole_agent.probes.programs import run_program
from distconsole_agent.system.kernel_files import text_of

SECONDS = 1.0
MANAGER = (
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
)
PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")


def ends_at_logout(user: str, seconds: float, root: str = "") -> bool | None:
    """Return whether this process, and what it starts, dies with its login session; None if nobody says.

    Outside of a session's own control group (a job of Slurm's, a container) nothing does.
    """
    if not re.search(r"/session-[^/\n]+\.scope", text_of(f"{root}/proc/self/cgroup")):
        return False
    try:
        ended = run_program(
            ["busctl", "get-property", *MANAGER, *PROPERTIES], min(SECONDS, seconds)
        )
        kills, only, excluded = (shlex.split(line) for line in ended.out.splitlines())
    except (OSError, ValueError):
        return None
    # busctl prints a list as its type, its length and its members.
    return (
        kills == ["b", "true"] and user not in excluded[2:] and (user in only[2:] or not only[2:])
    )
