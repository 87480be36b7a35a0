"""Whether a launch's script is on this node, and what lies in its folder if not. It reads no file."""

from __future__ import annotations

import os
import threading
from typing import Any

from distconsole_agent.node_folder.run_files import is_script
from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import timed_out

MAX_NAMES = 300

_looking: dict[str, threading.Thread] = {}
"""Threads that a filesystem holds, by path: none waits beside another for the same."""


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"there": bool, "names": [...]}``; names only where it is not there.

    Args:
        args: ``path``: of the script.
        seconds: A filesystem that does not answer by then is left behind.

    Raises:
        ProbeError: ``timed_out``; for arguments that mean nothing.
    """
    path = os.path.expanduser(read.text(args, "path"))
    held = _looking.get(path)
    if held is not None and held.is_alive():
        raise timed_out(f"the filesystem of {path} does not answer")
    found: dict[str, Any] = {}
    thread = threading.Thread(target=_look, args=(path, found), name="script", daemon=True)
    _looking[path] = thread
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise timed_out(f"the filesystem of {path} does not answer")
    _looking.pop(path, None)
    return found


def _look(path: str, found: dict[str, Any]) -> None:
    there = is_script(path)
    names: list[str] = []
    if not there:
        try:
            with os.scandir(os.path.dirname(path) or ".") as entries:
                for entry in entries:
                    if len(names) == MAX_NAMES:
                        break
                    names.append(entry.name)
        except (OSError, ValueError):
            pass
    found.update(there=there, names=names)
