"""Which processes and rank are on which GPU, by the driver's list and the ranks' variables."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from distconsole_agent.contract.masking import mask_text, mask_words
from distconsole_agent.system.command_lines import split_words
from distconsole_agent.system.procfs import (
    open_files,
    printable,
    read_head,
    read_process,
    sees_all_processes,
    user_name,
)

MAX_SHOWN = 32
"""Processes of one GPU in a sample."""

MAX_COMMAND = 200
"""Characters of a command line that are kept."""

MAX_ANCESTORS = 64


class GpuUnit(NamedTuple):
    """A GPU for a rank, or one instance of a GPU in MIG mode.

    ``key`` is unique on the node, ``model`` and ``gpu_uuid`` are those of the whole GPU, ``mig`` is
    the profile of an instance.
    """

    key: str
    index: int  # type: ignore[assignment]  # in place of tuple.index()
    uuid: str | None
    model: str | None
    mig: str | None = None
    gpu_uuid: str | None = None


class RunningRank(NamedTuple):
    """A rank's process on this host; ``local_rank`` is -1 if unknown, ``visible_devices`` None if not set."""

    rank: int
    local_rank: int
    pid: int | None
    visible_devices: str | None


HIP, CUDA, ROCR, ORDINAL = VISIBLE = (
    *("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
)
"""Variables that choose GPUs. CUDA reads its own alone, ROCm's torch all of them; Slurm may set each, on any host."""

UNKNOWN = "?"
"""Names no GPU."""


def visible_devices(variables: Mapping[str, str], dev: str = "/dev") -> str | None:
    """Return a process's choice by its variables, as one list of the node's GPUs; None if none of them is set.

    By ROCm's "GPU isolation techniques", HIP's list (``CUDA_VISIBLE_DEVICES`` if its own is empty) holds
    indices into ROCr's. ``UNKNOWN`` if several are set and their combination is uncertain.
    """
    given = {name: variables[name] for name in VISIBLE if name in variables}
    kinds = [name for name in ("kfd", "nvidiactl") if os.path.exists(f"{dev}/{name}")]
    if kinds == ["nvidiactl"]:
        return given.get(CUDA)
    if len(given) < 2:
        return next(iter(given.values()), None)
    if len(kinds) == 2 or ORDINAL in given:
        return UNKNOWN
    inner = given.get(HIP) or given.get(CUDA, "")
    if ROCR not in given:
        return inner
    outer = [word.strip() for word in given[ROCR].split(",")]
    chosen = [word.strip() for word in inner.split(",")]
    if not all(word.isdecimal() and int(word) < len(outer) for word in chosen):
        return UNKNOWN
    return ",".join(outer[int(word)] for word in chosen)


def visible_units(units: Sequence[GpuUnit], cuda_visible_devices: str | None) -> list[GpuUnit]:
    """Return CUDA's devices in its order; empty if unknown.

    As the CUDA C++ Programming Guide has it ("CUDA Environment Variables"): the list ends at the
    first entry that names nothing, an identifier may be cut short as long as it is unique, and of
    a GPU in MIG mode that is named by its number only one instance is used.
    """
    by_number = _by_number(units)
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
    units: Sequence[GpuUnit], ranks: Sequence[RunningRank], holders: Mapping[str, Collection[int]]
) -> dict[str, int]:
    """Return the rank that works on each unit, by ``GpuUnit.key``.

    ``holders`` says which ranks have a process on a unit, by key, and overrides the variables; the other ranks are
    placed by their variables and local rank. Of several ranks on one unit the lowest is named.
    """
    assigned = {key: min(found) for key, found in holders.items() if found}
    seen = {rank for found in holders.values() for rank in found}
    for rank, local_rank, _pid, visible in sorted(ranks):
        if rank in seen:
            continue
        # The usual rule: device ``local_rank``, or the only one.
        shown = visible_units(units, visible)
        at = 0 if len(shown) == 1 and visible is not None else local_rank
        if 0 <= at < len(shown):
            assigned.setdefault(shown[at].key, rank)
    return assigned


def _by_number(units: Sequence[GpuUnit]) -> dict[int, GpuUnit]:
    """Return the units by CUDA's number; empty if CUDA's order is not NVML's.

    NVML numbers GPUs in PCI order. CUDA puts the fastest first, which is the same order if all
    GPUs are of one model.
    """
    if len({unit.model for unit in units}) > 1:
        return {}
    numbered: dict[int, GpuUnit] = {}
    for unit in units:
        numbered.setdefault(unit.index, unit)
    return dict(sorted(numbered.items()))


