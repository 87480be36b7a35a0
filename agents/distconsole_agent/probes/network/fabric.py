"""The ports of RDMA adapters as sysfs shows them, and the service of NVSwitch."""

from __future__ import annotations

import os
import re
from typing import Any

from distconsole_agent.probes.host.procfs import all_processes
from distconsole_agent.probes.host.shared_memory import sees_all_processes
from distconsole_agent.system.kernel_files import entries_of, first_line_of, number_of

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


def rdma_ports(root: str) -> list[dict[str, Any]]:
    """Return device, port, state, physical state, rate, link layer and counters of every port.

    Args:
        root: Where sysfs is mounted (Documentation/ABI/stable/sysfs-class-infiniband).
    """
    base = f"{root}/class/infiniband"
    found = []
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
                    "layer": first_line_of(f"{folder}/link_layer") or "",
                    "counters": _counters(folder),
                }
            )
    return found[:MAX_PORTS]


def _counters(folder: str) -> dict[str, int]:
    read = {name: number_of(f"{folder}/counters/{name}") for name in _COUNTERS}
    return {name: count for name, count in read.items() if count is not None}
