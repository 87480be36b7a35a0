"""The memory limit that this process, and so each rank, lives under, and kills in its group.

Versions 1 and 2 are read as in ``Documentation/admin-guide/cgroup-v1/memory.rst`` and
``cgroup-v2.rst`` of Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from distconsole_agent.system.kernel_files import number_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

_NO_LIMIT = 2**60
"""Version 1 writes a number near 2**63 where there is no limit."""


class MemoryGroup(NamedTuple):
    """The group whose limit is the lowest of all the groups above this process.

    Attributes:
        name: Its path below where the hierarchy is mounted, ``/`` for that itself.
    """

    folder: str
    limit_bytes: int
    version: int
    name: str = "/"

    def used_bytes(self) -> int | None:
        """Return what cannot be reclaimed at once: usage less the inactive file cache."""
        usage_name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        usage = number_of(f"{self.folder}/{usage_name}")
        if usage is None:
            return None
        return max(0, usage - self._inactive_file_bytes())

    def _inactive_file_bytes(self) -> int:
        name = "inactive_file" if self.version == 2 else "total_inactive_file"
        return _entry(f"{self.folder}/memory.stat", name) or 0


def memory_group(
    proc_root: Path | str = "/proc", sys_root: Path | str = "/sys"
) -> MemoryGroup | None:
    """Return the group with the lowest memory limit, or None without any limit."""
    for mount, path, version in _hierarchies(proc_root, sys_root):
        found = _lowest(mount, path, version)
        if found is not None:
            return found
    return None


def memory_kills(proc_root: Path | str = "/proc", sys_root: Path | str = "/sys") -> int | None:
    """Return how often the kernel has killed for memory in this process's own group; None if unknown."""
    for mount, path, version in _hierarchies(proc_root, sys_root):
        own = next((folder for folder in _upwards(mount, path) if os.path.isdir(folder)), mount)
        events = "memory.events" if version == 2 else "memory.oom_control"
        kills = _entry(f"{own}/{events}", "oom_kill")
        if kills is not None:
            return kills
    return None


def _hierarchies(proc_root: Path | str, sys_root: Path | str) -> Iterator[tuple[str, str, int]]:
    """Yield where those that have memory are mounted, this process's path in each, and its version."""
    mount = f"{sys_root}/fs/cgroup"
    for line in text_of(f"{proc_root}/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            yield f"{mount}/memory", path, 1
        elif number == "0" and not controllers:
            yield mount, path, 2


def _lowest(mount: str, path: str, version: int) -> MemoryGroup | None:
    limit_name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    best: MemoryGroup | None = None
    for folder in _upwards(mount, path):
        limit = number_of(f"{folder}/{limit_name}")
        if limit is None or limit >= _NO_LIMIT:
            continue
        if best is None or limit < best.limit_bytes:
            best = MemoryGroup(folder, limit, version, folder[len(mount) :] or "/")
    return best


def _upwards(mount: str, path: str) -> list[str]:
    """Return the group's folder and those above it; the mount alone where the path is another's.

    Inside a container the path may be the host's, and the mount already the container's own group.
    """
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join((mount, *parts[:length])) for length in range(len(parts), -1, -1)]


def _entry(path: str, wanted: str) -> int | None:
    """Return the number behind a name, in a file with one of each a line."""
    for line in text_of(path).splitlines():
        name, _, value = line.partition(" ")
        if name == wanted and value.isdigit():
            return int(value)
    return None
