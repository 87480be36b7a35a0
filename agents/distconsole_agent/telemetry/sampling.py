"""Samples the load of this node, by psutil and the GPUs' driver, for watching consoles and for runs that go on.

A byte that crosses a bridge, a bond, a veth pair or a device-mapper volume is counted by each of
them; only the hardware below counts it once, so only interfaces, ports and disks that carry real
traffic are added up.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from distconsole_agent.contract import records
from distconsole_agent.contract.limits import MAX_WATCH_SECONDS, MIN_WATCH_SECONDS
from distconsole_agent.contract.protocol import BUSY_FIELDS, NODE_FIELDS, Values
from distconsole_agent.system.cgroup import MemoryGroup, memory_group
from distconsole_agent.system.kernel_files import entries_of, first_line_of, number_of, text_of
from distconsole_agent.system.procfs import read_head, stat_fields
from distconsole_agent.system.steady import to_next_second
from distconsole_agent.system.threads import BEGIN_SECONDS, begin_thread
from distconsole_agent.telemetry.rates import Rate

if TYPE_CHECKING:
    from distconsole_agent.telemetry.gpu import GpuSampler
    from distconsole_agent.telemetry.mapping import RunningRank

SURVEY_SECONDS = 60.0
"""Seconds for which the list of interfaces, disks and memory limits is kept."""

RDMA_WORD_BYTES = 4

_Value = TypeVar("_Value")

ARPHRD_LOOPBACK = 772
ARPHRD_INFINIBAND = 32
STACKED = {"bridge", "bonding", "tun_flags"}
"""Entries of interfaces that carry the traffic of others."""
PAGE_BYTES, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
_PROCESSOR = re.compile(r"^(model name|cpu MHz)\s*: (.*)$", re.MULTILINE)
MAX_MODEL_CHARS = 100
_TCP = re.compile(r"^Tcp: (.*)$", re.MULTILINE)
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "nbd", "sr", "fd")


AHEAD_SECONDS, MOST_AHEAD_SECONDS = 0.1, 0.4
"""A sample begins this long before the whole second, plus the duration of the last one, at most the second number."""


SWEEP_SECONDS, SWEEP_SHARE, LONGEST_SWEEP_SECONDS = 5.0, 500.0, 20.0
"""Least and most seconds between two readings of all processes, and in between the CPU time of one reading times the share."""
FIRST_SECONDS = 1.0
"""How soon the second reading follows the first, which has no difference to another."""
UNWATCHED_SECONDS = MAX_WATCH_SECONDS + LONGEST_SWEEP_SECONDS
"""Age in seconds from which a reading is not compared with the next one: the mean would not be current."""
MAX_BUSY = 10

DRIVER_SECONDS = 5.0
"""How long ``hello`` waits for the first answer of a GPU driver."""

_ACCELERATORS = "dev/accel*", "dev/davinci[0-9]*", "dev/neuron[0-9]*", "dev/vfio/[0-9]*"
_OF_PCI = re.compile(r"0x(12|0302|0380|03....0x10de)")
"""Class and vendor: processing accelerators, displays that are no VGA, all of NVIDIA; no graphics of a board."""


class Sample(NamedTuple):
    """The body of a ``sample`` of UNIX time ``t``; ``processes`` are the busiest, if they were read again."""

    t: float
    node: Values
    gpus: Sequence[Values]
    processes: Sequence[Values] | None = None


Target = tuple[Sequence["RunningRank"], Callable[[Sample], None]]
"""The rank processes of a run, and the receiver of its sample."""


class HostSampler:
    """Samples this host, for one thread; rates are the differences to the sample before."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
    ) -> None:
        self._clock = clock
        self._proc_root = proc_root
        self._sys_root = sys_root
        self._psutil = load_psutil()
        self._surveyed_at: float | None = None
        self._interfaces: frozenset[str] = frozenset()
        self._disks: frozenset[str] = frozenset()
        self._ports: tuple[SampledPort, ...] = ()
        self._memory_group: MemoryGroup | None = None
        self._cpu_times: tuple[float, float] | None = None
        self._rates = _new_rates()
        self._swaps = False
        self._processors: Values = {}

    def sample(self) -> Values:
        """Return ``NODE_FIELDS``: percent, bytes, bytes a second; null if unknown."""
        values: Values = dict.fromkeys(NODE_FIELDS)
        values["cpus"] = os.cpu_count()
        values["load1"] = _or_none(lambda: round(os.getloadavg()[0], 2))
        if self._psutil is None:
            return values
        now = self._clock()
        if self._surveyed_at is None or now - self._surveyed_at >= SURVEY_SECONDS:
            self._survey(now)
        values["cpu"] = _or_none(self._cpu_percent)
        values.update(_or_none(self._memory) or {})
        values.update(self._processors)
        counters: dict[str, int] = {}
        for read in (self._network, self._disk, self._waits, self._resent, self._swapped):
            counters.update(_or_none(read) or {})
        for name, rate in self._rates.items():
            values[name] = rate.update(counters.get(name), now)
        if isinstance(wait := values["disk_wait"], float):
            values["disk_wait"] = min(100.0, round(wait, 1))
        return values

    def _survey(self, now: float) -> None:
        self._surveyed_at = now
        psutil = self._psutil
        nics = _or_none(lambda: list(psutil.net_io_counters(pernic=True, nowrap=False))) or []
        disks = _or_none(lambda: list(psutil.disk_io_counters(perdisk=True, nowrap=False))) or []
        ports = rdma_ports(self._sys_root)
        interfaces = network_interfaces(nics, self._sys_root)
        if any(port.infiniband for port in ports):
            interfaces = without_infiniband(interfaces, self._sys_root)
        whole = whole_disks(disks, self._sys_root)
        # A sum over other devices than before is no continuation of the old counter.
        if (interfaces, whole, ports) != (self._interfaces, self._disks, self._ports):
            self._rates = _new_rates()
        self._interfaces, self._disks, self._ports = interfaces, whole, ports
        self._memory_group = memory_group(self._proc_root, self._sys_root)
        self._swaps = text_of(f"{self._proc_root}/swaps").count("\n") > 1
        self._processors = self._find_processors()

    def _find_processors(self) -> dict[str, Any]:
        """Return model and highest clock of the first processor; the others are not asked, as some kernels wake each for it."""
        khz = number_of(f"{self._sys_root}/devices/system/cpu/cpu0/cpufreq/scaling_max_freq")
        told = read_head(f"{self._proc_root}/cpuinfo", 2048).decode("utf-8", "replace")
        said = {name: value.strip() for name, value in _PROCESSOR.findall(told)}
        mhz = khz / 1000 if khz else _or_none(lambda: round(float(said["cpu MHz"])))
        return {"cpu_mhz": mhz, "cpu_model": said.get("model name", "")[:MAX_MODEL_CHARS] or None}

    def _cpu_percent(self) -> float | None:
        """Return the busy share of all CPUs since the sample before, 0 to 100.

        As psutil counts it: guest time is inside user time, waiting for a disk is idle.
        """
        times = self._psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._cpu_times = self._cpu_times, (busy, total)
        if before is None or total <= before[1]:
            return None
        share = float((busy - before[0]) / (total - before[1]))
        return round(100.0 * min(1.0, max(0.0, share)), 1)

    def _memory(self) -> dict[str, int]:
        memory = self._psutil.virtual_memory()
        group = self._memory_group
        if group is not None and group.limit_bytes < memory.total:
            used = group.used_bytes()
            if used is not None:
                return {"mem_total": group.limit_bytes, "mem_used": used}
        return {"mem_total": memory.total, "mem_used": memory.total - memory.available}

    def _network(self) -> dict[str, int]:
        counters = self._psutil.net_io_counters(pernic=True, nowrap=False)
        chosen = [counters[name] for name in self._interfaces if name in counters]
        if not chosen and not self._ports:
            return {}
        received = sum(one.bytes_recv for one in chosen)
        sent = sum(one.bytes_sent for one in chosen)
        for port in self._ports:
            received += RDMA_WORD_BYTES * int(read_head(port.received, 32))
            sent += RDMA_WORD_BYTES * int(read_head(port.sent, 32))
        errors = sum(each.errin + each.errout + each.dropin + each.dropout for each in chosen)
        return {"net_rx_s": received, "net_tx_s": sent, "net_errors_s": errors}

    def _disk(self) -> dict[str, int]:
        counters = self._psutil.disk_io_counters(perdisk=True, nowrap=False)
        chosen = [counters[name] for name in self._disks if name in counters]
        if not chosen:
            return {}
        return {
            "disk_read_s": sum(one.read_bytes for one in chosen),
            "disk_write_s": sum(one.write_bytes for one in chosen),
        }

    def _waits(self) -> dict[str, int]:
        """Return the microseconds during which a process waited for a disk; without the kernel's count
        (Documentation/accounting/psi.rst), those of all processors that had nothing else to do meanwhile.
        """
        first = first_line_of(f"{self._proc_root}/pressure/io") or ""
        if first.startswith("some "):
            return {"disk_wait": int(first.rpartition("total=")[2])}
        return {"disk_wait": int(1e6 * self._psutil.cpu_times().iowait)}

    def _resent(self) -> dict[str, int]:
        names, values = _TCP.findall(text_of(f"{self._proc_root}/net/snmp"))
        return {"net_resent_s": int(dict(zip(names.split(), values.split()))["RetransSegs"])}

    def _swapped(self) -> dict[str, int]:
        if not self._swaps:
            return {"swap_in_s": 0}
        pages = re.search(r"^pswpin (\d+)", text_of(f"{self._proc_root}/vmstat"), re.MULTILINE)
        return {"swap_in_s": int(pages[1]) * PAGE_BYTES} if pages else {}


