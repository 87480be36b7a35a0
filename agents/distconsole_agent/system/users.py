"""Names of users, where this machine has any for their numbers."""

from __future__ import annotations

import os
import pwd


def user_name(uid: int | None = None) -> str:
    """Return the name of a user, by default of this process's; the number where there is no name.

    Args:
        uid: The user's number.
    """
    number = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
