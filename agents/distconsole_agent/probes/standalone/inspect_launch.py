"""Script: says what the process that it is was given: limits, variables, a temporary folder.

``inspect_launch.py SECONDS JSON`` prints one line: a mark and a JSON object ``{"limits": {name:
[soft, hard]}, "env": {name: value or null}, "opened": files, "open_error": "", "tmp": path,
"tmp_error": ""}``. JSON is ``{"names", "files", "tmp"}``.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import signal
import socket
import sys
import tempfile
from typing import Any

MARK = "distconsole-launch "
LIMITS = ("nofile", "nproc", "stack", "memlock")


def limits() -> dict[str, list[int | None]]:
    """Soft and hard limits of this process, None for none."""
    found = {}
    for name in LIMITS:
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        found[name] = [None if each == resource.RLIM_INFINITY else each for each in pair]
    return found


def open_files(count: int) -> tuple[int, str]:
    """How many of ``count`` files can be held open at once, and why not more."""
    held: list[int] = []
    try:
        while len(held) < count:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return len(held), error.strerror or str(error)
    finally:
        for descriptor in held:
            os.close(descriptor)
    return count, ""


def temporary_error() -> str:
    """Why a rank could not use its temporary folder: no code from it, or no socket in it."""
    try:
        with tempfile.TemporaryFile() as file:
            file.truncate(mmap.PAGESIZE)
            try:
                mmap.mmap(
                    file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC
                ).close()
            except OSError as error:
                return f"code in {tempfile.gettempdir()} cannot be loaded: {error.strerror}"
        # As multiprocessing calls them, which DataLoader workers use.
        with tempfile.TemporaryDirectory(prefix="pymp-") as folder:
            path = os.path.join(folder, "listener-xxxxxxxx")
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
                sock.bind(path)
    except OSError as error:
        return str(error.strerror or error)
    return ""


def main(seconds: float, wanted: dict[str, Any]) -> None:
    """Print all of it."""
    # Whatever becomes of the agent, this process ends.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 5.0)
    count, error = open_files(wanted["files"])
    facts = {
        "limits": limits(),
        "env": {name: os.environ.get(name) for name in wanted["names"]},
        "opened": count,
        "open_error": error,
        "tmp": tempfile.gettempdir() if wanted["tmp"] else "",
        "tmp_error": temporary_error() if wanted["tmp"] else "",
    }
    sys.stdout.write("\n" + MARK + json.dumps(facts) + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), json.loads(sys.argv[2]))