class BusyProcesses:
    """The processes that use the processors most, of those that this user sees; any thread may ask.

    ``begin`` reads in a thread: the names of users may come from a server that does not answer.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        proc_root: str = "/proc",
        begin: Callable[[Callable[[], None]], None] = begin_thread,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._reading = threading.Lock()
        self._clock, self._cpu_clock, self._proc_root = clock, cpu_clock, proc_root
        self._begin = begin
        self._ticks: dict[tuple[bytes, bytes], int] = {}
        self._read_at = self._due = -math.inf
        self._busy: list[Values] | None = None

    def newest(self) -> list[Values] | None:
        """Return ``BUSY_FIELDS`` of each, the busiest first; the same list until they were read again, None before that."""
        if self._clock() >= self._due and self._reading.acquire(blocking=False):
            try:
                self._begin(self._look)
            except RuntimeError:  # no thread is left
                self._reading.release()
        return self._busy

    def _look(self) -> None:
        try:
            now, began = self._clock(), self._cpu_clock()
            read = dict(self._read())
            is_first = now - self._read_at > UNWATCHED_SECONDS
            self._busy = None if is_first else self._compare(read, now - self._read_at)
            self._ticks = {key: ticks for key, (ticks, _) in read.items()}
            pause = max(SWEEP_SECONDS, SWEEP_SHARE * (self._cpu_clock() - began))
            pause = FIRST_SECONDS if is_first else min(pause, LONGEST_SWEEP_SECONDS)
            self._read_at, self._due = now, now + pause
        finally:
            self._reading.release()

    def _read(self) -> Iterator[tuple[tuple[bytes, bytes], tuple[int, int]]]:
        """Yield pid and start of each process, the ticks that it has used, and its pages of memory (proc(5))."""
        for name in os.listdir(self._proc_root):
            if name.isdigit():
                _, fields = stat_fields(read_head(f"{self._proc_root}/{name}/stat", 1024))
                if len(fields) > 21:
                    used = int(fields[11]) + int(fields[12])
                    yield (name.encode(), fields[19]), (used, int(fields[21]))

    def _compare(
        self, read: dict[tuple[bytes, bytes], tuple[int, int]], seconds: float
    ) -> list[Values]:
        from distconsole_agent.telemetry.mapping import ProcessTable

        used = {key: ticks - self._ticks.get(key, 0) for key, (ticks, _) in read.items()}
        table = ProcessTable(self._proc_root)
        busy: list[Values] = []
        for key in sorted(used, key=used.__getitem__, reverse=True)[:MAX_BUSY]:
            user, command = table.describe(int(key[0])) if used[key] > 0 else (None, None)
            if user is not None:
                cpu = round(100 * used[key] / TICKS / seconds, 1)
                values = (int(key[0]), user, command, cpu, read[key][1] * PAGE_BYTES)
                busy.append(dict(zip(BUSY_FIELDS, values)))
        return busy


def _new_rates() -> dict[str, Rate]:
    rates = {name: Rate() for name in NODE_FIELDS if name.endswith("_s")}
    return {**rates, "disk_wait": Rate(1e-4)}


def load_psutil() -> Any:
    """Return the psutil module, or None if it is missing or made for another Python."""
    try:
        import psutil
    except (ImportError, OSError):
        return None
    return psutil


def _or_none(read: Callable[[], _Value]) -> _Value | None:
    """Return the result of ``read``; None if this kernel or container does not show it.

    psutil raises RuntimeError and NotImplementedError if a file of /proc is missing, and
    ValueError or KeyError if one reads differently than it expects.
    """
    try:
        return read()
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError):
        return None


class SampledPort(NamedTuple):
    """One port of an RDMA adapter; its data counters count words of four bytes."""

    received: str
    sent: str
    infiniband: bool


def network_interfaces(names: list[str], sys_root: str) -> frozenset[str]:
    """Return those of ``names`` whose bytes to add up.

    With hardware in sight (a ``device`` link) that is the hardware; else, as in a container or a
    namespace, every interface that is not loopback and not stacked on others.
    """
    folder = f"{sys_root}/class/net"
    hardware = {name for name in names if os.path.exists(f"{folder}/{name}/device")}
    if hardware:
        return frozenset(hardware)
    lowest = set()
    for name in names:
        kind, marks = number_of(f"{folder}/{name}/type"), entries_of(f"{folder}/{name}")
        is_stacked = any(mark.startswith("lower_") for mark in marks)
        is_stacked = is_stacked or not STACKED.isdisjoint(marks)
        if os.path.exists(f"{folder}/{name}") and kind != ARPHRD_LOOPBACK and not is_stacked:
            lowest.add(name)
    return frozenset(lowest)


def without_infiniband(names: frozenset[str], sys_root: str) -> frozenset[str]:
    """Leave out IP over InfiniBand: the counters of the port below contain its bytes."""
    folder = f"{sys_root}/class/net"
    return frozenset(
        name for name in names if number_of(f"{folder}/{name}/type") != ARPHRD_INFINIBAND
    )


def rdma_ports(sys_root: str) -> tuple[SampledPort, ...]:
    """Return all RDMA adapters' ports, whose traffic no interface counts (sysfs-class-infiniband of Linux's ABI)."""
    folder, ports = f"{sys_root}/class/infiniband", []
    for adapter in entries_of(folder):
        for number in entries_of(f"{folder}/{adapter}/ports"):
            port = f"{folder}/{adapter}/ports/{number}"
            received = f"{port}/counters/port_rcv_data"
            sent = f"{port}/counters/port_xmit_data"
            if os.path.exists(received) and os.path.exists(sent):
                layer = first_line_of(f"{port}/link_layer")
                ports.append(SampledPort(received, sent, layer == "InfiniBand"))
    return tuple(ports)


def whole_disks(names: list[str], sys_root: str) -> frozenset[str]:
    """Return those of ``names`` that are disks: no partition, no volume stacked on others."""
    folder = f"{sys_root}/block"
    disks = {name for name in names if os.path.exists(f"{folder}/{name}")}
    hardware = {name for name in disks if os.path.exists(f"{folder}/{name}/device")}
    return frozenset(hardware or {name for name in disks if not name.startswith(_VIRTUAL_DISKS)})


class Telemetry:
    """The one pair of samplers, made when first needed; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._host: HostSampler | None = None
        self._gpu: GpuSampler | None = None
        self._node: Values = {}
        self._node_at = 0.0
        self.busy = BusyProcesses()

    def sample(self, ranks: Sequence[RunningRank]) -> Sample:
        """Return the body of a ``sample``; ``ranks`` are the processes to find on the GPUs."""
        with self._lock:
            host, gpu = self._samplers()
            # Rates are differences: two askers a moment apart share one reading.
            now = time.monotonic()
            if now - self._node_at >= MIN_WATCH_SECONDS or not self._node:
                self._node, self._node_at = host.sample(), now
            gpus = gpu.sample(ranks)
        return Sample(round(time.time(), 6), self._node, gpus)

    def describe(self) -> dict[str, object]:
        """Return ``psutil``, ``nvml``, ``gpus`` and ``accelerator`` for ``hello``."""
        with self._lock:
            _host, gpu = self._samplers()
            driver = gpu.driver(DRIVER_SECONDS)
        psutil, gpus = load_psutil(), driver.gpus if driver is not None else 0
        return {
            "psutil": str(psutil.__version__) if psutil is not None else None,
            "nvml": driver.version if driver is not None else None,
            "gpus": gpus,
            "accelerator": gpus > 0 or has_accelerator("/"),
        }

    def _samplers(self) -> tuple[HostSampler, GpuSampler]:
        from distconsole_agent.telemetry.gpu import GpuSampler

        if self._host is None or self._gpu is None:
            self._host, self._gpu = HostSampler(), GpuSampler()
        return self._host, self._gpu


