"""What a node knows of a kill: whether the kernel killed for memory, and how much there was."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from distconsole_agent.system.kernel_files import text_of
from distconsole_agent.telemetry.cgroup import memory_group, memory_kills

PROC = "/proc"
SYS = "/sys"
GIB = float(1 << 30)
HEADING = "what is known of the kill:"


class Kills(NamedTuple):
    """How often the kernel has killed for memory so far: on the host, and in our control group; None if unknown."""

    host: int | None
    group: int | None


class Known(NamedTuple):
    """What is known of a kill.

    Attributes:
        for_memory: Whether the kernel has killed somebody for memory meanwhile; None if it does not say.
        lines: The same in words, with what there was of memory.
    """

    for_memory: bool | None
    lines: tuple[str, ...]


def count_kills() -> Kills:
    """Return the kernel's counts; they need no privilege."""
    group = memory_kills(PROC, SYS)
    return Kills(_number(text_of(f"{PROC}/vmstat"), "oom_kill"), group)


def examine_kill(before: Kills, peak_bytes: int) -> Known:
    """Return what is known of a kill since ``before``.

    Args:
        before: As ``count_kills`` said when the ranks started.
        peak_bytes: The most memory that the process held; 0 if that is not known.
    """
    now = count_kills()
    host, group = _since(before.host, now.host), _since(before.group, now.group)
    counts = [count for count in (host, group) if count is not None]
    for_memory = any(counts) if counts else None
    lines = [HEADING, f"  {_describe_memory(peak_bytes)}", f"  {_describe_kills(host, group)}"]
    limit = _limit()
    if limit:
        lines.append(f"  {limit}")
    job = os.environ.get("SLURM_JOB_ID", "")
    if job.isdigit():
        lines.append(
            f"  it was in Slurm's job {job}: sacct -j {job} -o state,maxrss,reqmem,elapsed"
        )
    return Known(for_memory, tuple(lines))


def _since(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def _describe_memory(peak_bytes: int) -> str:
    text = text_of(f"{PROC}/meminfo")
    total, free = _number(text, "MemTotal:"), _number(text, "MemAvailable:")
    parts = [f"the process held {_amount(peak_bytes)} at most"] if peak_bytes else []
    if total is not None and free is not None:
        parts.append(
            f"the host has {_amount(total << 10)} of memory, {_amount(free << 10)} free by now"
        )
    return "; ".join(parts) or "how much memory there was is not known"


def _describe_kills(host: int | None, group: int | None) -> str:
    if host is None and group is None:
        return "whether the kernel killed for memory is not to be seen here"
    told = [] if host is None else [f"{host} on this host (oom_kill of /proc/vmstat)"]
    told += [] if group is None else [f"{group} in its control group"]
    return f"processes that the kernel has killed for memory since the ranks started: {', '.join(told)}"


def _limit() -> str:
    """Return the tightest limit of memory of the control groups that we are in; empty without one."""
    group = memory_group(PROC, SYS)
    if group is None:
        return ""
    peak = group.peak_bytes()
    had = f", and had {_amount(peak)} at most" if peak is not None else ""
    return f"control group {group.name} may have {_amount(group.limit_bytes)}{had}"


def _number(text: str, name: str) -> int | None:
    found = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _amount(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"
