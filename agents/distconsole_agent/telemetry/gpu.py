"""Samples the GPUs without ever waiting longer than a deadline: the driver is asked in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from distconsole_agent.contract.protocol import GPU_FIELDS, Values
from distconsole_agent.telemetry.amd import Amd, AmdDevice
from distconsole_agent.telemetry.device import Device, UnitReading
from distconsole_agent.telemetry.mapping import (
    GpuPlacement,
    GpuUnit,
    Listing,
    ProcessTable,
    RunningRank,
    place,
)
from distconsole_agent.telemetry.nvml import DriverGoneError, Nvml, NvmlError, NvmlMissingError

DEADLINE_SECONDS = 0.25
"""Longest wait of one sample for the driver, before it answers with the last readings."""

STALE_SECONDS = 10.0
"""Values older than this are not shown any more; their age still is."""

REUSE_SECONDS = 0.15
"""Requests within this time of another get the same reading: rates need time between two."""

LIST_SECONDS = 10.0
"""Between two process lists: each holds the driver's lock for milliseconds."""

DRIVER_RETRY_SECONDS = 5.0
GPU_RETRY_SECONDS = 30.0
MISSING_RETRY_SECONDS = 300.0


class Driver(NamedTuple):
    version: str
    gpus: int


class GpuSampler:
    """Samples the GPUs of this host for any number of askers, one at a time.

    A driver that hangs, is reloaded or loses a GPU costs at most one deadline: the samples after
    it return at once with the last values and their age, until the driver answers again.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        deadline_seconds: float = DEADLINE_SECONDS,
        table: ProcessTable | None = None,
    ) -> None:
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._reader = GpuReader(clock, table or ProcessTable())
        self._asked_at: float | None = None
        self._thread: threading.Thread | None = None

    def sample(self, ranks: Sequence[RunningRank] = ()) -> list[Values]:
        """Return ``GPU_FIELDS`` of each GPU, or of each instance of a GPU in MIG mode.

        Empty without NVML or a GPU, and until the driver first answered.
        """
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= REUSE_SECONDS:
            self._ask(self._deadline_seconds)
        readings = [reading for of_gpu in self._reader.readings for reading in of_gpu]
        units = [reading.unit for reading in readings]
        placement = place(units, self._reader.listing, ranks)
        answered_at = self._clock()
        return [_entry(reading, placement, now, answered_at) for reading in readings]

    def driver(self, timeout_seconds: float) -> Driver | None:
        """Return the driver's version and number of GPUs; None without, or not known in time."""
        if self._reader.driver is None:
            self._ask(timeout_seconds)
        return self._reader.driver

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Let go of the driver; a thread that hangs in it is left behind (it is a daemon)."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            self._run(self._reader.close, timeout_seconds)

    def _ask(self, timeout_seconds: float) -> None:
        if not self._reader.rests() and self._run(self._reader.read, timeout_seconds):
            self._asked_at = self._clock()

    def _run(self, work: Callable[[], None], timeout_seconds: float) -> bool:
        """Do ``work`` in a thread and wait for it; False while another thread is in the driver."""
        if self._thread is not None and self._thread.is_alive():
            return False
        thread = threading.Thread(target=work, name="gpu-reader", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: with the next sample
            return False
        self._thread = thread
        thread.join(timeout_seconds)
        return True


class GpuReader:
    """Reads every GPU and its processes, in a thread of its own; ``readings`` and ``listing`` are replaced whole."""

    def __init__(self, clock: Callable[[], float], table: ProcessTable) -> None:
        self._clock = clock
        self._table = table
        self._driver: Nvml | Amd | None = None
        self._devices: list[Device | AmdDevice | None] = []
        self._retry_gpu_at: dict[int, float] = {}
        self._retry_at: float | None = None
        self.driver: Driver | None = None
        self.readings: tuple[tuple[UnitReading, ...], ...] = ()
        self.listing = Listing()

    def read(self) -> None:
        """Read all GPUs once; a driver that is gone leaves the readings as they were."""
        now = self._clock()
        if self._driver is None and not self._open(now):
            return
        listing = self.listing.at is None or now - self.listing.at >= LIST_SECONDS
        try:
            for index in range(len(self._devices)):
                self._read_gpu(index, listing)
        except DriverGoneError:
            self._drop_driver(now)
            return
        if listing:
            described = {
                reading.unit.key: tuple(self._table.look_up(*each) for each in reading.processes)
                for of_gpu in self.readings
                for reading in of_gpu
            }
            self.listing = Listing(now, self._table.sees_host(), described)

    def rests(self) -> bool:
        """Return True if a read would ask nothing now: no driver, and not yet time to look again."""
        return (
            self._driver is None and self._retry_at is not None and self._clock() < self._retry_at
        )

    def close(self) -> None:
        """Let go of the driver; the next read opens it again."""
        if self._driver is not None:
            self._driver.close()
        self._driver = None
        self._retry_at = None

    def _open(self, now: float) -> bool:
        if self.rests():
            return False
        try:
            self._driver = driver = open_driver()
            count = driver.count()
            self.driver = Driver(driver.version(), count)
        except NvmlMissingError:
            self._retry_at = now + MISSING_RETRY_SECONDS
            return False
        except NvmlError:
            self._drop_driver(now)
            return False
        self.listing = Listing()
        self._devices = [None] * count
        self._retry_gpu_at = {}
        if len(self.readings) != count:
            units = [
                GpuUnit(f"gpu{index}", index, uuid=None, model=None) for index in range(count)
            ]
            self.readings = tuple((UnitReading(unit, {}, (), None),) for unit in units)
        return True

    def _drop_driver(self, now: float) -> None:
        self.close()
        self._retry_at = now + DRIVER_RETRY_SECONDS

    def _read_gpu(self, index: int, listing: bool) -> None:
        now = self._clock()
        if now < self._retry_gpu_at.get(index, now) or self._driver is None:
            return
        device = self._devices[index]
        try:
            driver = self._driver
            if device is None:
                device = (
                    AmdDevice(driver, index) if isinstance(driver, Amd) else Device(driver, index)
                )
                self._devices[index] = device
            device.read(now, listing)
        except DriverGoneError:
            raise
        except NvmlError:
            # A handle that was refused at all (no permission for this GPU) is asked for later too.
            self._devices[index] = None
            self._retry_gpu_at[index] = now + GPU_RETRY_SECONDS
        else:
            self._retry_gpu_at.pop(index, None)
        if device is not None:
            readings = list(self.readings)
            readings[index] = device.readings
            self.readings = tuple(readings)


def open_driver() -> Nvml | Amd:
    """Open NVIDIA's driver, else AMD's: of a node with both only NVIDIA's GPUs are read.

    Raises NvmlMissingError if there is none, DriverGoneError if it does not answer.
    """
    try:
        return Nvml.open()
    except NvmlMissingError:
        return Amd.open()


def _entry(reading: UnitReading, placement: GpuPlacement, asked_at: float, now: float) -> Values:
    unit, read_at = reading.unit, reading.read_at
    is_fresh = read_at is not None and now - read_at <= STALE_SECONDS
    is_late = read_at is not None and read_at <= asked_at - REUSE_SECONDS
    return {
        **dict.fromkeys(GPU_FIELDS),
        **(reading.values if is_fresh else {}),
        "processes": placement.processes.get(unit.key, []) if is_fresh else [],
        "gpu": unit.index,
        "uuid": unit.uuid,
        "name": unit.model,
        "mig": unit.mig,
        "rank": placement.ranks.get(unit.key),
        "age_s": round(now - read_at, 1) if read_at is not None and is_late else None,
    }
