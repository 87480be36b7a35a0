"""Which network interfaces, RDMA ports and disks of /sys carry real traffic. It reads no counter.

A byte that crosses a bridge, a bond, a veth pair or a device-mapper volume is counted by each of
them; only the hardware below counts it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distconsole_agent.system.kernel_files import first_line_of, number_of

ARPHRD_LOOPBACK = 772
ARPHRD_INFINIBAND = 32
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "nbd", "sr", "fd")


@dataclass(frozen=True)
class RdmaPort:
    """One port of an RDMA adapter; its data counters count words of four bytes."""

    received: Path
    sent: Path
    infiniband: bool


def network_interfaces(names: list[str], sys_root: Path = Path("/sys")) -> frozenset[str]:
    """Return those of ``names`` whose bytes to add up.

    With hardware in sight (a ``device`` link) that is the hardware; in a container or a namespace,
    where there is none, every interface that is not loopback and not stacked on others.
    """
    folder = sys_root / "class" / "net"
    hardware = {name for name in names if (folder / name / "device").exists()}
    if hardware:
        return frozenset(hardware)
    return frozenset(name for name in names if _is_lowest(folder / name))


def without_infiniband(names: frozenset[str], sys_root: Path = Path("/sys")) -> frozenset[str]:
    """Leave out IP over InfiniBand: the counters of the port below contain its bytes."""
    folder = sys_root / "class" / "net"
    return frozenset(
        name for name in names if number_of(folder / name / "type") != ARPHRD_INFINIBAND
    )


def rdma_ports(sys_root: Path = Path("/sys")) -> tuple[RdmaPort, ...]:
    """Return the ports of all RDMA adapters: their traffic passes by the network interfaces.

    The counters are those of ``Documentation/ABI/stable/sysfs-class-infiniband`` in Linux.
    """
    ports = []
    for port in sorted((sys_root / "class" / "infiniband").glob("*/ports/*")):
        received = port / "counters" / "port_rcv_data"
        sent = port / "counters" / "port_xmit_data"
        if received.exists() and sent.exists():
            ports.append(
                RdmaPort(received, sent, first_line_of(port / "link_layer") == "InfiniBand")
            )
    return tuple(ports)


def whole_disks(names: list[str], sys_root: Path = Path("/sys")) -> frozenset[str]:
    """Return those of ``names`` that are disks: no partition, no volume stacked on others."""
    folder = sys_root / "block"
    disks = {name for name in names if (folder / name).exists()}
    hardware = {name for name in disks if (folder / name / "device").exists()}
    return frozenset(hardware or {name for name in disks if not name.startswith(_VIRTUAL_DISKS)})


def _is_lowest(interface: Path) -> bool:
    if not interface.exists() or number_of(interface / "type") == ARPHRD_LOOPBACK:
        return False
    if any((interface / mark).exists() for mark in ("bridge", "bonding", "tun_flags")):
        return False
    return not any(interface.glob("lower_*"))
