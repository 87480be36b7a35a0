"""The limits of this process's control groups, which hold for ranks too, and kills in its own.

A limit holds for everything below it, so each is looked for on the whole way up. Versions 1 and 2
are read as in ``Documentation/admin-guide/cgroup-v1/memory.rst`` and ``cgroup-v2.rst`` of Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from distconsole_agent.system.kernel_files import first_line_of, number_of, text_of

_NO_LIMIT = 2**60
"""Version 1 writes a number near 2**63 for no limit."""


class ControlGroup(NamedTuple):
    """A control group; ``name`` is its path below the mount, ``/`` for that itself."""

    folder: str
    version: int
    name: str

    def path(self, v2_name: str, v1_name: str) -> str:
        """Return the path of one of its files, by its name in each version."""
        return f"{self.folder}/{v2_name if self.version == 2 else v1_name}"


class MemoryGroup(NamedTuple):
    """The group with the lowest memory limit of all the groups above this process."""

    at: ControlGroup
    limit_bytes: int

    def used_bytes(self) -> int | None:
        """Return the bytes that cannot be reclaimed at once: usage less the inactive file cache."""
        usage = number_of(self.at.path("memory.current", "memory.usage_in_bytes"))
        name = "inactive_file" if self.at.version == 2 else "total_inactive_file"
        inactive = _entry(f"{self.at.folder}/memory.stat", name) or 0
        return None if usage is None else max(0, usage - inactive)


def memory_group(proc_root: str, sys_root: str) -> MemoryGroup | None:
    """Return the group with the lowest memory limit, or None without any limit."""
    best: MemoryGroup | None = None
    for groups in _hierarchies("memory", proc_root, sys_root):
        for group in groups:
            limit = number_of(group.path("memory.max", "memory.limit_in_bytes"))
            if limit is not None and limit < (best.limit_bytes if best else _NO_LIMIT):
                best = MemoryGroup(group, limit)
    return best


def memory_kills(proc_root: str, sys_root: str) -> int | None:
    """Return how often the kernel has killed for memory in this process's own group; None if unknown."""
    for groups in _hierarchies("memory", proc_root, sys_root):
        own = next((group for group in groups if os.path.isdir(group.folder)), groups[-1])
        kills = _entry(own.path("memory.events", "memory.oom_control"), "oom_kill")
        if kills is not None:
            return kills
    return None


def tightest_limits(root: str = "") -> dict[str, str | None]:
    """Return the tightest limits of this process's groups, and their use.

    ``memory_max``, ``memory_used``, ``pids_max`` and ``pids_used`` are decimal numbers, ``cpu_max`` is
    ``QUOTA PERIOD`` in microseconds; null without a limit or an answer.
    """
    memory = _tightest(
        (
            group.path("memory.max", "memory.limit_in_bytes"),
            group.path("memory.current", "memory.usage_in_bytes"),
        )
        for group in _groups("memory", root)
    )
    pids = _tightest(
        (f"{group.folder}/pids.max", f"{group.folder}/pids.current")
        for group in _groups("pids", root)
    )
    quotas = []
    for group in _groups("cpu", root):
        names = ["cpu.max"] if group.version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        words = [first_line_of(f"{group.folder}/{name}") or "max" for name in names]
        quotas.append(" ".join(words).split())
    limited = [each for each in quotas if all(map(str.isdigit, each))]
    tightest = min(limited, key=lambda each: int(each[0]) / max(1, int(each[-1])), default=None)
    return {
        "memory_max": memory[0],
        "memory_used": memory[1],
        "pids_max": pids[0],
        "pids_used": pids[1],
        "cpu_max": " ".join(tightest) if tightest else None,
    }


def _groups(controller: str, root: str) -> list[ControlGroup]:
    every = _hierarchies(controller, f"{root}/proc", f"{root}/sys")
    return [group for groups in every for group in groups]


def _hierarchies(controller: str, proc_root: str, sys_root: str) -> Iterator[list[ControlGroup]]:
    """Yield, of each hierarchy that may have a controller, this process's group and those above it.

    Inside a container the path may be the host's, and the mount already the container's own group.
    """
    mount = f"{sys_root}/fs/cgroup"
    for line in text_of(f"{proc_root}/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            base, version = f"{mount}/{controller}", 1
        elif number == "0" and not controllers:
            unified = f"{mount}/unified"
            base, version = unified if os.path.isdir(unified) else mount, 2
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        names = ["/" + "/".join(parts[:length]) for length in range(len(parts), -1, -1)]
        yield [ControlGroup(base + name.rstrip("/"), version, name) for name in names]


def _tightest(files: Iterator[tuple[str, str]]) -> tuple[str | None, str | None]:
    best: tuple[int, int] | None = None
    for limit_file, used_file in files:
        limit, used = number_of(limit_file), number_of(used_file) or 0
        if (
            limit is not None
            and 0 <= limit < _NO_LIMIT
            and (best is None or limit - used < best[0] - best[1])
        ):
            best = (limit, used)
    return (None, None) if best is None else (str(best[0]), str(best[1]))


def _entry(path: str, wanted: str) -> int | None:
    """Return the number behind a name, in a file with one of each a line."""
    for line in text_of(path).splitlines():
        name, _, value = line.partition(" ")
        if name == wanted and value.isascii() and value.isdigit():
            return int(value)
    return None
