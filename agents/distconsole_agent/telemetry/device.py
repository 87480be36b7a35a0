"""One GPU: each value is read as often as it is worth the driver's time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from distconsole_agent.contract.protocol import ECC, POWER, XID_SECONDS, Values
from distconsole_agent.telemetry.mapping import GpuUnit
from distconsole_agent.telemetry.nvml import Nvml, NvmlRefusedError, UnsupportedError
from distconsole_agent.telemetry.rates import Rate

EACH_SECONDS, WARM_SECONDS, SLOW_SECONDS = 0.0, 5.0, 60.0
"""Pace of cheap readings, of dear ones (PCIe, heat), and of those that seldom change."""

ALL_LINKS = 0xFFFFFFFF
"""The scope of an NVLink counter that means all links together."""

MEMORY_V2 = 0x02000028
"""``nvmlMemory_v2``: used memory without the driver's reserve; not before driver 510."""

KIB = 1024.0

THROTTLE_REASONS = (
    (0x0004, "power_cap"),
    (0x0008, "hw_slowdown"),
    (0x0010, "sync_boost"),
    (0x0020, "sw_thermal"),
    (0x0040, "hw_thermal"),
    (0x0080, "hw_power_brake"),
    (0x0100, "display_clock"),
    (0x0200, "board_limit"),
    (0x0400, "reliability"),
)
"""``nvmlClocksEventReason*`` except idle and set clocks: these are no throttling."""


class Questions:
    """Questions to a driver about one GPU: each at its pace, and not again after a final refusal."""

    def __init__(self) -> None:
        self._never: set[object] = set()
        self._asked_at: dict[float, float] = {}

    def take_due(self, now: float) -> list[float]:
        """Return the paces whose values are to be read at ``now``, once."""
        paces = (EACH_SECONDS, WARM_SECONDS, SLOW_SECONDS)
        # A little early counts: samples a second apart never fall on the exact second.
        due = [pace for pace in paces if now - self._asked_at.get(pace, -inf) >= pace - 0.1]
        self._asked_at.update(dict.fromkeys(due, now))
        if SLOW_SECONDS in due:
            # A final refusal may change with the mode.
            self._never.clear()
        return due

    def ask(self, what: object, read: Callable[[], Any]) -> Any:
        """Return the value of ``read``; None if it is refused, or was unsupported since the slowest pace was due."""
        if what in self._never:
            return None
        try:
            return read()
        except UnsupportedError:
            self._never.add(what)
        except NvmlRefusedError:
            pass
        return None


def throttle_words(reasons: int) -> list[str]:
    return [word for bit, word in THROTTLE_REASONS if reasons & bit]


class Value(NamedTuple):
    """A field of ``GPU_FIELDS``, the call that gives it, and how its answer is read."""

    name: str
    seconds: float
    function: str
    arguments: tuple[int, ...] = ()
    read: Callable[[Any], Any] = int


VALUES = (
    Value("util", EACH_SECONDS, "nvmlDeviceGetUtilizationRates", read=lambda rates: rates.gpu),
    Value("sm_clock_mhz", EACH_SECONDS, "nvmlDeviceGetClockInfo", (1,)),
    Value("mem_clock_mhz", EACH_SECONDS, "nvmlDeviceGetClockInfo", (2,)),
    Value(
        "throttle", EACH_SECONDS, "nvmlDeviceGetCurrentClocksThrottleReasons", read=throttle_words
    ),
    Value("temp_c", WARM_SECONDS, "nvmlDeviceGetTemperature", (0,)),
    Value(ECC, SLOW_SECONDS, "nvmlDeviceGetTotalEccErrors", (1, 0)),
)


class Counter(NamedTuple):
    """A field of ``GPU_FIELDS`` that is the rate of one of NVML's field values."""

    name: str
    seconds: float
    field: int
    scope: int
    unit: float
    may_wrap: bool = False


COUNTERS = (
    Counter(POWER, EACH_SECONDS, 83, 0, 0.001),  # energy in mJ
    Counter("nvlink_tx_s", EACH_SECONDS, 138, ALL_LINKS, KIB),
    Counter("nvlink_rx_s", EACH_SECONDS, 139, ALL_LINKS, KIB),
    Counter("pcie_tx_s", WARM_SECONDS, 197, 0, 1.0, may_wrap=True),
    Counter("pcie_rx_s", WARM_SECONDS, 198, 0, 1.0, may_wrap=True),
)


class UnitReading(NamedTuple):
    """Readings of a GPU or an instance: the value fields of ``GPU_FIELDS``, and their time."""

    unit: GpuUnit
    values: Values
    processes: Sequence[tuple[int, int | None]]
    read_at: float | None


