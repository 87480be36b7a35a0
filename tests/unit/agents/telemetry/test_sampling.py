"""The host's load: real psutil on this machine, and what is left without it.
What counts as hardware, over trees of /sys as real machines and containers have them.
Rates from counters: differences, resets, and counters too narrow to difference.
How MIG profiles and throttle reasons are written.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from distconsole_agent.contract.protocol import BUSY_FIELDS, NODE_FIELDS
from distconsole_agent.telemetry import sampling
from distconsole_agent.telemetry.device import profile, throttle_words
from distconsole_agent.telemetry.rates import Rate
from distconsole_agent.telemetry.sampling import (
    FIRST_SECONDS,
    LONGEST_SWEEP_SECONDS,
    SURVEY_SECONDS,
    SWEEP_SECONDS,
    TICKS,
    UNWATCHED_SECONDS,
    BusyProcesses,
    HostSampler,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_sample_has_the_fields_of_the_protocol_and_rates_from_the_second_on() -> None:
    clock = Clock()
    sampler = HostSampler(clock)
    first = sampler.sample()
    clock.now += 1
    second = sampler.sample()
    assert tuple(first) == tuple(second) == NODE_FIELDS
    assert first["cpu"] is first["net_rx_s"] is first["disk_read_s"] is None
    assert 0 < second["mem_used"] < second["mem_total"]
    assert second["cpus"] == os.cpu_count()


def test_cpu_is_the_busy_share_between_two_samples() -> None:
    sampler = HostSampler()
    sampler.sample()
    before = psutil.cpu_times()
    until = before.user + before.system + 0.1
    while psutil.cpu_times().user + psutil.cpu_times().system < until:
        sum(range(10_000))
    assert 0 < sampler.sample()["cpu"] <= 100


def test_the_busiest_processes_are_those_between_readings_without_secrets(tmp_path: Path) -> None:
    def process(pid: int, seconds: float, started: int = 1) -> None:
        used = int(seconds * TICKS)
        (tmp_path / f"{pid}").mkdir(exist_ok=True)
        (tmp_path / f"{pid}/cmdline").write_bytes(b"python\0x.py\0--token=abc%d\0" % pid)
        (tmp_path / f"{pid}/stat").write_text(
            f"{pid} (a) S 99 (b) R 1 0 0 0 -1 0 0 0 0 0 {used} 0 0 0 20 0 1 0 {started} 0 25 0\n"
        )

    clock = Clock()
    busy = BusyProcesses(clock, str(tmp_path), begin=lambda look: look(), cpu_clock=clock)
    process(7, 500.0)
    process(8, 3.0)
    process(9, 100.0)
    assert busy.newest() is None, "there is no difference yet"
    clock.now += FIRST_SECONDS
    process(7, 500.0)
    process(8, 3.5)
    process(9, 2.0, started=99)  # another process with the number of one that has ended
    first = busy.newest()
    assert [(each["pid"], each["cpu"]) for each in first] == [(9, 200.0), (8, 50.0)]
    assert tuple(first[0]) == BUSY_FIELDS
    assert first[0]["command"] == "python x.py --token=***"
    assert first[0]["memory"] == 25 * os.sysconf("SC_PAGE_SIZE")
    clock.now += SWEEP_SECONDS - 0.1
    process(7, 600.0)
    assert busy.newest() is first, "they are not read again so soon"
    clock.now += 2 * UNWATCHED_SECONDS
    assert busy.newest() is None, "a mean over the time in which nobody looked is not of now"


def test_processes_that_take_long_to_read_are_read_seldom(tmp_path: Path) -> None:
    clock = Clock()
    readings = 0

    class Slow(BusyProcesses):
        def _read(self) -> Iterator[tuple[tuple[bytes, bytes], tuple[int, int]]]:
            nonlocal readings
            readings += 1
            clock.now += 0.1
            yield from super()._read()

    busy = Slow(clock, str(tmp_path), begin=lambda look: look(), cpu_clock=clock)
    for _ in range(200):
        busy.newest()
        clock.now += 1.0
    assert 200 / LONGEST_SWEEP_SECONDS - 1 <= readings <= 200 / LONGEST_SWEEP_SECONDS + 2


@pytest.mark.parametrize("interval", [7.0, 15.0, 60.0])
def test_who_asks_seldom_is_told_of_processes_too(tmp_path: Path, interval: float) -> None:
    clock = Clock()
    busy = BusyProcesses(clock, str(tmp_path), begin=lambda look: look(), cpu_clock=clock)
    told = []
    for _ in range(3):
        told.append(busy.newest())
        clock.now += interval
    assert told == [None, [], []]


def test_a_name_service_that_hangs_holds_up_no_sample(tmp_path: Path) -> None:
    busy = BusyProcesses(Clock(), str(tmp_path), begin=lambda _look: None)
    assert [busy.newest(), busy.newest()] == [None, None]


def test_without_psutil_only_what_python_knows_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    values = HostSampler().sample()
    assert tuple(values) == NODE_FIELDS
    assert {name for name, value in values.items() if value is not None} == {"cpus", "load1"}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1048576, (4096, 1048576)), (2**59, None)],
    ids=["lower than the host's", "higher"],
)
def test_a_lower_memory_limit_is_the_memory_there_is(
    tmp_path: Path, limit: int, expected: tuple[int, int] | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text("4096\n")
    values = HostSampler(Clock(), tmp_path / "proc", tmp_path / "sys").sample()
    found = values["mem_used"], values["mem_total"]
    assert found == (expected or (found[0], psutil.virtual_memory().total))


def test_rdma_traffic_is_network_traffic(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", "InfiniBand", 1000, 2000)
    counters = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
    clock = Clock()
    sampler = HostSampler(clock, sys_root=tmp_path)
    sampler.sample()
    (counters / "port_rcv_data").write_text("1500\n")
    (counters / "port_xmit_data").write_text("4000\n")
    clock.now += 2
    values = sampler.sample()
    assert (values["net_rx_s"], values["net_tx_s"]) == (1000.0, 4000.0)


def test_swap_disk_and_segments_sent_again_are_rates(tmp_path: Path) -> None:
    proc, sys_root = tmp_path / "proc", tmp_path / "sys"
    frequency = sys_root / "devices/system/cpu/cpu0/cpufreq"
    for folder in (proc / "pressure", proc / "net", frequency):
        folder.mkdir(parents=True)
    (proc / "swaps").write_text("Filename Type\n/swap file\n")
    (frequency / "scaling_max_freq").write_text("2100000\n")
    (proc / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Xeon 4110\ncpu MHz\t\t: 800.1\n\n"
    )

    def write(pages: int, microseconds: int, segments: int) -> None:
        (proc / "vmstat").write_text(f"pgfault 9\npswpin {pages}\npswpout 1\n")
        some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}\n"
        (proc / "pressure/io").write_text(f"{some}{some.replace('some', 'full')}")
        (proc / "net/snmp").write_text(
            f"Ip: Forwarding\nIp: 1\nTcp: A RetransSegs\nTcp: 4 {segments}\n"
        )

    clock = Clock()
    sampler = HostSampler(clock, proc, sys_root)
    write(100, 5_000_000, 7)
    first = sampler.sample()
    assert [first[name] for name in ("swap_in_s", "disk_wait", "net_resent_s")] == [None] * 3
    clock.now += 2
    write(300, 6_500_000, 27)
    values = sampler.sample()
    assert values["swap_in_s"] == 100 * os.sysconf("SC_PAGE_SIZE")
    assert values["disk_wait"] == 75.0
    assert values["net_resent_s"] == 10.0
    assert (values["cpu_mhz"], values["cpu_model"]) == (2100.0, "Xeon 4110")


def test_without_the_kernels_counts_idle_processors_tell_of_the_disk(tmp_path: Path) -> None:
    clock = Clock()
    sampler = HostSampler(clock, tmp_path, tmp_path)
    sampler.sample()
    clock.now += 1
    values = sampler.sample()
    assert 0.0 <= values["disk_wait"] <= 100.0
    assert values["swap_in_s"] == 0.0
    unknown = ("net_resent_s", "cpu_mhz", "cpu_model", "net_rx_s", "disk_write_s")
    assert [values[name] for name in unknown] == [None] * 5, "no rate rather than zero"


def test_an_interface_that_came_later_does_not_count_as_a_burst(tmp_path: Path) -> None:
    names = list(psutil.net_io_counters(pernic=True))
    lowest = tmp_path / "class" / "net" / names[0]
    clock = Clock()
    sampler = HostSampler(clock, sys_root=tmp_path)
    sampler.sample()
    lowest.mkdir(parents=True)
    clock.now += SURVEY_SECONDS
    assert sampler.sample()["net_rx_s"] is None
    clock.now += 1
    assert sampler.sample()["net_rx_s"] >= 0


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
        ("lo 772; eth0; tun0 tun_flags 65534; eth0.5 lower_eth0; br0 bridge lower_eth0", {"eth0"}),
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


def test_disks_without_a_device_link_count_only_alone(tmp_path: Path) -> None:
    for name in ("vda", "loop0", "dm-0", "md127"):
        disk(tmp_path, name)
    assert sampling.whole_disks(["vda", "vda1", "loop0", "dm-0"], tmp_path) == {"vda"}
    disk(tmp_path, "nvme0n1", "device")
    disk(tmp_path, "sda", "device")
    names = ["nvme0n1", "nvme0n1p1", "sda", "sda1", "vda", "dm-0", "md127", "loop0"]
    assert sampling.whole_disks(names, tmp_path) == {"nvme0n1", "sda"}


def test_an_accelerator_without_a_driver_is_seen_and_board_graphics_not(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("kind", "readings"),
    [
        ({"unit": 1024.0}, [(100, 10.0, None), (300, 12.0, 100 * 1024.0)]),
        ({}, [(10**12, 0.0, None), (5, 1.0, None), (25, 2.0, 20.0)]),
        ({}, [(10, 0.0, None), (None, 1.0, None), (30, 2.0, None), (31, 3.0, 1.0)]),
        ({}, [(10, 1.0, None), (30, 1.0, None)]),
        (
            {"may_wrap": True},
            [
                (1000, 0.0, None),
                (5, 1.0, None),
                (2**32 + 7, 2.0, 2.0**32 + 2),
                (2**32 + 17, 3.0, 10.0),
            ],
        ),
    ],
    ids=[
        "the difference over the time between",
        "a counter that went back gives one empty interval",
        "a missing value empties the interval on both sides",
        "no time between two readings",
        "a reset counter counts again once it is past 32 bits",
    ],
)
def test_a_rate_is_known_between_two_readings_of_one_count(
    kind: dict[str, Any], readings: list[tuple[int | None, float, float | None]]
) -> None:
    rate = Rate(**kind)
    for value, at, expected in readings:
        assert rate.update(value, at) == expected


def test_a_counter_that_wrapped_at_32_bits_gives_no_more_rates() -> None:
    rate = Rate(may_wrap=True)
    rate.update(2**32 - 10, 0.0)
    assert rate.update(5, 1.0) is rate.update(1005, 2.0) is None


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, []),
        (0x1, []),
        (0x2, []),
        (0x4, ["power_cap"]),
        (0x8 | 0x40, ["hw_slowdown", "hw_thermal"]),
        (0x20 | 0x80 | 0x10, ["sync_boost", "sw_thermal", "hw_power_brake"]),
        (0x700, ["display_clock", "board_limit", "reliability"]),
        (1 << 40, []),
    ],
)
def test_throttle_reasons_are_words_and_idle_is_none(bits: int, words: list[str]) -> None:
    assert throttle_words(bits) == words


def test_a_profile_is_the_end_of_the_drivers_name() -> None:
    assert profile("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb") == "1c.3g.40gb"
    assert profile("NVIDIA A100") == profile(None) == "mig"
