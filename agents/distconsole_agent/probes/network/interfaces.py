"""Interfaces of this node and the way from it to its peers."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.system.addresses import local_addresses
from distconsole_agent.system.kernel_files import entries_of, first_line_of, number_of

MAX_PEERS = 4096
_SYS = "/sys/class/net"


def look(args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Return the facts of group ``net``.

    Args:
        args: ``peers``: addresses to which the kernel's choice of source is of interest.
    """
    addresses = local_addresses()
    names = sorted({entry["iface"] for entry in addresses} | set(entries_of(_SYS)))
    return {
        "addresses": addresses,
        "interfaces": {name: _interface(name) for name in names},
        "routes": {peer: _source_towards(peer) for peer in read.texts(args, "peers")[:MAX_PEERS]},
    }


def _interface(name: str) -> dict[str, Any]:
    """Return what /sys says of one interface (Documentation/ABI/testing/sysfs-class-net)."""
    folder = f"{_SYS}/{name}"
    speed = number_of(f"{folder}/speed")
    return {
        "mtu": number_of(f"{folder}/mtu"),
        "state": first_line_of(f"{folder}/operstate"),
        # A link that is down, and a virtual one, say -1.
        "speed_mbit": speed if speed is not None and speed > 0 else None,
        "mac": first_line_of(f"{folder}/address"),
        "hardware": os.path.exists(f"{folder}/device"),
        "bridge": os.path.exists(f"{folder}/bridge"),
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
