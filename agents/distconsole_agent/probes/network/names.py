"""What the names of the peers mean on this node."""

from __future__ import annotations

from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.scripts import ask_script

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
        parts = ask_script("inspect_names", {"names": names}, seconds).parts
        found.update((name, parts[name]) for name in names if name in parts)
    return {"names": found}
