"""This node's own network: interfaces, ways to peers, names, RDMA adapters, TCP ports."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Sequence

from distconsole_agent.probes.scripts import ask_script
from distconsole_agent.system.addresses import local_addresses
from distconsole_agent.system.kernel_files import entries_of, first_line_of, number_of
from distconsole_agent.system.procfs import (
    all_processes,
    describe_process,
    open_files,
    sees_all_processes,
)
from distconsole_agent.system.tcp_sockets import LISTEN, tcp_sockets

MAX_PEERS = 4096
_SYS = "/sys/class/net"


def look(_seconds: float, *, peers: Sequence[str] = ()) -> dict[str, object]:
    """Return the facts of group ``net``; ``peers`` are addresses to find the routes to."""
    addresses = local_addresses()
    names = sorted({entry["iface"] for entry in addresses} | set(entries_of(_SYS)))
    return {
        "namespace": os.readlink("/proc/self/ns/net"),
        "addresses": addresses,
        "interfaces": {name: _interface(name) for name in names},
        "routes": {peer: _source_towards(peer) for peer in peers[:MAX_PEERS]},
    }


def _interface(name: str) -> dict[str, object]:
    """Return the figures of one interface in /sys (Documentation/ABI/testing/sysfs-class-net)."""
    folder = f"{_SYS}/{name}"
    speed = number_of(f"{folder}/speed")
    return {
        "mtu": number_of(f"{folder}/mtu"),
        "state": first_line_of(f"{folder}/operstate"),
        # A link that is down, and a virtual one, have -1.
        "speed_mbit": speed if speed is not None and speed > 0 else None,
        "hardware": os.path.exists(f"{folder}/device"),
    }


def _source_towards(peer: str) -> str | None:
    """Return the address that the kernel would send from; a UDP connect sends no packet."""
    try:
        ip = ipaddress.ip_address(peer)
        family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((peer, 9))
            return str(sock.getsockname()[0])
    except (OSError, ValueError):
        return None


MAX_NAMES = 2048
MAX_NAME = 255


def resolve(seconds: float, *, names: Sequence[str] = ()) -> dict[str, object]:
    """Return ``{"names": {name: {"addresses", "error"}}}`` of the hosts' ``names``; one may hang."""
    names = [name for name in names if 0 < len(name) <= MAX_NAME][:MAX_NAMES]
    late = {"addresses": [], "error": f"no answer in {seconds:.1f} s", "late": True}
    found: dict[str, object] = dict.fromkeys(names, late)
    if names:
        parts = ask_script("inspect_names", {"names": names}, seconds).parts
        found.update((name, parts[name]) for name in names if name in parts)
    return {"names": found}


SYSFS = "/sys"
MAX_PORTS, MAX_GIDS = 64, 16
FABRIC_MANAGER = "nv-fabricmanager"[:15]
"""As the kernel cuts it."""
_COUNTERS = ("link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors")


def look_at_fabric(_seconds: float) -> dict[str, object]:
    """Return the facts of group ``fabric``; ``fabric_manager`` is null if that cannot be seen."""
    switches = sum(
        re.fullmatch(r"nvidia-nvswitch\d+", name) is not None for name in entries_of("/dev")
    )
    running = None
    if switches:
        running = any(each.name == FABRIC_MANAGER for each in all_processes().values())
        running = running if running or sees_all_processes() else None
    return {
        "ports": rdma_ports(SYSFS),
        "peer_memory": os.path.isdir(f"{SYSFS}/module/nvidia_peermem"),
        "switches": switches,
        "fabric_manager": running,
    }


def rdma_ports(root: str) -> list[dict[str, object]]:
    """Return each port's device, state, rate, counters; ``root``: sysfs-class-infiniband of Linux's ABI."""
    base = f"{root}/class/infiniband"
    found: list[dict[str, object]] = []
    for device in entries_of(base)[:MAX_PORTS]:
        for port in entries_of(f"{base}/{device}/ports"):
            folder = f"{base}/{device}/ports/{port}"
            rate = re.match(r"[\d.]+", first_line_of(f"{folder}/rate") or "")
            found.append(
                {
                    "device": device,
                    "port": port,
                    # As in ``4: ACTIVE`` and ``5: LinkUp``.
                    "state": (first_line_of(f"{folder}/state") or "").rpartition(": ")[2],
                    "physical": (first_line_of(f"{folder}/phys_state") or "").rpartition(": ")[2],
                    "rate_gbit": float(rate[0]) if rate else None,
                    "counters": {
                        name: count
                        for name in _COUNTERS
                        if (count := number_of(f"{folder}/counters/{name}")) is not None
                    },
                    "gids": _gids(folder),
                }
            )
    return found[:MAX_PORTS]


def _gids(folder: str) -> dict[str, str]:
    """Return by index each address of a port and its kind, as ``fe80::1 RoCE v2``."""
    found = {}
    for index in range(MAX_GIDS):
        gid = (first_line_of(f"{folder}/gids/{index}") or "").strip()
        kind = first_line_of(f"{folder}/gid_attrs/types/{index}") or ""
        if gid.strip("0:"):
            with contextlib.suppress(ValueError):
                ip = ipaddress.IPv6Address(gid)
                # Python's way to write an address of IPv4 differs by version.
                shown = f"::ffff:{ip.ipv4_mapped}" if ip.ipv4_mapped else str(ip)
                found[str(index)] = f"{shown} {kind[:20]}".strip()
    return found


def look_at_ports(_seconds: float, *, ports: Sequence[int] = ()) -> dict[str, object]:
    """Return the facts of group ``port``: of ``ports`` tried on all addresses, as a store does."""
    wanted = [port for port in ports if 0 < port < 65536][:MAX_PORTS]
    return {"ports": {str(port): _state(port) for port in wanted}}


def _state(port: int) -> dict[str, object]:
    try:
        # As torch's store binds: reusable, so that a connection in TIME_WAIT is no obstacle.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # On all addresses, for an instant, and never accepted from.
            sock.bind(("", port))
            sock.listen(1)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "in use" if error.errno == errno.EADDRINUSE else "not allowed"
        return {"free": False, "why": why, "holder": _holder(port)}
    return {"free": True, "why": "", "holder": None}


def _holder(port: int) -> dict[str, object] | None:
    """Return the listener's process; pid and name are unknown for another user's."""
    listening = (each for each in tcp_sockets() if each.state == LISTEN)
    found = next((each for each in listening if each.here[1] == port), None)
    if found is None:
        return None
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    pid = next((pid for pid in pids if found.open_file in open_files(pid)), None)
    known = {"pid": None} if pid is None else describe_process(pid)
    return {**known, "uid": found.uid}
