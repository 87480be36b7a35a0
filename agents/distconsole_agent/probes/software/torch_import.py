"""How an import of torch goes in the interpreter that the ranks will use. It runs no kernel."""

from __future__ import annotations

from typing import Any

from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.probes.errors import ProbeError
from distconsole_agent.probes.programs import inspected

MARK = "distconsole-torch "


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``import``; ``late`` where the time was not enough.

    Args:
        args: ``python``: the interpreter, this one if not given; ``setup``: what the node's shell
            runs first.
        seconds: For the other process.

    Raises:
        ProbeError: when that interpreter does not answer for another reason.
    """
    try:
        return inspected("inspect_torch", [repr(seconds)], args, seconds, MARK)[0]
    except ProbeError as error:
        if error.code != ErrorCode.TIMED_OUT:
            raise
        return {"present": True, "error": "", "seconds": seconds, "late": True}
