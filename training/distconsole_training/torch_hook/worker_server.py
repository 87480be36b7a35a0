"""Starts torch's worker server in a rank that joins a process group: on a private socket the agent asks it.

It answers from threads of C++, also while the script is stuck: stacks, and torch's flight recorder. It is started
together with torch's own threads, and not before: a process that forks is warned if it has several.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from distconsole_training.process import process
from distconsole_training.records import ENV_RINGS, ENV_ROLL_CALL, SERVER_SUFFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PATH_BYTES = 107
"""sun_path holds 108 bytes with the final zero (unix(7))."""

LOG_LEVEL, QUIET = "FLAGS_caffe2_log_level", 2
"""Log level of torch's C++ code; at this one no warnings, as which the server logs its address."""

DRAIN_SECONDS = 1.0
LISTENS = b"01"
"""The state of a socket without a peer in /proc/net/unix (SS_UNCONNECTED)."""

_started_in: list[int] = []


def start(torch: Any) -> None:
    """Start the server, once a process; do without if this torch has none, or cannot be kept quiet."""
    pid, folder = os.getpid(), os.environ.get(ENV_RINGS)
    if pid in _started_in or not folder or os.environ.get(ENV_ROLL_CALL) == "0":
        return
    _started_in.append(pid)
    kind = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    try:
        library = ctypes.CDLL(torch.__file__.rpartition("/")[0] + "/lib/libc10.so")
        level = ctypes.c_int.in_dll(library, LOG_LEVEL)
        if kind is not None:
            _start(kind, level, folder, f"{pid}-{process.started_time_ns}{SERVER_SUFFIX}")
    except (OSError, ValueError, RuntimeError):
        return


def _start(kind: Any, level: ctypes.c_int, folder: str, name: str) -> None:
    path, told = f"{folder}/{name}", level.value
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            path = f"/proc/self/fd/{held}/{name}"
        level.value = max(told, QUIET)
        try:
            server = kind(path, -1)
        finally:
            level.value = told
        # Never taken down: that would wait for its threads, and log. It ends with the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        # The folder is the user's alone, so in between no other user could reach it.
        os.chmod(name, 0o600, dir_fd=held)
        process.before_finish.append(partial(_take_away, os.getpid(), f"{folder}/{name}", path))
    finally:
        os.close(held)


def _take_away(pid: int, path: str, bound: str) -> None:
    """Remove the socket and wait, at most ``DRAIN_SECONDS``, until no request is in the server.

    Before Python 3.14 a thread that takes Python's lock while Python ends ends the process by SIGABRT.
    """
    if pid != os.getpid():  # a fork of it
        return
    with suppress(OSError):
        with suppress(FileNotFoundError):  # a cleaner took it: a request may have come before
            Path(path).unlink()
        until = time.monotonic() + DRAIN_SECONDS
        while _is_asked(os.fsencode(bound)) and time.monotonic() < until:
            time.sleep(0.001)


def _is_asked(bound: bytes) -> bool:
    """Return True if a connection to the socket that was bound to this path is open (unix(7), proc_net_unix)."""
    with Path("/proc/net/unix").open("rb") as lines:
        ours = (line.split() for line in lines if line.endswith(b" " + bound + b"\n"))
        return any(words[5] != LISTENS for words in ours)
