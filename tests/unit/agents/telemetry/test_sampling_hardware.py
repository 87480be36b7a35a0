"""What counts as hardware, over trees of /sys as real machines and containers have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from distconsole_agent.telemetry import sampling


def interface(root: Path, name: str, *marks: str, kind: int = 1) -> None:
    folder = root / "class" / "net" / name
    folder.mkdir(parents=True)
    (folder / "type").write_text(f"{kind}\n")
    for mark in marks:
        (folder / mark).mkdir()


def disk(root: Path, name: str, *marks: str) -> None:
    for mark in ("", *marks):
        (root / "block" / name / mark).mkdir(parents=True, exist_ok=True)


def port(root: Path, adapter: str, link_layer: str, received: int, sent: int) -> None:
    folder = root / "class" / "infiniband" / adapter / "ports" / "1"
    (folder / "counters").mkdir(parents=True)
    (folder / "link_layer").write_text(f"{link_layer}\n")
    (folder / "counters" / "port_rcv_data").write_text(f"{received}\n")
    (folder / "counters" / "port_xmit_data").write_text(f"{sent}\n")


@pytest.mark.parametrize(
    ("there", "counted"),
    [
        (
            "lo 772; eth0 device; eth1 device; bond0 bonding lower_eth0 lower_eth1; "
            "docker0 bridge; veth12ab",
            {"eth0", "eth1"},
        ),
        (
            "lo 772; eth0; tun0 tun_flags 65534; eth0.5 lower_eth0; br0 bridge lower_eth0",
            {"eth0"},
        ),
        ("eth0 bonding_slave upper_bond0; bond0 bonding lower_eth0", {"eth0"}),
    ],
    ids=["on a host hardware", "in a container what is not stacked", "what carries a bond"],
)
def test_each_interface_counts_once(tmp_path: Path, there: str, counted: set[str]) -> None:
    names = ["unknown"]
    for name, *parts in map(str.split, there.split("; ")):
        kinds = [int(part) for part in parts if part.isdigit()] or [1]
        interface(tmp_path, name, *(p for p in parts if not p.isdigit()), kind=kinds[0])
        names.append(name)
    assert sampling.network_interfaces(names, tmp_path) == counted


def test_ip_over_infiniband_is_left_to_the_port_below(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", "device")
    interface(tmp_path, "ib0", "device", kind=32)
    assert sampling.without_infiniband(frozenset({"eth0", "ib0"}), tmp_path) == {"eth0"}


def test_rdma_ports_are_found_with_their_link_layer(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", "InfiniBand", 1, 2)
    port(tmp_path, "mlx5_1", "Ethernet", 3, 4)
    (tmp_path / "class" / "infiniband" / "odd" / "ports" / "1").mkdir(parents=True)
    ports = sampling.rdma_ports(tmp_path)
    assert [one.infiniband for one in ports] == [True, False]
    assert [Path(one.received).read_text() for one in ports] == ["1\n", "3\n"]


def test_disks_are_counted_once_below_volumes_and_partitions(tmp_path: Path) -> None:
    disk(tmp_path, "nvme0n1", "device")
    disk(tmp_path, "sda", "device")
    disk(tmp_path, "dm-0")
    disk(tmp_path, "md127")
    disk(tmp_path, "loop0")
    names = ["nvme0n1", "nvme0n1p1", "sda", "sda1", "dm-0", "md127", "loop0"]
    assert sampling.whole_disks(names, tmp_path) == {"nvme0n1", "sda"}


def test_disks_without_a_device_link_count_where_there_are_no_others(tmp_path: Path) -> None:
    disk(tmp_path, "vda")
    disk(tmp_path, "loop0")
    disk(tmp_path, "dm-0")
    assert sampling.whole_disks(["vda", "vda1", "loop0", "dm-0"], tmp_path) == {"vda"}


def test_an_accelerator_without_its_driver_is_seen_and_graphics_of_a_board_are_none(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)

    def has(pci_class: str, vendor: str) -> bool:
        (folder / "class").write_text(f"{pci_class}\n")
        (folder / "vendor").write_text(f"{vendor}\n")
        return sampling.has_accelerator(f"{tmp_path}/")

    devices = [("0x030200", "0x10de"), ("0x030000", "0x10de"), ("0x120000", "0x1da3")]
    others = [("0x030000", "0x1a03"), ("0x010802", "0x10de"), ("0x020000", "0x1ae0")]
    assert [has(*each) for each in devices + others] == [True] * 3 + [False] * 3
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    assert has(*others[0])