class Sampling:
    """Gives every active run a sample a second, from one thread that ends when there is none."""

    def __init__(self, telemetry: Telemetry, targets: Callable[[], list[Target]]) -> None:
        self._telemetry = telemetry
        self._targets = targets
        self._lock = threading.Lock()
        self._next = 0.0
        """Steady seconds from which on a thread may begin; inf while one runs."""

    def ensure(self) -> None:
        """Start the thread unless it runs; one that cannot start now, or never ran, does the next time."""
        now = time.monotonic()
        with self._lock:
            if now >= self._next:
                with contextlib.suppress(RuntimeError):
                    begin_thread(self._run)
                    self._next = now + BEGIN_SECONDS

    def _run(self) -> None:
        with self._lock:
            if self._next == math.inf:
                return
            self._next = math.inf
        try:
            while targets := self._current():
                began = time.monotonic()
                for ranks, give in targets:
                    give(self._telemetry.sample(ranks))
                took = time.monotonic() - began
                # A sample travels with the windows, which are due at the whole second.
                time.sleep(
                    to_next_second(time.time() + min(took, MOST_AHEAD_SECONDS) + AHEAD_SECONDS)
                )
        except BaseException:
            self._next = 0.0
            raise

    def _current(self) -> list[Target]:
        """Return the targets; without any, the thread counts as ended before ``ensure`` can ask."""
        with self._lock:
            targets = self._targets()
            self._next = math.inf if targets else 0.0
            return targets


def watch(
    telemetry: Telemetry,
    interval: float,
    ranks: Callable[[], Sequence[RunningRank]],
    send: Callable[[dict[str, object]], None],
    cancelled: threading.Event,
) -> None:
    """Send a sample every ``interval`` seconds until cancelled.

    The busiest processes go with a sample once they were read again.
    """
    seconds = min(max(interval, MIN_WATCH_SECONDS), MAX_WATCH_SECONDS)
    told: list[Values] | None = None
    while not cancelled.is_set():
        sample, busy = telemetry.sample(ranks()), telemetry.busy.newest()
        if busy is not told:
            sample, told = sample._replace(processes=busy), busy
        send(records.write(sample))
        cancelled.wait(seconds)


def memory_total() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def has_accelerator(root: str) -> bool:
    """Return whether a GPU, TPU or the like is below ``root``, with a working driver or without."""
    if any(glob.glob(root + each) for each in _ACCELERATORS):
        return True
    folders = glob.glob(f"{root}sys/bus/pci/devices/*/")
    pairs = (
        [first_line_of(each + name) or "" for name in ("class", "vendor")] for each in folders
    )
    return any(_OF_PCI.match("".join(pair)) for pair in pairs)