class Device:
    """A GPU and its last reading; creation and reads raise DriverGoneError or GpuGoneError."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self._nvml = nvml
        self._handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
        self._questions = Questions()
        self._absent: set[int] = set()
        uuid = self._ask("nvmlDeviceGetUUID", self._handle)
        model = self._ask("nvmlDeviceGetName", self._handle)
        self._whole = GpuUnit(key=uuid or f"gpu{index}", index=index, uuid=uuid, model=model)
        self._units = [(self._whole, self._handle)]
        self._rates = {each.name: Rate(each.unit, each.may_wrap) for each in COUNTERS}
        self._values: Values = {}
        self._xid_at = -inf
        self._ask(nvml.watch_xids, self._handle)
        self._processes: dict[str, list[tuple[int, int | None]]] = {}
        self.readings: tuple[UnitReading, ...] = (UnitReading(self._whole, {}, (), None),)

    def read(self, now: float, with_processes: bool) -> None:
        """Ask the driver for due values at ``now`` and replace ``readings``."""
        self._take_xid(now)
        due = self._questions.take_due(now)
        if SLOW_SECONDS in due:
            self._absent.clear()
            self._find_units()
        for value in VALUES:
            if value.seconds in due:
                found = self._ask(value.function, self._handle, *value.arguments)
                self._values[value.name] = None if found is None else value.read(found)
        self._read_counters([counter for counter in COUNTERS if counter.seconds in due], now)
        if WARM_SECONDS in due:
            self._values["pcie"] = self._ask(self._nvml.pcie_link, self._handle)
        self._values[POWER] = self._watts()
        if with_processes:
            self._processes = {
                unit.key: self._ask(self._nvml.processes, handle) or []
                for unit, handle in self._units
            }
        self.readings = tuple(self._reading(unit, handle, now) for unit, handle in self._units)

    def _take_xid(self, now: float) -> None:
        """Take a new error, and keep it long enough for each sampler, also of a GPU that is lost then."""
        xid = self._ask(self._nvml.last_xid, self._handle)
        if xid is not None:
            self._xid_at = now
            self.readings = tuple(
                each._replace(values={**each.values, "xid": xid}, read_at=now)
                for each in self.readings
            )
        elif now - self._xid_at < XID_SECONDS:
            xid = self._values["xid"]
        self._values["xid"] = xid

    def _find_units(self) -> None:
        """Find the instances; a GPU without any is a unit itself."""
        mode = self._ask("nvmlDeviceGetMigMode", self._handle)
        handles = self._ask(self._nvml.mig_instances, self._handle) if mode and mode[0] else None
        self._units = []
        for at, handle in enumerate(handles or ()):
            whole, uuid = self._whole, self._ask("nvmlDeviceGetUUID", handle)
            unit = GpuUnit(
                key=uuid or f"{whole.key}/{at}",
                index=whole.index,
                uuid=uuid,
                model=whole.model,
                mig=profile(self._ask("nvmlDeviceGetName", handle)),
                gpu_uuid=whole.uuid,
            )
            self._units.append((unit, handle))
        self._units = self._units or [(self._whole, self._handle)]

    def _read_counters(self, counters: list[Counter], now: float) -> None:
        wanted = [(each.field, each.scope) for each in counters if each.field not in self._absent]
        found: dict[int, int | None] = {}
        with contextlib.suppress(UnsupportedError, NvmlRefusedError):
            found = self._nvml.counters(self._handle, wanted) if wanted else {}
        self._absent.update(field for field, count in found.items() if count is None)
        for each in counters:
            self._values[each.name] = self._rates[each.name].update(found.get(each.field), now)

    def _watts(self) -> float | None:
        """Return the mean power since the read before, by the energy counter; else that of now."""
        mean = self._values[POWER]
        if isinstance(mean, float):
            return round(mean, 1)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", self._handle)
        return None if milliwatts is None else milliwatts / 1000.0

    def _reading(self, unit: GpuUnit, handle: Any, now: float) -> UnitReading:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, MEMORY_V2) or self._ask(
            "nvmlDeviceGetMemoryInfo", handle
        )
        values = {
            **self._values,
            "mem_used": memory.used if memory else None,
            "mem_total": memory.total if memory else None,
        }
        if unit.mig is not None:
            values["util"] = None
        return UnitReading(unit, values, self._processes.get(unit.key, ()), now)

    def _ask(self, function: str | Callable[[Any], Any], handle: Any, *arguments: int) -> Any:
        """Return the answer of a function of pynvml, or of ``Nvml``; None without one."""
        what = (function, id(handle), *arguments)
        if isinstance(function, str):
            return self._questions.ask(
                what, partial(self._nvml.call, function, handle, *arguments)
            )
        return self._questions.ask(what, partial(function, handle))


def profile(name: str | None) -> str:
    """Return the profile (``3g.40gb``) at the end of the driver's name of an instance."""
    return name.rsplit(" MIG ", 1)[1].strip() if name is not None and " MIG " in name else "mig"
