"""Finds a process of a watched run that has imported torch without the hook, and the reason."""

from __future__ import annotations

import os
import re

from distconsole_agent.roll_call.ways import runs_python
from distconsole_agent.supervisor import notes
from distconsole_agent.supervisor.proctree import pids_of_run, read_environ, read_in_time

FIRST_SECONDS, MOST_SECONDS = 3.0, 60.0
"""A run is looked at when it is so old, and again each time in twice the time, up to each minute."""

TORCH = b"libtorch_python"

OPTIONS = re.compile(rb"-(?=[^-])([^cmWX]*)([cmWX]?)(.*)", re.DOTALL)
"""Options of Python in one word: those without a value, and one with its value, or the begin of that."""


class UnwatchedProcesses:
    """Of the run in ``folder``, whose ranks' PYTHONPATH begins with the folder ``hook``; None: it is not watched."""

    def __init__(self, folder: str, hook: str | None) -> None:
        self._folder, self._hook = folder, hook
        self._pause = FIRST_SECONDS
        self._next: float | None = None

    def take(self, now: float, *, recorded: bool) -> list[notes.RunNote]:
        """Return a note, once, unless a process of the run has ``recorded`` something."""
        if recorded:
            self._hook = None
        if self._next is None:
            self._next = now + self._pause
        if self._hook is None or now < self._next:
            return []
        self._pause = min(2 * self._pause, MOST_SECONDS)
        self._next = now + self._pause
        for pid in sorted(pids_of_run(self._folder)):
            why = self._what_keeps_out(pid, self._hook)
            if why:
                self._hook = None
                return [notes.unwatched(pid, why)]
        return []

    def _what_keeps_out(self, pid: int, hook: str) -> str:
        """Return why a process that has imported torch has not loaded the hook; empty if unknown."""
        maps, line = f"/proc/{pid}/maps", f"/proc/{pid}/cmdline"
        told = read_in_time([maps, line])
        environment = read_environ(pid)
        # Others, as an engine's own, are not for the hook.
        if TORCH not in (told[maps] or b"") or b"DISTCONSOLE_RINGS" not in environment:
            return ""
        if environment.get(b"DISTCONSOLE_HOOK") == b"0":
            return ""
        if os.fsencode(hook) not in environment.get(b"PYTHONPATH", b"").split(b":"):
            return f"its PYTHONPATH does not hold {hook}"
        words = (told[line] or b"").split(b"\0")[1:] if runs_python(pid) else []
        while words and (option := OPTIONS.fullmatch(words[0])) is not None:
            if set(option[1]) & set(b"IES"):
                return f"Python was started with {os.fsdecode(words[0])}"
            if option[2] in (b"c", b"m"):
                break
            # The value of -W and -X follows at once, or is the next word.
            words = words[2 if option[2] and not option[3] else 1 :]
        site = f"{hook}/sitecustomize.py"
        if not os.access(f"/proc/{pid}/root{site}", os.R_OK):
            return f"{site} cannot be read there"
        return ""
