"""The node's Python as a rank would find it: packages, torch's and Horovod's builds, variables.

It asks the interpreter that the ranks will use, in the shell that they will be started from, and
imports neither torch nor Horovod.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import failed, timed_out
from distconsole_agent.probes.programs import run_script
from distconsole_agent.probes.sources import script_source

MARK = "distconsole-facts "


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"python": …, "torch": …, "horovod": …, "env": …}``.

    Args:
        args: ``python``: the interpreter, this one if not given; ``setup``: what the node's shell
            runs first; ``load``: also load Horovod's library, to see what is in it.
        seconds: For the other process.

    Raises:
        ProbeError: when that interpreter does not answer.
    """
    python = read.optional_text(args, "python") or sys.executable
    ended = run_script(
        script_source("inspect_python"),
        [repr(seconds), "load" if args.get("load") else "look"],
        seconds,
        python=python,
        setup=read.optional_text(args, "setup"),
    )
    for line in ended.out.splitlines():
        if line.startswith(MARK):
            facts: dict[str, Any] = json.loads(line[len(MARK) :])
            facts["python"]["seconds"] = round(ended.seconds, 3)
            return facts
    if ended.exit_code is None:
        raise timed_out(f"{python} did not answer in {seconds:.1f} s")
    last = (ended.err.strip().splitlines() or ["it printed nothing"])[-1]
    raise failed(f"{python} ended with code {ended.exit_code}: {last[:300]}")
