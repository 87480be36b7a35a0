"""One process as /proc shows it to every user: owner, start, state."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from distconsole_agent.system.kernel_files import boottime

_TICKS = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD, _EXITING = 0x00200000, 0x4
"""PF_KTHREAD and PF_EXITING of include/linux/sched.h, in field 9 of /proc/PID/stat (proc(5))."""

MAX_NAME = 32
MAX_FILES = 4096

LISTINGS, LISTING_SECONDS = 5, 0.02
"""Further tries to list /proc, and seconds before each, if no descriptor or memory is left for it."""

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of include/linux/proc_ns.h."""


class Process(NamedTuple):
    """A living or dead process; ``name``, of 15 characters at most, and ``flags`` are the kernel's.

    ``starttime``, in clock ticks since boot, distinguishes a reused pid.
    """

    pid: int
    ppid: int
    uid: int
    name: str
    state: str
    age_seconds: float
    starttime: int
    flags: int = 0
    pgid: int = 0

    @property
    def kernel(self) -> bool:
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"

    @property
    def is_over(self) -> bool:
        """True if it has ended or is ending: it has no memory, and so no command line, any more.

        Giving back much memory may take seconds.
        """
        return self.has_ended or bool(self.flags & _EXITING)

    def is_of(self, other: Process | None) -> bool:
        """Whether both are of one process: the pid is the same."""
        return other is not None and other.starttime == self.starttime

    def told(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "uid": self.uid,
            "name": self.name,
            "age_seconds": round(self.age_seconds, 1),
        }


def stat_fields(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return the name in a stat file and its fields from the third one on, the state; none of a broken one.

    The name is in parentheses and may hold anything, also parentheses (proc(5)).
    """
    opened, closed = text.find(b"("), text.rfind(b")")
    return (text[opened + 1 : closed], text[closed + 2 :].split()) if opened >= 0 else (b"", [])


def read_process(pid: int, root: str = "/proc") -> Process | None:
    """Return the process ``pid``; None when there is no such process (any more)."""
    try:
        with open(f"{root}/{pid}/stat", "rb") as file:
            text = file.read(4096)
            uid = os.fstat(file.fileno()).st_uid
    except OSError:
        return None
    name, fields = stat_fields(text)
    if len(fields) < 20:
        return None
    try:
        started, flags, pgid = int(fields[19]), int(fields[6]), int(fields[2])
        parent, age_seconds = int(fields[1]), max(0.0, boottime() - started / _TICKS)
    except (ValueError, OverflowError):  # of a kernel that is none, as in some sandboxes
        return None
    known, state = printable(name, MAX_NAME), fields[0].decode("ascii", "replace")
    return Process(pid, parent, uid, known, state, age_seconds, started, flags, pgid)


def lives(pid: int) -> bool:
    process = read_process(pid) if pid > 0 else None
    return process is not None and not process.has_ended


def describe_process(pid: int) -> dict[str, Any]:
    """Return a process as a dictionary; only its ``pid`` if it has ended or may not be read."""
    process = read_process(pid)
    return {"pid": pid} if process is None else process.told()


def all_processes(root: str = "/proc") -> dict[int, Process]:
    found = (read_process(pid, root) for pid in list_pids(root))
    return {process.pid: process for process in found if process is not None}


def list_pids(root: str = "/proc") -> list[int]:
    for _ in range(LISTINGS):
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(root) if name.isdigit()]
        time.sleep(LISTING_SECONDS)
    return [int(name) for name in os.listdir(root) if name.isdigit()]


def descendants_of(pid: int, processes: dict[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += children.get(each, ())
    return found


def open_files(pid: int, root: str = "/proc") -> Iterator[str]:
    """Yield the targets of ``pid``'s descriptors; nothing without permission."""
    folder = f"{root}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names[:MAX_FILES]:
        with contextlib.suppress(OSError):
            yield os.readlink(f"{folder}/{name}")


def read_head(path: str, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""


def sees_all_processes(root: str = "/proc") -> bool:
    """Say whether this is the first pid namespace, from which those of containers are seen."""
    try:
        return os.readlink(f"{root}/self/ns/pid") == f"pid:[{_FIRST_PID_NAMESPACE}]"
    except OSError:
        return False


def printable(raw: bytes, most: int) -> str:
    """Return ``raw`` as one line of printable text of at most ``most`` characters."""
    text = raw.decode("utf-8", "replace")
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.split())[:most]


@lru_cache(maxsize=1024)
def user_name(uid: int | None = None) -> str:
    """Return the name of a user, by default our own; the number without a name."""
    number = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
