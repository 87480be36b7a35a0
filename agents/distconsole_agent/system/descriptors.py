"""How many descriptors this program may have: all that are allowed. What it starts gets the user's limit back."""

from __future__ import annotations

import contextlib
import resource

RESERVED = 32
"""For requests of this host, the journal, /proc and starting programs; a small limit has fewer."""

_users: tuple[int, int] | None = None


def users_limits() -> tuple[int, int]:
    """Return the soft and the hard limit that this program was started with."""
    return _users or resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Allow this program as many descriptors as the hard limit does; a refusal leaves what there is."""
    global _users  # noqa: PLW0603 - a limit is the process's
    _users = users_limits()
    _set(_users[1])


def give_back_limit() -> None:
    """Take the limit that this program was started with, as what becomes the user's program does."""
    _set(users_limits()[0])


def take_again() -> None:
    """Undo ``give_back_limit``, where the limit was raised."""
    if _users is not None:
        _set(_users[1])


def is_scarce(fd: int) -> bool:
    """Return whether, with ``fd`` open, few are left: those are for what must go on."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft != resource.RLIM_INFINITY and fd >= soft - min(RESERVED, soft // 4)


def _set(soft: int) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] != soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, users_limits()[1]))
