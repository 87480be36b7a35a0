"""The node's Python as a rank would find it: packages, torch's and Horovod's builds, variables.

It asks the interpreter that the ranks will use, in the shell that they will be started from, and
imports torch only where that import is what is asked for.
"""

from __future__ import annotations

import json
from typing import Any

from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.probes.errors import ProbeError
from distconsole_agent.probes.scripts import ask_python


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"python": …, "torch": …, "horovod": …, "env": …}``.

    Args:
        args: ``python``: the interpreter, this one if not given; ``setup``: what the node's shell
            runs first; ``load``: also load Horovod's library, to see what is in it;
            ``controllers``: tell some of that from its names.
    """
    job = {name: bool(args.get(name)) for name in ("load", "controllers")}
    facts, took = ask_python("inspect_python", job, args, seconds)
    facts["python"]["seconds"] = round(took, 3)
    _read_metadata(facts["horovod"])
    return facts


def _read_metadata(horovod: dict[str, Any]) -> None:
    """Replace the text of Horovod's metadata by what it says; that process has no time to read it."""
    text = horovod.pop("metadata", None)
    if text is None:
        return
    try:
        against = json.loads(text)
        horovod["against"] = {str(k): str(v) for k, v in against.items() if k != "dummy"}
    except (ValueError, AttributeError) as error:
        horovod["against_error"] = str(error)


def import_torch(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``import``; ``late`` where the time was not enough.

    Args:
        args: ``python``: the interpreter, this one if not given; ``setup``: what the node's shell
            runs first.
    """
    try:
        return ask_python("inspect_torch", {}, args, seconds)[0]
    except ProbeError as error:
        if error.code != ErrorCode.TIMED_OUT:
            raise
        return {"present": True, "error": "", "seconds": seconds, "late": True}
