"""The environment of the session that asks for a probe, and that of a launch's ranks."""

from __future__ import annotations

import contextlib
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distconsole_agent.probes.arguments import Shell

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


def launch_environment(shell: Shell) -> dict[str, str]:
    """Return the asking session's environment with the launch's changes."""
    return change_environment(session_environment(), shell.env, shell.unset)


def change_environment(
    variables: Mapping[str, str], change: Mapping[str, str], remove: Sequence[str]
) -> dict[str, str]:
    return {**{name: each for name, each in variables.items() if name not in remove}, **change}
