"""Facts of the operating system: identity, names, limits, room, and what a logout ends.

A control group's limit holds for everything below it, so each is looked for on the whole way up.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shlex
import socket
from collections.abc import Iterator
from typing import Any

from distconsole_agent.node_folder.folders import SHARED_MEMORY, TEMPORARY
from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.environment import home, session_environment
from distconsole_agent.probes.errors import failed
from distconsole_agent.probes.host import mounts
from distconsole_agent.probes.programs import run_program
from distconsole_agent.probes.scripts import SHARE, ask_script
from distconsole_agent.system.descriptors import users_limits
from distconsole_agent.system.kernel_files import entries_of, first_line_of, text_of
from distconsole_agent.system.users import user_name

_LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
}

_SYSCTLS = {
    "port_range": "net/ipv4/ip_local_port_range",
    "reserved_ports": "net/ipv4/ip_local_reserved_ports",
    "somaxconn": "net/core/somaxconn",
    "neighbours_max": "net/ipv4/neigh/default/gc_thresh3",
    "mtu_probing": "net/ipv4/tcp_mtu_probing",
    "boot_id": "kernel/random/boot_id",
    "clocksource": "../../sys/devices/system/clocksource/clocksource0/current_clocksource",
}

MAX_PATHS = 16
_HARMLESS = ("EACCES", "EPERM", "ENOENT")

LOGIND_SECONDS = 1.0
LOGIND = (
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
)
LOGIND_PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")

MAX_CPUS = 1024
UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups has no word for no limit but a number that no machine has."""


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``os``.

    Args:
        args: ``paths``: folders whose room is of interest, besides the usual ones;
            ``patience_seconds``: how long a filesystem may take to answer.
    """
    folders = [*read.texts(args, "paths")[:MAX_PATHS], *_usual_folders()]
    every = mounts.read_mounts()
    network = mounts.network_mounts(every)
    asked = dict.fromkeys([*folders, *(mount.point for mount in network)])
    most = seconds * SHARE
    patience = min(read.number(args, "patience_seconds", most, 0.05, 60.0), most)
    slow = _slow_parts(socket.gethostname(), list(asked), seconds, patience)
    return {
        "hostname": socket.gethostname(),
        "fqdn": slow["fqdn"]["name"],
        "resolution": slow.get("resolution"),
        "filesystems": {path: _add_mount(path, slow[f"folder {path}"], every) for path in folders},
        "network_mounts": [
            {**mount.told(), "error": _trouble(slow[f"folder {mount.point}"])} for mount in network
        ],
        "machine_id": first_line_of("/etc/machine-id"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "distribution": _distribution(),
        "libc": "-".join(platform.libc_ver()),
        "uid": os.getuid(),
        "user": user_name(),
        "home": home(),
        "temporary": temporary(),
        "cpus": len(os.sched_getaffinity(0)),
        "load1": os.getloadavg()[0],
        "limits": {name: _limit(number) for name, number in _LIMITS.items()},
        "sysctl": {name: first_line_of(f"/proc/sys/{path}") for name, path in _SYSCTLS.items()},
        "memory": memory(),
        "cgroup": control_group(),
        "cpu_clocks": cpu_clocks(),
        "infiniband": entries_of("/sys/class/infiniband")[:64],
        "ends_at_logout": ends_at_logout(user_name(), seconds),
        "containerised": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }


def _usual_folders() -> list[str]:
    return [SHARED_MEMORY, temporary(), home()]


def temporary() -> str:
    return session_environment().get("TMPDIR") or TEMPORARY


def _add_mount(path: str, room: dict[str, Any], every: list[mounts.Mount]) -> dict[str, Any]:
    mount = mounts.mount_of(str(room.get("real") or os.path.abspath(path)), every)
    return {**room, "mount": None if mount is None else mount.told()}


def _trouble(room: dict[str, Any]) -> str:
    """Return why a mount is of no use to anybody; that only some may look into it is no trouble."""
    return "" if room.get("code", "") in _HARMLESS else str(room.get("error", ""))


def _slow_parts(
    hostname: str, folders: list[str], seconds: float, patience: float
) -> dict[str, Any]:
    """Return what the other process could find in time; what hung is ``{"error": ...}``."""
    job = {"hostname": hostname, "patience": patience, "folders": folders}
    # It needs nothing that is installed.
    parts, ended = ask_script("slow_calls", job, seconds, flags=("-I", "-S"))
    if ended.exit_code is not None and not ended.out:
        # It ended by itself: that is no filesystem that hangs.
        code, words = ended.exit_code, ended.last_words
        raise failed(f"asking the filesystems ended with code {code}: {words}")
    late = {"error": f"did not answer in {seconds:.1f} s"}
    return {
        **{f"folder {path}": dict(late) for path in folders},
        "fqdn": {"name": ""},
        "resolution": {
            "addresses": [],
            "error": f"resolving {hostname} took longer than {seconds:.1f} s",
        },
        **parts,
    }


def _limit(number: int) -> list[int | None]:
    """Return [soft, hard]; null is unlimited."""
    # This program's own limit of descriptors is not what the user's programs have.
    own = number != resource.RLIMIT_NOFILE
    limits = resource.getrlimit(number) if own else users_limits()
    return [None if value == resource.RLIM_INFINITY else value for value in limits]


def _distribution() -> str:
    fields = {}
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.strip().partition("=")
                fields[name] = value.strip('"')
    except OSError:
        return ""
    return fields.get("PRETTY_NAME", fields.get("ID", ""))[:128]


def ends_at_logout(user: str, seconds: float, root: str = "") -> bool | None:
    """Return whether this process, and what it starts, dies with its login session; None if nobody says.

    Outside of a session's own control group (a job of Slurm's, a container) nothing does.
    """
    if not re.search(r"/session-[^/\n]+\.scope", text_of(f"{root}/proc/self/cgroup")):
        return False
    try:
        ended = run_program(
            ["busctl", "get-property", *LOGIND, *LOGIND_PROPERTIES], min(LOGIND_SECONDS, seconds)
        )
        kills, only, excluded = (shlex.split(line) for line in ended.out.splitlines())
    except (OSError, ValueError):
        return None
    # busctl prints a list as its type, its length and its members.
    return (
        kills == ["b", "true"] and user not in excluded[2:] and (user in only[2:] or not only[2:])
    )


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

    ``memory_max``, ``memory_used``, ``pids_max`` and ``pids_used`` are decimal numbers, ``cpu_max`` is
    ``QUOTA PERIOD`` in microseconds; null where nothing is limited or said.
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
