"""What is piped into ``run`` reaches no rank: refused where the script reads it, said where it may be meant.

A shell's loop (``while read host; do distconsole run …``) and a CI system give every program a standard input,
which most scripts never read. So data alone refuses nothing.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import stat
import termios
from collections.abc import Callable
from enum import Enum

from distconsole.errors import UsageError
from distconsole.model import requests as ask

NAMES = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
"""Arguments that mean it."""


class Carries(Enum):
    """What a standard input has for a reader."""

    NOTHING = "nothing"
    PERHAPS = "perhaps"
    DATA = "data"


def look_at_input(request: ask.Request, say: Callable[[str], None], descriptor: int = 0) -> None:
    """Say that standard input does not reach the ranks, where somebody may think so.

    Raises UsageError if there is data in it, and the script reads it.
    """
    if not isinstance(request, ask.Run) or request.dry_run or request.emit is not None:
        return
    carries = what_is_in(descriptor)
    if carries is Carries.NOTHING:
        return
    from distconsole.launch.script import find_traits  # noqa: PLC0415 - most need no look

    reads = any(each in NAMES for each in request.arguments) or find_traits(request).stdin
    if reads and carries is Carries.DATA:
        raise UsageError(
            f"{request.script} reads standard input, which does not reach the ranks",
            "put the data into a file that every host has; without the data: < /dev/null",
        )
    if reads or carries is Carries.DATA:
        say("standard input does not reach the ranks")


def what_is_in(descriptor: int) -> Carries:
    """Return what can be read there without waiting; a terminal and /dev/null have nothing."""
    try:
        kind = os.fstat(descriptor)
        if stat.S_ISREG(kind.st_mode):
            left = kind.st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
            return Carries.DATA if left > 0 else Carries.NOTHING
        if not (stat.S_ISFIFO(kind.st_mode) or stat.S_ISSOCK(kind.st_mode)):
            return Carries.NOTHING
        waiting = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
        if waiting[0]:
            return Carries.DATA
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return Carries.NOTHING if poll.poll(0) else Carries.PERHAPS  # readable and empty: its end
    except OSError:
        return Carries.NOTHING
