"""What the names of the peers mean on this node."""

from __future__ import annotations

import sys
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.programs import parts_said, run_script
from distconsole_agent.probes.sources import script_source

MAX_NAMES = 2048
MAX_NAME = 255


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"names": {name: {"addresses", "error"}}}``; a name that hangs has an error.

    Args:
        args: ``names``: of hosts, to resolve.
        seconds: For all of them.
    """
    names = [name for name in read.texts(args, "names") if 0 < len(name) <= MAX_NAME][:MAX_NAMES]
    late = {"addresses": [], "error": f"no answer in {seconds:.1f} s", "late": True}
    found: dict[str, Any] = dict.fromkeys(names, late)
    if names:
        ended = run_script(
            script_source("inspect_names"),
            [repr(max(0.1, seconds * 0.8)), *names],
            seconds,
            python=sys.executable,
        )
        for name, facts in parts_said(ended):
            if name in found and isinstance(facts, dict):
                found[name] = facts
    return {"names": found}
