"""The memory limit that this process, and so each rank, lives under. It sets none.

Versions 1 and 2 are read as in ``Documentation/admin-guide/cgroup-v1/memory.rst`` and
``cgroup-v2.rst`` of Linux.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 2**60
"""Version 1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class MemoryGroup:
    """The group whose limit is the lowest of all the groups above this process."""

    folder: Path
    limit_bytes: int
    version: int

    def used_bytes(self) -> int | None:
        """Return what cannot be reclaimed at once: usage less the inactive file cache."""
        usage_name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        usage = _number(self.folder / usage_name)
        if usage is None:
            return None
        return max(0, usage - self._inactive_file_bytes())

    def _inactive_file_bytes(self) -> int:
        wanted = "inactive_file" if self.version == 2 else "total_inactive_file"
        for line in _text(self.folder / "memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == wanted and value.isdigit():
                return int(value)
        return 0


def memory_group(
    proc_root: Path = Path("/proc"), sys_root: Path = Path("/sys")
) -> MemoryGroup | None:
    """Return the group with the lowest memory limit, or None without any limit."""
    mount = sys_root / "fs" / "cgroup"
    for line in _text(proc_root / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            found = _lowest(mount / "memory", path, "memory.limit_in_bytes", 1)
        elif number == "0" and not controllers:
            found = _lowest(mount, path, "memory.max", 2)
        else:
            continue
        if found is not None:
            return found
    return None


def _lowest(mount: Path, path: str, limit_name: str, version: int) -> MemoryGroup | None:
    best: MemoryGroup | None = None
    for folder in _upwards(mount, path):
        limit = _number(folder / limit_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        if best is None or limit < best.limit_bytes:
            best = MemoryGroup(folder, limit, version)
    return best


def _upwards(mount: Path, path: str) -> list[Path]:
    """Return the group's folder and those above it; the mount alone where the path is another's.

    Inside a container the path may be the host's, and the mount already the container's own group.
    """
    parts = [part for part in path.split("/") if part and part != ".."]
    return [mount.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
