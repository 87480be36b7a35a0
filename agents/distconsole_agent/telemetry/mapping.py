"""Which rank works on which GPU, by the driver's process list and the ranks' variables.

NVML numbers GPUs in PCI order. CUDA does so with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; by default it
puts the fastest first, which is the same order where all GPUs are of one model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_SHOWN = 32
"""Processes of one GPU in a sample."""


@dataclass(frozen=True)
class GpuUnit:
    """What a rank can be given: a GPU, or one instance of a GPU in MIG mode.

    ``key`` is unique on the node, ``model`` is that of the whole GPU. ``legacy_mig`` is the name of an instance before driver 470,
    ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``.
    """

    key: str
    index: int
    uuid: str | None
    model: str | None
    mig: bool = False
    gpu_uuid: str | None = None
    legacy_mig: str | None = None


def visible_units(
    units: Sequence[GpuUnit],
    cuda_visible_devices: str | None,
    cuda_device_order: str | None = None,
) -> list[GpuUnit]:
    """Return what CUDA would show, in its order; empty where that cannot be told.

    As the CUDA C++ Programming Guide has it ("CUDA Environment Variables"): the list ends at the
    first entry that names nothing, an identifier may be cut short as long as it is unique, and of
    a GPU in MIG mode that is named by its number only one instance is used.
    """
    by_number = _by_number(units, cuda_device_order)
    if cuda_visible_devices is None:
        return list(by_number.values())
    chosen: list[GpuUnit] = []
    for word in cuda_visible_devices.split(","):
        unit = _find_named_unit(word.strip(), units, by_number)
        if unit is None:
            break
        if unit in chosen:
            # CUDA rejects a list that names one device twice.
            return []
        chosen.append(unit)
    return chosen


def ranks_by_unit(
    units: Sequence[GpuUnit],
    ranks: Sequence[Mapping[str, Any]],
    holders: Mapping[str, Collection[int]],
) -> dict[str, int]:
    """Return the rank that works on each unit, by ``GpuUnit.key``.

    ``ranks`` holds ``rank, local_rank, cuda_visible_devices`` and, if known,
    ``cuda_device_order``. ``holders`` says which ranks have a process on a unit, by key: where it
    names a rank, that is believed; the other ranks are placed by their variables and local rank.
    Of several ranks on one unit the lowest is named.
    """
    assigned = {key: min(found) for key, found in holders.items() if found}
    seen = {rank for found in holders.values() for rank in found}
    for entry in sorted(ranks, key=lambda entry: int(entry["rank"])):
        rank = int(entry["rank"])
        if rank in seen:
            continue
        unit = _find_usual_unit(units, entry)
        if unit is not None:
            assigned.setdefault(unit.key, rank)
    return assigned


def _find_usual_unit(units: Sequence[GpuUnit], entry: Mapping[str, Any]) -> GpuUnit | None:
    """Return the unit of a rank that follows the usual rule: device ``local_rank``, or the only one."""
    shown = visible_units(units, entry.get("cuda_visible_devices"), entry.get("cuda_device_order"))
    if len(shown) == 1 and entry.get("cuda_visible_devices") is not None:
        return shown[0]
    local_rank = int(entry["local_rank"])
    return shown[local_rank] if 0 <= local_rank < len(shown) else None


def _by_number(units: Sequence[GpuUnit], order: str | None) -> dict[int, GpuUnit]:
    """Return the units by CUDA's number; empty where CUDA's order is not NVML's."""
    if order != "PCI_BUS_ID" and len({unit.model for unit in units}) > 1:
        return {}
    numbered: dict[int, GpuUnit] = {}
    for unit in units:
        numbered.setdefault(unit.index, unit)
    return dict(sorted(numbered.items()))


def _find_named_unit(
    word: str, units: Sequence[GpuUnit], by_number: Mapping[int, GpuUnit]
) -> GpuUnit | None:
    if word.startswith("MIG-"):
        return _only(
            unit for unit in units if unit.mig and _matches(word, unit.uuid, unit.legacy_mig)
        )
    if word.startswith("GPU-"):
        matching = [unit for unit in units if _matches(word, unit.gpu_uuid or unit.uuid)]
        if len({unit.index for unit in matching}) != 1:
            return None
        return matching[0]
    number = re.match(r"\+?(\d+)", word)
    return by_number.get(int(number.group(1))) if number else None


def _matches(word: str, *identifiers: str | None) -> bool:
    return any(
        identifier is not None and identifier.startswith(word) for identifier in identifiers
    )


def _only(matching: Any) -> GpuUnit | None:
    found = list(matching)
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class ListedProcess:
    """A process on a GPU; ``lineage`` holds its pid and those above it, empty if not known here."""

    pid: int
    user: str | None
    command: str | None
    used_bytes: int | None
    lineage: tuple[int, ...]


@dataclass(frozen=True)
class Listing:
    """One list of all processes, by ``GpuUnit.key``; ``complete`` if every pid is of this host."""

    at: float | None = None
    complete: bool = False
    processes: Mapping[str, tuple[ListedProcess, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Which rank each unit is given, and its processes as ``GPU_FIELDS`` has them; by key."""

    ranks: Mapping[str, int]
    processes: Mapping[str, list[dict[str, Any]]]


def place(
    units: Sequence[GpuUnit], listing: Listing, ranks: Sequence[Mapping[str, Any]]
) -> Placement:
    """Return where ``ranks`` are: by ``listing``, and by their variables where it may lack processes."""
    rank_of = {int(entry["pid"]): int(entry["rank"]) for entry in ranks if entry.get("pid")}
    holders: dict[str, set[int]] = {}
    shown: dict[str, list[dict[str, Any]]] = {}
    for key, processes in listing.processes.items():
        owners = [_owner(process, rank_of) for process in processes]
        holders[key] = {owner for owner in owners if owner is not None}
        shown[key] = [
            _entry(process, owner)
            for process, owner in zip(processes[:MAX_SHOWN], owners[:MAX_SHOWN])
        ]
    return Placement(ranks_by_unit(units, () if listing.complete else ranks, holders), shown)


def _owner(process: ListedProcess, rank_of: Mapping[int, int]) -> int | None:
    return next((rank_of[pid] for pid in process.lineage if pid in rank_of), None)


def _entry(process: ListedProcess, owner: int | None) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "user": process.user,
        "command": process.command,
        "mem_used": process.used_bytes,
        "rank": owner,
    }
