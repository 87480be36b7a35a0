"""Program: the limits, variables and temporary folder of its own process."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import socket
import tempfile

from distconsole_agent.probes.standalone.reporting import FACTS, begin, leave, say

LIMITS = ("nofile", "nproc", "stack", "memlock", "cpu")


def limits() -> dict[str, list[int | None]]:
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


def main(seconds: float, names: list[str], files: int, tmp: bool) -> None:
    begin(seconds)
    count, error = open_files(files)
    facts = {
        "limits": limits(),
        "env": {name: os.environ.get(name) for name in names},
        "opened": count,
        "open_error": error,
        "tmp": tempfile.gettempdir() if tmp else "",
        "tmp_error": temporary_error() if tmp else "",
    }
    say(FACTS, facts)
    leave()
