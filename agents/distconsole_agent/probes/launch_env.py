"""The environment that a launch gives its ranks, for probes that look at what those would see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.asking import session_environment
from distconsole_agent.probes.errors import bad_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VARIABLES = 512
MAX_VALUE = 32 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def launch_environment(args: dict[str, Any]) -> dict[str, str]:
    """Return the asking session's environment as ``env`` and ``unset`` of a probe's arguments change it.

    Raises:
        ProbeError: if they are no variables.
    """
    return _change(session_environment(), args, "env", "unset")


def change_environment(env: Mapping[str, str], args: dict[str, Any]) -> dict[str, str]:
    """Return ``env`` as ``set`` and ``remove`` of a probe's arguments change it.

    Raises:
        ProbeError: if they are no variables.
    """
    return _change(env, args, "set", "remove")


def _change(
    variables: Mapping[str, str], args: dict[str, Any], setting: str, removing: str
) -> dict[str, str]:
    given = args.get(setting, {})
    if not isinstance(given, dict) or len(given) > MAX_VARIABLES:
        raise bad_arguments(f"{setting} is not an object of variables")
    env = dict(variables)
    for name in read.texts(args, removing)[:MAX_VARIABLES]:
        env.pop(name, None)
    for name, value in given.items():
        if not NAME.match(name) or not isinstance(value, str) or len(value) > MAX_VALUE:
            raise bad_arguments(f"{setting} has {name[:64]!r}, which is no variable")
        env[name] = value
    return env
