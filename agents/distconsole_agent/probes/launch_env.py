"""The environment that a launch gives its ranks, for probes that look at what those would see."""

from __future__ import annotations

import re
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.asking import session_environment
from distconsole_agent.probes.errors import bad_arguments

MAX_VARIABLES = 512
MAX_VALUE = 32 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def launch_environment(args: dict[str, Any]) -> dict[str, str]:
    """Return the asking session's environment as ``env`` and ``unset`` of a probe's arguments change it.

    Raises:
        ProbeError: if they are no variables.
    """
    given = args.get("env", {})
    if not isinstance(given, dict) or len(given) > MAX_VARIABLES:
        raise bad_arguments("env is not an object of variables")
    env = dict(session_environment())
    for name in read.texts(args, "unset")[:MAX_VARIABLES]:
        env.pop(name, None)
    for name, value in given.items():
        if not NAME.match(name) or not isinstance(value, str) or len(value) > MAX_VALUE:
            raise bad_arguments(f"env has {name[:64]!r}, which is no variable")
        env[name] = value
    return env
