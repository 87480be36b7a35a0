"""Facts of the operating system: names, limits, folders and their speed, the effect of a logout."""

from __future__ import annotations

import os
import platform
import re
import resource
import shlex
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

from distconsole_agent.node_folder.folders import SHARED_MEMORY, TEMPORARY
from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import Arguments, bounded
from distconsole_agent.probes.environment import home, session_environment
from distconsole_agent.probes.host import mounts
from distconsole_agent.probes.programs import run_program
from distconsole_agent.probes.scripts import SHARE, ask_script
from distconsole_agent.system.cgroup import tightest_limits
from distconsole_agent.system.descriptors import users_limits
from distconsole_agent.system.kernel_files import entries_of, first_line_of, text_of
from distconsole_agent.system.procfs import user_name

_LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
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
MAX_FOLDERS = 24
MAX_BYTES = 256 << 20
_HARMLESS = ("EACCES", "EPERM", "ENOENT")

LOGIND_SECONDS = 1.0
LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
LOGIND_PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")

MAX_CPUS = 1024


def look(
    seconds: float, *, paths: Sequence[str] = (), patience_seconds: float | None = None
) -> dict[str, object]:
    """Return the facts of group ``os``.

    Args:
        paths: Folders to measure the room of, besides the usual ones.
        patience_seconds: How long a filesystem may take to answer.
    """
    folders = [*paths[:MAX_PATHS], SHARED_MEMORY, temporary(), home()]
    every = mounts.read_mounts()
    network = mounts.network_mounts(every)
    asked = dict.fromkeys([*folders, *(mount.point for mount in network)])
    most = seconds * SHARE
    patience = most if patience_seconds is None else min(max(patience_seconds, 0.05), most)
    release = (line.partition("=") for line in text_of("/etc/os-release").splitlines())
    named = {name.strip(): value.strip().strip('"') for name, _, value in release}
    slow = _slow_parts(socket.gethostname(), list(asked), seconds, patience)
    return {
        "hostname": socket.gethostname(),
        "fqdn": slow["fqdn"]["name"],
        "resolution": slow.get("resolution"),
        "filesystems": {
            path: mounts.add_mount(path, slow[f"folder {path}"], every) for path in folders
        },
        "network_mounts": [
            # That only some users may read it is no trouble.
            {
                **mount.told(),
                "error": "" if room.get("code") in _HARMLESS else room.get("error", ""),
            }
            for mount in network
            for room in [slow[f"folder {mount.point}"]]
        ],
        "machine_id": first_line_of("/etc/machine-id"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "distribution": named.get("PRETTY_NAME", named.get("ID", ""))[:128],
        "libc": "-".join(platform.libc_ver()),
        "uid": os.getuid(),
        "user": user_name(),
        "home": home(),
        "temporary": temporary(),
        "cpus": len(os.sched_getaffinity(0)),
        "load1": os.getloadavg()[0],
        "limits": limits(),
        "sysctl": {name: first_line_of(f"/proc/sys/{path}") for name, path in _SYSCTLS.items()},
        "memory": memory(),
        "cgroup": tightest_limits(),
        "cpu_clocks": cpu_clocks(),
        "infiniband": entries_of("/sys/class/infiniband")[:64],
        "ends_at_logout": ends_at_logout(user_name(), seconds),
        "containerised": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }


def temporary() -> str:
    return session_environment().get("TMPDIR") or TEMPORARY


def _slow_parts(
    hostname: str, folders: list[str], seconds: float, patience: float
) -> dict[str, Any]:
    """Return the facts that the other process found in time; a part that hung is ``{"error": ...}``."""
    job = {"hostname": hostname, "patience": patience, "folders": folders}
    answer = ask_script("slow_calls", job, seconds)
    if answer.ended.exit_code is not None and not answer.ended.out:
        # It ended by itself: that is no filesystem that hangs.
        raise answer.failure("asking the filesystems")
    late = {"error": f"did not answer in {seconds:.1f} s"}
    return {
        **{f"folder {path}": dict(late) for path in folders},
        "fqdn": {"name": ""},
        "resolution": {
            "addresses": [],
            "error": f"resolving {hostname} took longer than {seconds:.1f} s",
        },
        **answer.parts,
    }


def limits() -> dict[str, list[int | None]]:
    """Return soft and hard limit by name; null is unlimited."""
    found = {name: resource.getrlimit(number) for name, number in _LIMITS.items()}
    # This program's own limit of descriptors is not that of the user's programs.
    found["nofile"] = users_limits()
    infinity = resource.RLIM_INFINITY
    return {n: [None if each == infinity else each for each in pair] for n, pair in found.items()}


def ends_at_logout(user: str, seconds: float, root: str = "") -> bool | None:
    """Whether this process, and its children, die with its login session; None if unknown.

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
    """Return bytes of memory and swap from meminfo (proc(5)); null for missing lines."""
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
        if name in wanted and number and re.fullmatch("[0-9]{1,18}", number[0]):
            found[wanted[name]] = int(number[0]) * 1024
    return found


def cpu_clocks(root: str = "") -> dict[str, object]:
    """Return how many processors have which governor, and the driver; empty in most guests."""
    base = f"{root}/sys/devices/system/cpu"
    numbers = range(min(os.cpu_count() or 1, MAX_CPUS))
    names = (first_line_of(f"{base}/cpu{each}/cpufreq/scaling_governor") for each in numbers)
    return {
        "governors": dict(Counter(filter(None, names))),
        "driver": first_line_of(f"{base}/cpu0/cpufreq/scaling_driver") or "",
    }


def look_at_folders(
    seconds: float, *, folders: Sequence[Arguments] = (), usual: Sequence[str] = ()
) -> dict[str, object]:
    """Return ``{"folders": {path: {"touch", "write", "small", "look", "read"}}}``.

    Parts that were not asked are missing; a folder that hangs has ``late``. Rates are bytes and seconds.

    Args:
        folders: Objects of ``path``, ``touch`` (make a file and remove it), ``write_bytes`` (of a
            file without a name, and some small ones), ``read_bytes`` (of files there), and
            ``seconds`` for each of these.
        usual: Also make a file in some of ``temporary`` and ``home``.
    """
    asked = [_read_folder(item) for item in folders[:MAX_FOLDERS]]
    places = {"temporary": temporary, "home": home}
    more = [places[name]() for name in usual if name in places]
    named = {item["path"] for item in asked}
    asked += [_read_folder({"path": path, "touch": True}) for path in more if path not in named]
    answer = ask_script("inspect_folders", {"folders": asked}, seconds)
    if answer.ended.exit_code and not answer.ended.out:
        raise answer.failure("asking the folders")
    paths = [item["path"] for item in asked]
    return {"folders": {path: answer.parts.get(path, {"late": True}) for path in paths}}


def _read_folder(item: Arguments) -> dict[str, Any]:
    return {
        "path": read.text(item, "path"),
        "touch": item.get("touch") is True,
        "write_bytes": read.whole(item, "write_bytes", 0, 0, MAX_BYTES),
        "read_bytes": read.whole(item, "read_bytes", 0, 0, MAX_BYTES),
        "seconds": bounded(read.number({"seconds": 0.5, **item}, "seconds"), 0.05, 30.0),
    }
