"""Facts of the operating system: identity, names, limits, room. It judges none of them."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
import time
from typing import Any

from distconsole_agent.node_folder.folders import SHARED_MEMORY, TEMPORARY
from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.asking import home, session_environment
from distconsole_agent.probes.errors import failed
from distconsole_agent.probes.host import budgets, mounts
from distconsole_agent.probes.host.logout import ends_at_logout
from distconsole_agent.probes.programs import last_words, parts_said, run_script
from distconsole_agent.probes.sources import script_source
from distconsole_agent.probes.standalone import slow_calls
from distconsole_agent.system.descriptors import users_limits
from distconsole_agent.system.kernel_files import entries_of, first_line_of
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
    "syn_backlog": "net/ipv4/tcp_max_syn_backlog",
    "neighbours_max": "net/ipv4/neigh/default/gc_thresh3",
    "mtu_probing": "net/ipv4/tcp_mtu_probing",
    "boot_id": "kernel/random/boot_id",
    "clocksource": "../../sys/devices/system/clocksource/clocksource0/current_clocksource",
}

MAX_PATHS = 16
_HARMLESS = ("EACCES", "EPERM", "ENOENT")


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``os``.

    Args:
        args: ``paths``: folders whose room is of interest, besides the usual ones;
            ``patience_seconds``: how long a filesystem may take to answer.
        seconds: For the parts that may hang: names are resolved and filesystems asked in another
            process.
    """
    folders = [*read.texts(args, "paths")[:MAX_PATHS], *_usual_folders()]
    every = mounts.read_mounts()
    network = mounts.network_mounts(every)
    asked = dict.fromkeys([*folders, *(mount.point for mount in network)])
    own_seconds = max(0.1, seconds * 0.8)
    patience = read.number(args, "patience_seconds", own_seconds, 0.05, 60.0)
    times = (own_seconds, min(patience, own_seconds))
    slow = _slow_parts(socket.gethostname(), list(asked), seconds, times)
    return {
        "hostname": socket.gethostname(),
        "fqdn": slow["fqdn"]["name"],
        "resolution": slow.get("resolution"),
        "filesystems": {path: _placed(path, slow[f"folder {path}"], every) for path in folders},
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
        "memory": budgets.memory(),
        "cgroup": budgets.control_group(),
        "cpu_clocks": budgets.cpu_clocks(),
        "infiniband": entries_of("/sys/class/infiniband")[:64],
        "utc_offset_seconds": time.localtime().tm_gmtoff,
        "ends_at_logout": ends_at_logout(user_name(), seconds),
        "containerised": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    }


def _usual_folders() -> list[str]:
    return [SHARED_MEMORY, temporary(), home()]


def temporary() -> str:
    """Return the asking session's folder for temporary files."""
    return session_environment().get("TMPDIR") or TEMPORARY


def _placed(path: str, room: dict[str, Any], every: list[mounts.Mount]) -> dict[str, Any]:
    """Return ``room`` with the mount that ``path`` lies on."""
    mount = mounts.mount_of(str(room.get("real") or os.path.abspath(path)), every)
    return {**room, "mount": None if mount is None else mount.told()}


def _trouble(room: dict[str, Any]) -> str:
    """Return why a mount is of no use to anybody; that only some may look into it is no trouble."""
    return "" if room.get("code", "") in _HARMLESS else str(room.get("error", ""))


def _slow_parts(
    hostname: str, folders: list[str], seconds: float, times: tuple[float, float]
) -> dict[str, Any]:
    """Return what the other process could find in time; what hung is ``{"error": ...}``."""
    parts: dict[str, Any] = {
        f"folder {path}": {"error": f"did not answer in {seconds:.1f} s"} for path in folders
    }
    parts["fqdn"] = {"name": ""}
    parts["resolution"] = {
        "addresses": [],
        "error": f"resolving {hostname} took longer than {seconds:.1f} s",
    }
    ended = run_script(
        script_source("slow_calls"),
        [hostname, *map(repr, times), *folders],
        seconds,
        python=sys.executable,
        # It needs nothing that is installed.
        flags=("-I", "-S"),
        last=slow_calls.LAST,
    )
    if ended.exit_code is not None and not ended.out:
        # It ended by itself: that is no filesystem that hangs.
        code = ended.exit_code
        raise failed(f"asking the filesystems ended with code {code}: {last_words(ended)}")
    parts.update((name, value) for name, value in parts_said(ended) if name in parts)
    return parts


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
