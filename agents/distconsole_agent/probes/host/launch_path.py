"""What a process is given on the way that ranks are started: its limits, variables, temporary folder."""

from __future__ import annotations

from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.launch_env import change_environment, launch_environment
from distconsole_agent.probes.scripts import ask_python

MAX_FILES = 1 << 17


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Start a process as a rank is started and return what it finds (see ``inspect_launch``).

    Args:
        args: ``python``, ``setup``; ``env`` and ``unset`` of a launch; ``set`` and ``remove``:
            variables, after these;
            ``names``: variables to read back; ``files``: how many files to open; ``tmp``:
            whether to try the temporary folder.
        seconds: For the other process.

    Raises:
        ProbeError: when that process does not answer.
    """
    wanted = {
        "names": read.texts(args, "names"),
        "files": read.whole(args, "files", 0, 0, MAX_FILES),
        "tmp": args.get("tmp") is True,
    }
    env = change_environment(launch_environment(args), args)
    return ask_python("inspect_launch", wanted, args, seconds, env=env)[0]
