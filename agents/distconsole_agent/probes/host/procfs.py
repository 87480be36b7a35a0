"""One process as /proc shows it to everybody: who, since when, in which state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of include/linux/sched.h, in field 9 of /proc/PID/stat (proc(5))."""

MAX_NAME = 32
MAX_FILES = 4096


class Process(NamedTuple):
    """A living or dead process; ``name`` is what the kernel calls it, 15 characters at most."""

    pid: int
    ppid: int
    uid: int
    name: str
    state: str
    age_seconds: float
    starttime: int
    kernel: bool

    def told(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "uid": self.uid,
            "name": self.name,
            "age_seconds": round(self.age_seconds, 1),
        }


def uptime_seconds(root: str = "/proc") -> float:
    """Return how long this kernel runs; 0 where it does not say."""
    try:
        with open(f"{root}/uptime", encoding="ascii") as file:
            return float(file.read(64).split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def read_process(pid: int, uptime: float, root: str = "/proc") -> Process | None:
    """Return what is known of ``pid``; None when there is no such process (any more)."""
    try:
        with open(f"{root}/{pid}/stat", "rb") as file:
            text = file.read(4096)
            uid = os.fstat(file.fileno()).st_uid
    except OSError:
        return None
    # The name, field 2, is in parentheses and may hold anything, also parentheses (proc(5)).
    opened, closed = text.find(b"("), text.rfind(b")")
    fields = text[closed + 2 :].split()
    if opened < 0 or len(fields) < 20:
        return None
    name = text[opened + 1 : closed].decode("utf-8", "replace")
    return Process(
        pid,
        int(fields[1]),
        uid,
        "".join(c if c.isprintable() else "?" for c in name)[:MAX_NAME],
        fields[0].decode("ascii", "replace"),
        max(0.0, uptime - int(fields[19]) / _TICKS),
        int(fields[19]),
        bool(int(fields[6]) & _KERNEL_THREAD),
    )


def all_processes(root: str = "/proc") -> dict[int, Process]:
    uptime = uptime_seconds(root)
    found: dict[int, Process] = {}
    for name in os.listdir(root):
        if name.isdigit():
            process = read_process(int(name), uptime, root)
            if process is not None:
                found[process.pid] = process
    return found


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


def open_files(pid: int) -> Iterator[str]:
    """Yield what the descriptors of ``pid`` lead to; nothing where we may not look."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names[:MAX_FILES]:
        with contextlib.suppress(OSError):
            yield os.readlink(f"{folder}/{name}")


def read_head(path: str, size: int) -> bytes:
    """Return the beginning of a file; nothing where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return b""
