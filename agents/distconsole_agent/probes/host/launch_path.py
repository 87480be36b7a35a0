"""What a process is given on the way that ranks are started: its limits, variables, temporary folder."""

from __future__ import annotations

import json
import sys
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import failed, timed_out
from distconsole_agent.probes.launch_env import change_environment, launch_environment
from distconsole_agent.probes.programs import facts_said, last_words, run_script
from distconsole_agent.probes.sources import script_source

MARK = "distconsole-launch "
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
    python = read.optional_text(args, "python") or sys.executable
    ended = run_script(
        script_source("inspect_launch"),
        [repr(seconds), json.dumps(wanted)],
        seconds,
        python=python,
        setup=read.optional_text(args, "setup"),
        env=change_environment(launch_environment(args), args),
    )
    facts = facts_said(ended, MARK)
    if facts is not None:
        return facts
    if ended.exit_code is None:
        raise timed_out(f"{python} did not answer in {seconds:.1f} s")
    raise failed(f"{python} ended with code {ended.exit_code}: {last_words(ended)}")
