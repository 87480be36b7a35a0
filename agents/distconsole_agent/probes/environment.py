"""The environment of the session that asks for a probe, and that of a launch's ranks."""

from __future__ import annotations

import contextlib
import os
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import bad_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_VARIABLES = 512
MAX_VALUE = 32 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_ASKED_FROM: ContextVar[Mapping[str, str] | None] = ContextVar("asked_from", default=None)


@contextlib.contextmanager
def use_environment(environment: Mapping[str, str] | None) -> Iterator[None]:
    """Have ``session_environment`` return ``environment``; None stands for this process's own.

    It holds in this thread, and in threads that run in a copy of its context.
    """
    token = _ASKED_FROM.set(environment)
    try:
        yield
    finally:
        _ASKED_FROM.reset(token)


def session_environment() -> Mapping[str, str]:
    """Return the asking session's environment for programs: the agent's own may be hours old."""
    environment = _ASKED_FROM.get()
    return os.environ if environment is None else environment


def home() -> str:
    return session_environment().get("HOME") or os.path.expanduser("~")


def launch_environment(args: dict[str, Any]) -> dict[str, str]:
    """Return the asking session's environment as ``env`` and ``unset`` of a probe's arguments change it."""
    return change_environment(session_environment(), args, "env", "unset")


def change_environment(
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
