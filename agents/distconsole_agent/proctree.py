"""Which processes belong to a run, by ancestry and by environment, read from /proc.

It sends signals only to a run's processes and judges nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple

ENV_RUN_DIR = "DISTCONSOLE_RUN_DIR"
"""The run's folder on this node. The run's id would not do: where several nodes of a run live on
one machine (the demo), one node must not take another one's processes for its own."""

MAX_ENVIRON_BYTES = 1 << 20
RETRY_SECONDS = 0.05

TIDY_SECONDS = 1.0
"""How long a process that removes what killed ones left has for it."""

TIDIES = b"multiprocessing.resource_tracker"
"""Python's, which ends by itself after those that it serves and removes their semaphores and
shared memory; killed with them it would leave those in /dev/shm until the next boot."""


class Stat(NamedTuple):
    """What /proc/PID/stat says; ``starttime`` in clock ticks since boot tells a reused pid apart."""

    state: str
    ppid: int
    pgid: int
    starttime: int


def read_stat(pid: int) -> Stat | None:
    """Return what is known of ``pid``; None when there is no such process (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command, field 2, is in parentheses and may hold anything, also parentheses (proc(5)).
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(fields[0].decode("ascii"), int(fields[1]), int(fields[2]), int(fields[19]))


def own_pids() -> list[int]:
    """Return the processes of this user."""
    uid = os.getuid()
    found = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if entry.stat().st_uid == uid:
                        found.append(int(entry.name))
    return found


def descendants(root: int) -> dict[int, Stat]:
    """Return the living processes below ``root``, of whatever user, without zombies."""
    children: dict[int, list[int]] = {}
    stats: dict[int, Stat] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                stats[int(name)] = stat
                children.setdefault(stat.ppid, []).append(int(name))
    found: dict[int, Stat] = {}
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = stats[pid]
            waiting.extend(children.get(pid, ()))
    return {pid: stat for pid, stat in found.items() if stat.state not in "ZX"}


def pids_of_run(run_dir: str) -> list[int]:
    """Return this user's living processes that were started in ``run_dir``.

    The environment is that of the last exec, so a process cannot lose the mark by accident; one
    that removes it from its environment on purpose before an exec is not found.
    """
    mark = os.fsencode(f"{ENV_RUN_DIR}={run_dir}")
    found = []
    for pid in own_pids():
        if pid == os.getpid():
            continue
        if mark in _environ(pid):
            stat = read_stat(pid)
            if stat is not None and stat.state not in "ZX":
                found.append(pid)
    return found


def read_environ(pid: int) -> dict[bytes, bytes]:
    """Return the environment of ``pid`` as of its last exec; empty when it cannot be read."""
    return {
        name: value
        for name, equals, value in (word.partition(b"=") for word in _environ(pid))
        if equals
    }


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(MAX_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return []


def kill_run(run_dir: str, seconds: float = 5.0) -> list[int]:
    """SIGKILL every process started in ``run_dir``, until none is left: what a dead shim left.

    Args:
        run_dir: The run's folder on this node, as the shim got it.
        seconds: How long to try.

    Returns:
        The processes that are still there: empty, unless the kernel cannot end one.
    """
    begun = time.monotonic()
    deadline = begun + seconds
    while True:
        left = pids_of_run(run_dir)
        patient = time.monotonic() < begun + TIDY_SECONDS
        for pid in left:
            if not (patient and tidies_up(pid)):
                send(pid, signal.SIGKILL)
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(RETRY_SECONDS)


def tidies_up(pid: int) -> bool:
    """Return whether a process removes what others leave, and then ends by itself."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return TIDIES in file.read(MAX_ENVIRON_BYTES)
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    """Send a signal; a process that is gone, or became another user's, is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(pgid: int, number: int) -> bool:
    """Send a signal to a process group; return whether there is such a group."""
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
