"""The environment of the session that asked for a probe, in that probe's threads."""

from __future__ import annotations

import contextlib
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ASKED_FROM: ContextVar[Mapping[str, str] | None] = ContextVar("asked_from", default=None)


@contextlib.contextmanager
def asked_from(environment: Mapping[str, str] | None) -> Iterator[None]:
    """Have ``session_environment`` return ``environment``; None stands for this process's own.

    It holds in this thread, and in threads that run in a copy of its context.
    """
    token = _ASKED_FROM.set(environment)
    try:
        yield
    finally:
        _ASKED_FROM.reset(token)


def session_environment() -> Mapping[str, str]:
    """Return what a program that the asking session starts would have.

    The agent's own may be of a session hours ago, before its user mended it.
    """
    environment = _ASKED_FROM.get()
    return os.environ if environment is None else environment


def home() -> str:
    """Return the asking session's home folder."""
    return session_environment().get("HOME") or os.path.expanduser("~")
