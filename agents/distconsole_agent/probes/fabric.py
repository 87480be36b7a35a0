"""The ports of RDMA adapters as sysfs shows them, and the service of NVSwitch. It sends nothing."""

from __future__ import annotations

import os
import re
from typing import Any

from distconsole_agent.probes.procfs import all_processes
from distconsole_agent.probes.shared_memory import sees_all_processes

SYSFS = "/sys"
MAX_PORTS = 64
FABRIC_MANAGER = "nv-fabricmanager"[:15]
"""As the kernel cuts it."""
_COUNTERS = ("link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors")


def look(_args: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """Return the facts of group ``fabric``.

    ``fabric_manager`` is null where there is no NVSwitch, or processes of the host are not seen.
    """
    switches = sum(
        re.fullmatch(r"nvidia-nvswitch\d+", name) is not None for name in _entries("/dev")
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


def rdma_ports(root: str) -> list[dict[str, Any]]:
    """Return device, port, state, physical state, rate, link layer and counters of every port.

    Args:
        root: Where sysfs is mounted (Documentation/ABI/stable/sysfs-class-infiniband).
    """
    base = f"{root}/class/infiniband"
    found = []
    for device in _entries(base)[:MAX_PORTS]:
        for port in _entries(f"{base}/{device}/ports"):
            folder = f"{base}/{device}/ports/{port}"
            rate = re.match(r"[\d.]+", _text(f"{folder}/rate"))
            found.append(
                {
                    "device": device,
                    "port": port,
                    # As in ``4: ACTIVE`` and ``5: LinkUp``.
                    "state": _text(f"{folder}/state").rpartition(": ")[2],
                    "physical": _text(f"{folder}/phys_state").rpartition(": ")[2],
                    "rate_gbit": float(rate[0]) if rate else None,
                    "layer": _text(f"{folder}/link_layer"),
                    "counters": _counters(folder),
                }
            )
    return found[:MAX_PORTS]


def _counters(folder: str) -> dict[str, int]:
    read = {name: _text(f"{folder}/counters/{name}") for name in _COUNTERS}
    return {name: int(text) for name, text in read.items() if text.isdigit()}


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline(128).strip()
    except OSError:
        return ""


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
