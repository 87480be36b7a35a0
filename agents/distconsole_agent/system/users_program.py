"""Starts programs from a program with threads, with the limit of descriptors that its user had."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

from distconsole_agent.system.descriptors import give_back_limit, take_again

_lock = threading.Lock()
_starting = 0


class UsersProgram(subprocess.Popen[bytes]):
    """A program that was started so.

    Nothing of ours is run between fork and exec, where a program with threads may lock itself up: our
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
                if not _starting:
                    take_again()
