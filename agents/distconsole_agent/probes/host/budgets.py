"""What this process may use of its machine: control groups of both versions, memory, CPU clocks.

A limit holds for everything below it, so each is looked for on the whole way up; it judges none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from distconsole_agent.system.kernel_files import first_line_of, text_of

MAX_CPUS = 1024
UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups has no word for no limit but a number that no machine has."""


def memory(root: str = "/proc") -> dict[str, int | None]:
    """Return bytes of memory and swap from meminfo (proc(5)); null where it does not say."""
    wanted = {
        "MemTotal": "total",
        "MemAvailable": "available",
        "SwapTotal": "swap_total",
        "SwapFree": "swap_free",
    }
    found: dict[str, int | None] = dict.fromkeys(wanted.values())
    for line in text_of(f"{root}/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if name in wanted and number and number[0].isdigit():
            found[wanted[name]] = int(number[0]) * 1024
    return found


def control_group(root: str = "") -> dict[str, str | None]:
    """Return the tightest limits of this process's control groups, and what is used of them.

    Args:
        root: Where /proc and /sys are; for tests.

    Returns:
        ``memory_max``, ``memory_used``, ``pids_max`` and ``pids_used`` as decimal numbers,
        ``cpu_max`` as ``QUOTA PERIOD`` in microseconds; null where nothing is limited or said.
    """
    found: dict[str, str | None] = dict.fromkeys(
        ("memory_max", "memory_used", "pids_max", "pids_used", "cpu_max")
    )
    folders = dict(_folders(root))
    v2 = folders.get("", "")
    v1_memory, v1_pids, v1_cpu = (folders.get(name, "") for name in ("memory", "pids", "cpu"))
    memory_files = [(f"{at}/memory.max", f"{at}/memory.current") for at in _upwards(v2, root)]
    memory_files += [
        (f"{at}/memory.limit_in_bytes", f"{at}/memory.usage_in_bytes")
        for at in _upwards(v1_memory, root)
    ]
    found["memory_max"], found["memory_used"] = _tightest(memory_files)
    pids_files = [
        (f"{at}/pids.max", f"{at}/pids.current")
        for at in [*_upwards(v2, root), *_upwards(v1_pids, root)]
    ]
    found["pids_max"], found["pids_used"] = _tightest(pids_files)
    cpu = [first_line_of(f"{at}/cpu.max") for at in _upwards(v2, root)]
    cpu += [
        f"{first_line_of(f'{at}/cpu.cfs_quota_us')} {first_line_of(f'{at}/cpu.cfs_period_us')}"
        for at in _upwards(v1_cpu, root)
    ]
    quotas = [text for text in cpu if text and all(part.isdigit() for part in text.split())]
    found["cpu_max"] = min(quotas, key=_share, default=None)
    return found


def _share(quota: str) -> float:
    allowed, _, period = quota.partition(" ")
    return int(allowed) / max(1, int(period or 1))


def _folders(root: str) -> Iterator[tuple[str, str]]:
    """Yield by controller this process's folder; version 2 has the name of none."""
    for line in text_of(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        base = f"{root}/sys/fs/cgroup"
        if not controllers:
            unified = f"{base}/unified"
            yield "", (unified if os.path.isdir(unified) else base) + path
        for controller in filter(None, controllers.split(",")):
            yield controller, f"{base}/{controller}{path}"


def _upwards(folder: str, root: str) -> Iterator[str]:
    """Yield ``folder`` and those above it that are control groups."""
    top = f"{root}/sys/fs/cgroup"
    while folder.startswith(top) and len(folder) > len(top):
        yield folder.rstrip("/")
        folder = os.path.dirname(folder.rstrip("/"))
    if folder == top:
        yield top


def _tightest(files: list[tuple[str, str]]) -> tuple[str | None, str | None]:
    """Return the limit that leaves least, and what is used of it."""
    best: tuple[int, str, str] | None = None
    for limit_file, used_file in files:
        limit, used = first_line_of(limit_file), first_line_of(used_file)
        if limit and limit.isdigit() and int(limit) < UNLIMITED_BYTES:
            used = used if used and used.isdigit() else "0"
            left = int(limit) - int(used)
            if best is None or left < best[0]:
                best = (left, limit, used)
    return (None, None) if best is None else (best[1], best[2])


def cpu_clocks(root: str = "") -> dict[str, object]:
    """Return how many processors have which governor, and the driver; empty in most guests."""
    base = f"{root}/sys/devices/system/cpu"
    governors: dict[str, int] = {}
    for number in range(min(os.cpu_count() or 1, MAX_CPUS)):
        name = first_line_of(f"{base}/cpu{number}/cpufreq/scaling_governor")
        if name:
            governors[name] = governors.get(name, 0) + 1
    return {
        "governors": governors,
        "driver": first_line_of(f"{base}/cpu0/cpufreq/scaling_driver") or "",
    }
