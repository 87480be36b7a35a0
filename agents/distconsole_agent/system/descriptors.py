"""Raises this program's limit of descriptors to the hard limit. Its children get the user's limit back."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import threading
from typing import Any

RESERVED = 32
"""For requests of this host, the journal, /proc and starting programs; a small limit has fewer."""

_users: tuple[int, int] | None = None
_lock = threading.Lock()
_starting = 0


def users_limits() -> tuple[int, int]:
    """Return the soft and the hard limit that this program was started with."""
    return _users or resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Allow this program as many descriptors as the hard limit does; a refusal keeps the present limit."""
    global _users  # noqa: PLW0603 - a limit is the process's
    _users = users_limits()
    _set(_users[1])


def give_back_limit() -> None:
    """Take the limit that this program was started with, before it becomes the user's program."""
    _set(users_limits()[0])


def is_scarce(fd: int) -> bool:
    """Return True if, with ``fd`` open, few are left: those are reserved for vital work."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft != resource.RLIM_INFINITY and fd >= soft - min(RESERVED, soft // 4)


def _set(soft: int) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] != soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, users_limits()[1]))


class UsersProgram(subprocess.Popen[bytes]):
    """A program that this one starts, with the limit of descriptors that its user had.

    None of our code runs between fork and exec, where a program with threads may deadlock: our
    own limit is the user's meanwhile. A thread that is refused a descriptor then tries again.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        global _starting  # noqa: PLW0603 - as the limit, it is the process's
        with _lock:
            _starting += 1
            give_back_limit()
        try:
            super().__init__(*args, **how)
        finally:
            with _lock:
                _starting -= 1
                if not _starting and _users is not None:
                    _set(_users[1])
