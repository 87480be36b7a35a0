"""The instances of a GPU in MIG mode: their names, identifiers and memory. It makes and removes
none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distconsole_agent.telemetry.mapping import GpuUnit
from distconsole_agent.telemetry.nvml import MigSlices, Nvml, RefusedError, UnsupportedError

GIB = 2**30


@dataclass(frozen=True)
class MigInstance:
    """One compute instance: the unit that a program is given."""

    handle: Any
    unit: GpuUnit
    profile: str


def mig_instances(nvml: Nvml, gpu: Any, whole: GpuUnit) -> tuple[MigInstance, ...]:
    """Return the instances of a GPU; empty if it is not in MIG mode or knows none.

    Raises:
        DriverGoneError, GpuGoneError: as the driver says.
    """
    try:
        if not nvml.mig_enabled(gpu):
            return ()
        handles = nvml.mig_instances(gpu)
    except (UnsupportedError, RefusedError):
        return ()
    return tuple(_instance(nvml, handle, whole, at) for at, handle in enumerate(handles))


def profile(name: str | None, slices: MigSlices | None, ids: tuple[int, int] | None) -> str:
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


def _instance(nvml: Nvml, handle: Any, whole: GpuUnit, at: int) -> MigInstance:
    uuid = _ask(nvml.uuid, handle)
    ids = _ask(nvml.instance_ids, handle)
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
    return MigInstance(
        handle, unit, profile(_ask(nvml.name, handle), _ask(nvml.slices, handle), ids)
    )


def _ask(read: Any, handle: Any) -> Any:
    try:
        return read(handle)
    except (UnsupportedError, RefusedError):
        return None
