"""A node's evidence of a kill: the kernel's counts of kills for memory, and the memory at that time."""

from __future__ import annotations

import re
from typing import NamedTuple

from distconsole_agent.system.cgroup import memory_group, memory_kills
from distconsole_agent.system.kernel_files import text_of

PROC = "/proc"
SYS = "/sys"
GIB = 1 << 30


class Kills(NamedTuple):
    """How often the kernel has killed for memory so far: on the host, and in our control group; None if unknown."""

    host: int | None
    group: int | None


class KillEvidence(NamedTuple):
    """Evidence of a kill: if the kernel did it for memory (None: unknown), and in words."""

    for_memory: bool | None
    lines: tuple[str, ...]


def count_kills() -> Kills:
    """Return the kernel's counts; they need no privilege."""
    found = re.search(r"^oom_kill\s+(\d+)", text_of(f"{PROC}/vmstat"), re.MULTILINE)
    return Kills(int(found[1]) if found else None, memory_kills(PROC, SYS))


def examine_kill(before: Kills, peak_bytes: int) -> KillEvidence:
    """Return the evidence of a kill since ``before``, of a process that held this much at most."""
    counts = {
        where: max(0, now - then)
        for where, then, now in zip(
            ("on this host", "in its control group"), before, count_kills()
        )
        if then is not None and now is not None
    }
    lines = (
        [f"the process held {peak_bytes / GIB:.1f} GiB of memory at most"] if peak_bytes else []
    )
    told = ", ".join(f"{count} {where}" for where, count in counts.items())
    since = "processes that the kernel has killed for memory since the ranks started"
    lines.append(f"{since}: {told or 'not to be seen here'}")
    if (group := memory_group(PROC, SYS)) is not None:
        lines.append(f"control group {group.at.name} may have {group.limit_bytes / GIB:.1f} GiB")
    return KillEvidence(any(counts.values()) if counts else None, tuple(lines))
