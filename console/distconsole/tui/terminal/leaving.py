"""How the screen is left on signals: on the first as by ``quit``; on the next within seconds, whatever is stuck."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from collections.abc import Callable
from types import FrameType
from typing import Any

from distconsole.operations.last_resort import STDERR, WRITE_SECONDS, LastResort

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STDIN = 0
LFLAG = 3

NO_KEY_PROTOCOL = "\x1b[=0u"
"""Else Ctrl-C comes as an escape sequence from terminals that know Kitty's keys."""

AS_BEFORE = (
    b"\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?7h"
    b"\x1b[<u\x1b[?1049l\x1b[?25h"
)
"""No mouse, no pasting, no sizes and no focus are told, lines wrap; keys, screen and cursor as they were."""


class Leaving:
    """What a signal does while the screen stands and is left.

    Args:
        left_behind: What may go on when the program ends, in lines.
    """

    def __init__(
        self,
        leave: Callable[[int], object],
        is_leaving: Callable[[], bool],
        left_behind: Callable[[], list[str]],
    ) -> None:
        self._leave, self._is_leaving = leave, is_leaving
        self._asked = False
        self._attributes = _attributes()
        self._last = LastResort(left_behind, restore=self._restore)
        # Not by the event loop, which may be what is stuck.
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def __enter__(self) -> Leaving:
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._last.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # First, for the next signal may come within this one.
        asked, self._asked = self._asked, True
        if asked or self._is_leaving():
            self._last.begin(128 + number)
        else:
            self._leave(128 + number)

    def _restore(self) -> None:
        if self._attributes is None:
            return
        with contextlib.suppress(termios.error):
            termios.tcsetattr(STDIN, termios.TCSANOW, self._attributes)
        if select.select([], [STDERR], [], WRITE_SECONDS)[1]:  # where Textual draws
            os.write(STDERR, AS_BEFORE)


def let_keys_signal() -> None:
    """Make Ctrl-C a signal again, which needs nothing of a screen that may be stuck."""
    attributes = _attributes()
    if attributes is not None:
        attributes[LFLAG] |= termios.ISIG
        with contextlib.suppress(termios.error):
            termios.tcsetattr(STDIN, termios.TCSANOW, attributes)


def _attributes() -> list[Any] | None:
    try:
        return termios.tcgetattr(STDIN)
    except (OSError, termios.error):
        return None
