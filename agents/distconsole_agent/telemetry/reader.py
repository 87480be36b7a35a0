"""All GPUs of this host and the processes on them: what the sampling thread runs. It may block for
as long as the driver does, so only that thread calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from distconsole_agent.telemetry.device import Device, UnitReading
from distconsole_agent.telemetry.mapping import GpuUnit
from distconsole_agent.telemetry.nvml import (
    DriverGoneError,
    GpuGoneError,
    GpuProcess,
    Nvml,
    NvmlMissingError,
    RefusedError,
    UnsupportedError,
)
from distconsole_agent.telemetry.placement import ListedProcess, Listing
from distconsole_agent.telemetry.processes import ProcessTable

LIST_SECONDS = 30.0
"""Between two process lists: each holds the driver's lock for milliseconds."""

AFTER_START_SECONDS = (5.0, 15.0)
"""Ranks that started are looked for this long after, when they are likely to have a context."""

DRIVER_RETRY_SECONDS = 5.0
GPU_RETRY_SECONDS = 30.0
MISSING_RETRY_SECONDS = 300.0


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver of this host and how many GPUs it has."""

    version: str
    gpus: int


class ListSchedule:
    """When to list processes: at once, after new ranks, and every ``LIST_SECONDS``."""

    def __init__(self) -> None:
        self._pids: frozenset[int] = frozenset()
        self._soon: list[float] = []
        self._listed_at: float | None = None

    def due(self, now: float, pids: Collection[int]) -> bool:
        """Say whether to list now; a yes is taken as done."""
        if self._listed_at is not None and not self._pids.issuperset(pids):
            self._soon = [now + after for after in AFTER_START_SECONDS]
        self._pids = frozenset(pids)
        at_once = self._listed_at is None or now - self._listed_at >= LIST_SECONDS
        if not at_once and not (self._soon and now >= self._soon[0]):
            return False
        self._soon = [when for when in self._soon if when > now]
        self._listed_at = now
        return True


class GpuReader:
    """Reads every GPU; ``readings`` (by GPU) and ``listing`` are replaced, never changed."""

    def __init__(self, clock: Callable[[], float], table: ProcessTable) -> None:
        self._clock = clock
        self._table = table
        self._nvml: Nvml | None = None
        self._devices: list[Device | None] = []
        self._retry_gpu_at: dict[int, float] = {}
        self._retry_at: float | None = None
        self._schedule = ListSchedule()
        self.driver: Driver | None = None
        self.readings: tuple[tuple[UnitReading, ...], ...] = ()
        self.listing = Listing()

    def read(self, pids: Collection[int]) -> None:
        """Read all GPUs once; a driver that is gone leaves the readings as they were.

        ``pids`` are the processes that ranks are known to have: new ones are looked for.
        """
        now = self._clock()
        if self._nvml is None and not self._open(now):
            return
        listing = self._schedule.due(now, pids)
        try:
            for index in range(len(self._devices)):
                self._read_gpu(index, listing)
        except DriverGoneError:
            self._drop_driver(now)
            return
        if listing:
            self.listing = Listing(now, self._table.sees_host(), self._describe())

    def rests(self) -> bool:
        """Say whether a read would ask nothing now: no driver, and not yet time to look again."""
        return self._nvml is None and self._retry_at is not None and self._clock() < self._retry_at

    def close(self) -> None:
        """Let go of the driver; the next read opens it again."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = None
        self._retry_at = None

    def _open(self, now: float) -> bool:
        if self.rests():
            return False
        try:
            nvml = Nvml.open()
        except NvmlMissingError:
            self._retry_at = now + MISSING_RETRY_SECONDS
            return False
        except DriverGoneError:
            self._retry_at = now + DRIVER_RETRY_SECONDS
            return False
        try:
            self._adopt(nvml)
        except (DriverGoneError, GpuGoneError, UnsupportedError, RefusedError):
            nvml.close()
            self._retry_at = now + DRIVER_RETRY_SECONDS
            return False
        return True

    def _adopt(self, nvml: Nvml) -> None:
        count = nvml.count()
        self.driver = Driver(nvml.driver_version(), count)
        self._nvml = nvml
        self._schedule = ListSchedule()
        self._devices = [None] * count
        self._retry_gpu_at = {}
        if len(self.readings) != count:
            self.readings = tuple(_unknown(index) for index in range(count))

    def _drop_driver(self, now: float) -> None:
        self.close()
        self._retry_at = now + DRIVER_RETRY_SECONDS

    def _read_gpu(self, index: int, listing: bool) -> None:
        now = self._clock()
        if now < self._retry_gpu_at.get(index, now) or self._nvml is None:
            return
        try:
            device = self._devices[index] or Device(self._nvml, index)
            self._devices[index] = device
            device.read(now, listing)
        except (GpuGoneError, UnsupportedError, RefusedError):
            # A handle that was refused at all (no permission for this GPU) is asked for later too.
            self._devices[index] = None
            self._retry_gpu_at[index] = now + GPU_RETRY_SECONDS
            return
        self._retry_gpu_at.pop(index, None)
        readings = list(self.readings)
        readings[index] = device.readings
        self.readings = tuple(readings)

    def _describe(self) -> dict[str, tuple[ListedProcess, ...]]:
        return {
            reading.unit.key: tuple(self._process(one) for one in reading.processes)
            for of_gpu in self.readings
            for reading in of_gpu
        }

    def _process(self, process: GpuProcess) -> ListedProcess:
        pid, used = process.pid, process.used_bytes
        if not self._table.is_same(pid):
            return ListedProcess(pid, None, None, used, ())
        facts = self._table.facts(pid)
        return ListedProcess(pid, facts.user, facts.command, used, self._table.lineage(pid))


def _unknown(index: int) -> tuple[UnitReading, ...]:
    unit = GpuUnit(key=f"gpu{index}", index=index, uuid=None, model=None)
    return (UnitReading(unit, None, None, {}, (), None),)
