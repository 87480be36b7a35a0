"""One GPU, read in tiers: each value as often as it is worth the driver's time.

Tiers, from measurements of what each call costs: utilisation, memory, clocks, throttling, power
and NVLink at every read; temperature and the PCIe counters every 5 s; ECC errors and MIG every
minute; names once; processes only when told to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from distconsole_agent.telemetry import nvml as nv
from distconsole_agent.telemetry.mapping import GpuUnit
from distconsole_agent.telemetry.rates import Rate

WARM_SECONDS = 5.0
SLOW_SECONDS = 60.0
KIB = 1024.0

_STEADY_FIELDS = (
    (nv.FIELD_ENERGY_MJ, 0),
    (nv.FIELD_POWER_MW, 0),
    (nv.FIELD_NVLINK_TX_KIB, nv.ALL_LINKS),
    (nv.FIELD_NVLINK_RX_KIB, nv.ALL_LINKS),
)
_PCIE_FIELDS = ((nv.FIELD_PCIE_TX_BYTES, 0), (nv.FIELD_PCIE_RX_BYTES, 0))

_Value = TypeVar("_Value")

GIB = 2**30


@dataclass(frozen=True)
class UnitReading:
    """What was read of a GPU or an instance: the value fields of ``GPU_FIELDS``, and when."""

    unit: GpuUnit
    name: str | None
    mig: str | None
    values: dict[str, Any]
    processes: tuple[nv.GpuProcess, ...]
    read_at: float | None


class Device:
    """One physical GPU and what was last read of it.

    Raises:
        DriverGoneError, GpuGoneError: at creation and at each read, as the driver says.
    """

    def __init__(self, nvml: nv.Nvml, index: int) -> None:
        self._nvml = nvml
        self._handle = nvml.gpu(index)
        self._never: set[tuple[Any, ...]] = set()
        uuid = self._ask(nvml.uuid, self._handle)
        self._name = self._ask(nvml.name, self._handle)
        self._unit = GpuUnit(key=uuid or f"gpu{index}", index=index, uuid=uuid, model=self._name)
        self._wanted = [*_STEADY_FIELDS]
        self._wanted_pcie = [*_PCIE_FIELDS]
        self._buffers: dict[bool, nv.FieldBuffer] = {}
        self._power = Rate(0.001)
        self._rates = {
            nv.FIELD_PCIE_TX_BYTES: Rate(may_wrap=True),
            nv.FIELD_PCIE_RX_BYTES: Rate(may_wrap=True),
            nv.FIELD_NVLINK_TX_KIB: Rate(KIB),
            nv.FIELD_NVLINK_RX_KIB: Rate(KIB),
        }
        self._instances: tuple[MigInstance, ...] = ()
        self._processes: dict[str, tuple[nv.GpuProcess, ...]] = {}
        self._kept: dict[str, Any] = {}
        self._warm_at: float | None = None
        self._slow_at: float | None = None
        self.readings: tuple[UnitReading, ...] = (
            UnitReading(self._unit, self._name, None, {}, (), None),
        )

    def read(self, now: float, with_processes: bool) -> None:
        """Ask the driver for what is due at ``now`` and replace ``readings``."""
        warm = _due(self._warm_at, now, WARM_SECONDS)
        slow = _due(self._slow_at, now, SLOW_SECONDS)
        if slow:
            self._read_slow()
            self._slow_at = now
        values = self._read_steady()
        values.update(self._read_fields(now, warm))
        if warm:
            self._kept["temp_c"] = self._ask(self._nvml.temperature_c, self._handle)
            self._warm_at = now
        values.update(self._kept)
        if with_processes:
            self._processes = {
                unit.key: tuple(self._ask(self._nvml.processes, handle) or ())
                for unit, handle in self._units()
            }
        self.readings = tuple(self._reading(unit, values, now) for unit, _ in self._units())

    def _units(self) -> list[tuple[GpuUnit, Any]]:
        """Return the instances, or the GPU itself where it has none."""
        if self._instances:
            return [(instance.unit, instance.handle) for instance in self._instances]
        return [(self._unit, self._handle)]

    def _read_slow(self) -> None:
        # What was refused for good may be there after a change of mode.
        self._never.clear()
        self._kept["ecc_uncorrected"] = self._ask(self._nvml.ecc_uncorrected, self._handle)
        enabled = self._ask(self._nvml.mig_enabled, self._handle)
        handles = self._ask(self._nvml.mig_instances, self._handle) if enabled else None
        self._instances = tuple(self._instance(at, each) for at, each in enumerate(handles or ()))

    def _read_steady(self) -> dict[str, Any]:
        nvml, handle = self._nvml, self._handle
        reasons = self._ask(nvml.throttle_reasons, handle)
        return {
            "util": self._ask(nvml.util_percent, handle),
            **self._memory(None if self._instances else handle),
            "sm_clock_mhz": self._ask(nvml.clock_mhz, handle, nv.CLOCK_SM),
            "mem_clock_mhz": self._ask(nvml.clock_mhz, handle, nv.CLOCK_MEMORY),
            "throttle": None if reasons is None else nv.throttle_words(reasons),
        }

    def _memory(self, handle: Any) -> dict[str, Any]:
        memory = None if handle is None else self._ask(self._nvml.memory, handle)
        return {
            "mem_used": memory.used if memory else None,
            "mem_total": memory.total if memory else None,
        }

    def _read_fields(self, now: float, with_pcie: bool) -> dict[str, Any]:
        wanted = self._wanted + self._wanted_pcie if with_pcie else self._wanted
        buffer = self._buffers.get(with_pcie)
        if buffer is None:
            buffer = self._buffers[with_pcie] = nv.FieldBuffer(wanted)
        read = self._ask(self._nvml.read_fields, self._handle, buffer)
        got, never = read or ({}, set())
        if never:
            self._wanted = [one for one in self._wanted if one[0] not in never]
            self._wanted_pcie = [one for one in self._wanted_pcie if one[0] not in never]
            self._buffers.clear()
        if with_pcie:
            tx, rx = nv.FIELD_PCIE_TX_BYTES, nv.FIELD_PCIE_RX_BYTES
            self._kept["pcie_tx_s"] = self._rates[tx].update(got.get(tx), now)
            self._kept["pcie_rx_s"] = self._rates[rx].update(got.get(rx), now)
        tx, rx = nv.FIELD_NVLINK_TX_KIB, nv.FIELD_NVLINK_RX_KIB
        return {
            "power_w": self._power_w(got, now),
            "nvlink_tx_s": self._rates[tx].update(got.get(tx), now),
            "nvlink_rx_s": self._rates[rx].update(got.get(rx), now),
        }

    def _power_w(self, got: dict[int, int], now: float) -> float | None:
        """Return the mean power since the read before, by the energy counter; else that of now."""
        mean = self._power.update(got.get(nv.FIELD_ENERGY_MJ), now)
        if mean is not None:
            return round(mean, 1)
        milliwatts = got.get(nv.FIELD_POWER_MW)
        if milliwatts is not None:
            return milliwatts / 1000.0
        return self._ask(self._nvml.power_w, self._handle)

    def _reading(self, unit: GpuUnit, values: dict[str, Any], now: float) -> UnitReading:
        processes = self._processes.get(unit.key, ())
        for instance in self._instances:
            if instance.unit.key == unit.key:
                own = {**values, "util": None, **self._memory(instance.handle)}
                return UnitReading(unit, self._name, instance.profile, own, processes, now)
        return UnitReading(unit, self._name, None, values, processes, now)

    def _instance(self, at: int, handle: Any) -> MigInstance:
        nvml, whole = self._nvml, self._unit
        uuid, ids = self._ask(nvml.uuid, handle), self._ask(nvml.instance_ids, handle)
        legacy = f"MIG-{whole.uuid}/{ids[0]}/{ids[1]}" if ids is not None and whole.uuid else None
        unit = GpuUnit(
            key=uuid or f"{whole.key}/{at}",
            index=whole.index,
            uuid=uuid,
            model=whole.model,
            mig=True,
            gpu_uuid=whole.uuid,
            legacy_mig=legacy,
        )
        name, slices = self._ask(nvml.name, handle), self._ask(nvml.slices, handle)
        return MigInstance(handle, unit, profile(name, slices, ids))

    def _ask(self, read: Callable[..., _Value], *arguments: Any) -> _Value | None:
        """Return what ``read`` reads, or None; what is never supported is not asked again."""
        asked = (read.__name__, *map(id, arguments))
        if asked in self._never:
            return None
        try:
            return read(*arguments)
        except nv.UnsupportedError:
            self._never.add(asked)
        except nv.RefusedError:
            pass
        return None


def _due(last: float | None, now: float, period: float) -> bool:
    # A little early counts: samples a second apart never fall on the exact second.
    return last is None or now - last >= period - 0.1


@dataclass(frozen=True)
class MigInstance:
    """One compute instance: the unit that a program is given."""

    handle: Any
    unit: GpuUnit
    profile: str


def profile(name: str | None, slices: nv.MigSlices | None, ids: tuple[int, int] | None) -> str:
    """Return the profile as nvidia-smi writes it (``3g.40gb``, ``1c.3g.40gb``).

    The driver's own name of the instance ends with it; otherwise it is put together from the
    slices, and without those the identifiers stand for it (``gi2/ci0``).
    """
    if name is not None and " MIG " in name:
        return name.rsplit(" MIG ", 1)[1].strip()
    if slices is not None:
        part = f"{slices.compute_slices}c." if slices.compute_slices < slices.gpu_slices else ""
        # Part of each slice is reserved: 20096 MiB are the 20 GB of a profile's name.
        return f"{part}{slices.gpu_slices}g.{round(slices.memory_bytes / GIB)}gb"
    return f"gi{ids[0]}/ci{ids[1]}" if ids is not None else "mig"