def _find_named_unit(
    word: str, units: Sequence[GpuUnit], by_number: Mapping[int, GpuUnit]
) -> GpuUnit | None:
    if word.startswith("MIG-"):
        matching = [unit for unit in units if unit.mig and (unit.uuid or "").startswith(word)]
        return matching[0] if len(matching) == 1 else None
    if word.startswith("GPU-"):
        matching = [unit for unit in units if (unit.gpu_uuid or unit.uuid or "").startswith(word)]
        return matching[0] if len({unit.index for unit in matching}) == 1 else None
    number = re.match(r"\+?(\d+)", word)
    return by_number.get(int(number.group(1))) if number else None


class ListedProcess(NamedTuple):
    """A process on a GPU; ``lineage`` holds its pid and those above it, empty if not known here."""

    pid: int
    user: str | None
    command: str | None
    used_bytes: int | None
    lineage: tuple[int, ...]


class ProcessTable:
    """Looks processes up by the pid that the driver gave.

    Inside a container some drivers give the pid of the host, which may be another process here.
    There a pid is believed only if that process has a GPU's device open.
    """

    def __init__(self, proc_root: str = "/proc") -> None:
        self._proc = proc_root

    def look_up(self, pid: int, used_bytes: int | None) -> ListedProcess:
        """Return ``pid`` with owner and command, without control characters and bounded."""
        user, command = self.describe(pid) if self.is_same(pid) else (None, None)
        lineage = () if user is None else self.lineage(pid)
        return ListedProcess(pid, user, command, used_bytes, lineage)

    def describe(self, pid: int) -> tuple[str | None, str | None]:
        """Return the owner of ``pid`` and its command with secrets hidden; both None if there is no such process."""
        process = read_process(pid, self._proc)
        if process is None:
            return None, None
        words = split_words(read_head(f"{self._proc}/{pid}/cmdline", 4096)) or (process.name,)
        command = printable(" ".join(mask_words(words)).encode("utf-8", "replace"), MAX_COMMAND)
        user = printable(user_name(process.uid).encode("utf-8", "replace"), MAX_COMMAND)
        return user, mask_text(command)

    def is_same(self, pid: int) -> bool:
        if self.sees_host():
            return True
        files = open_files(pid, self._proc)
        return any(path.startswith(("/dev/nvidia", "/dev/kfd")) for path in files)

    def sees_host(self) -> bool:
        return sees_all_processes(self._proc)

    def lineage(self, pid: int) -> tuple[int, ...]:
        """Return ``pid`` and the processes above it, nearest first, without the first process."""
        found: list[int] = []
        while pid > 1 and pid not in found and len(found) < MAX_ANCESTORS:
            found.append(pid)
            process = read_process(pid, self._proc)
            pid = process.ppid if process is not None else 0
        return tuple(found)


class Listing(NamedTuple):
    """One list of all processes, by ``GpuUnit.key``; ``complete`` if every pid is of this host."""

    at: float | None = None
    complete: bool = False
    processes: Mapping[str, tuple[ListedProcess, ...]] = MappingProxyType({})


class GpuPlacement(NamedTuple):
    """Which rank each unit is given, and its processes as ``GPU_FIELDS`` has them; by key."""

    ranks: Mapping[str, int]
    processes: Mapping[str, list[dict[str, object]]]


def place(
    units: Sequence[GpuUnit], listing: Listing, ranks: Sequence[RunningRank]
) -> GpuPlacement:
    """Return the places of ``ranks``: by ``listing``, and by their variables if it may lack processes."""
    rank_of = {each.pid: each.rank for each in ranks if each.pid}
    holders: dict[str, set[int]] = {}
    shown: dict[str, list[dict[str, object]]] = {}
    for key, processes in listing.processes.items():
        owners = [
            next((rank_of[pid] for pid in process.lineage if pid in rank_of), None)
            for process in processes
        ]
        holders[key] = {owner for owner in owners if owner is not None}
        shown[key] = [
            {
                "pid": process.pid,
                "user": process.user,
                "command": process.command,
                "mem_used": process.used_bytes,
                "rank": owner,
            }
            for process, owner in zip(processes[:MAX_SHOWN], owners[:MAX_SHOWN])
        ]
    return GpuPlacement(ranks_by_unit(units, () if listing.complete else ranks, holders), shown)
