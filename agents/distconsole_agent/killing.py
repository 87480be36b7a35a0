"""What a node knows of a kill: whether the kernel killed for memory, and how much there was. It accuses nobody."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

PROC = "/proc"
CGROUPS = "/sys/fs/cgroup"
NO_LIMIT_BYTES = 1 << 60
"""Control groups of the first version say a number near 2**63 where there is no limit."""

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
    _, folder = _control_group()
    events = _read(os.path.join(folder, "memory.events")) or _read(
        os.path.join(folder, "memory.oom_control")
    )
    return Kills(_number(_read(f"{PROC}/vmstat"), "oom_kill"), _number(events, "oom_kill"))


def known_of_kill(before: Kills, peak_bytes: int) -> Known:
    """Return what is known of a kill since ``before``.

    Args:
        before: As ``count_kills`` said when the ranks started.
        peak_bytes: The most memory that the process held; 0 if that is not known.
    """
    now = count_kills()
    host, group = _since(before.host, now.host), _since(before.group, now.group)
    counts = [count for count in (host, group) if count is not None]
    for_memory = any(counts) if counts else None
    lines = [HEADING, f"  {_held(peak_bytes)}", f"  {_counted(host, group)}"]
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


def _held(peak_bytes: int) -> str:
    text = _read(f"{PROC}/meminfo")
    total, free = _number(text, "MemTotal:"), _number(text, "MemAvailable:")
    parts = [f"the process held {_amount(peak_bytes)} at most"] if peak_bytes else []
    if total is not None and free is not None:
        parts.append(
            f"the host has {_amount(total << 10)} of memory, {_amount(free << 10)} free by now"
        )
    return "; ".join(parts) or "how much memory there was is not known"


def _counted(host: int | None, group: int | None) -> str:
    if host is None and group is None:
        return "whether the kernel killed for memory is not to be seen here"
    told = [] if host is None else [f"{host} on this host (oom_kill of /proc/vmstat)"]
    told += [] if group is None else [f"{group} in its control group"]
    return f"processes that the kernel has killed for memory since the ranks started: {', '.join(told)}"


def _limit() -> str:
    """Return the tightest limit of memory of the control groups that we are in; empty without one."""
    found: list[tuple[int, str, str]] = []
    root, folder = _control_group()
    while folder.startswith(root) and root:
        for limit, peak in (
            ("memory.max", "memory.peak"),
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        ):
            value = _read(os.path.join(folder, limit)).strip()
            if value.isdigit() and int(value) < NO_LIMIT_BYTES:
                found.append((int(value), folder, _read(os.path.join(folder, peak)).strip()))
        if folder == root:
            break
        folder = os.path.dirname(folder)
    if not found:
        return ""
    lowest, where, peak = min(found)
    had = f", and had {_amount(int(peak))} at most" if peak.isdigit() else ""
    return f"control group {where[len(root) :] or '/'} may have {_amount(lowest)}{had}"


def _control_group() -> tuple[str, str]:
    """Return where the hierarchy of memory is mounted, and our own folder in it; empty if there is none."""
    own: dict[str, str] = {}
    for line in _read(f"{PROC}/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            own[name] = path
    for root, name in ((os.path.join(CGROUPS, "memory"), "memory"), (CGROUPS, "")):
        if name not in own or not os.path.isdir(root):
            continue
        folder = os.path.normpath(f"{root}/{own[name]}")
        # In a container the path may be that of the host, which is not to be seen inside.
        return root, folder if os.path.isdir(folder) else root
    return "", ""


def _number(text: str, name: str) -> int | None:
    found = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _amount(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"
