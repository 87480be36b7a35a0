"""What is usual among loaded GPUs of a kind, and which ones fall short of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from distconsole.checks.facts.gpu import GpuFacts, GpuLoadFacts, LoadedGpu

SLOW_SHARE = 0.6
"""Of the median of GPUs of the kind; two on one switch that shares its lanes are above half."""

LANE_BYTES = {1: 250e6, 2: 500e6, 3: 985e6, 4: 1969e6, 5: 3938e6, 6: 7563e6}
"""A second, of one PCIe lane by generation, after its encoding."""

POOR_SHARE = 0.25
"""Of what the lanes can carry: less is a fault also where all GPUs have it."""

MOST_REPLAYS = 8
"""In a minute, by DCGM's dcgm_gpu_hardware_limits.h; ours have less than a second."""


class Loaded(NamedTuple):
    """A GPU that copies went to: whose, its model, and how it was."""

    host: str
    model: str
    gpu: LoadedGpu


def loaded(facts: Mapping[str, GpuFacts], loads: Mapping[str, GpuLoadFacts]) -> list[Loaded]:
    """Return the GPUs of all hosts that were measured."""
    found = []
    for host, load in loads.items():
        models = facts[host].models if host in facts else {}
        found += [
            Loaded(host, models.get(gpu.index, ""), gpu) for gpu in load.gpus if gpu.measured
        ]
    return found


def narrow(gpu: LoadedGpu) -> bool:
    """Whether it uses a part of its lanes only."""
    less = bool(gpu.width and gpu.width_max and gpu.width < gpu.width_max)
    return less and not _disproves_link(gpu)


def slower(gpu: LoadedGpu) -> bool:
    """Whether its link is of an older generation than card and slot are."""
    now, most = gpu.generation, gpu.generation_max
    return bool(now and most and now < most) and not _disproves_link(gpu)


def _disproves_link(gpu: LoadedGpu) -> bool:
    """Whether more was copied than the link that it tells of carries, as in virtual machines."""
    carried = carries(gpu)
    return carried is not None and max(gpu.to_device or 0, gpu.from_device or 0) > carried


def alone(one: Loaded, every: list[Loaded], field: str) -> bool:
    """Whether most GPUs of its model have another value of ``field``."""
    values = Counter(getattr(each.gpu, field) for each in every if each.model == one.model)
    return 2 * values[getattr(one.gpu, field)] < values.total()


def most_lanes(every: list[Loaded]) -> dict[str, int]:
    """Return by model the lanes that card and slot have for more than half of its GPUs."""
    values: dict[str, Counter[int]] = defaultdict(Counter)
    for each in every:
        values[each.model][each.gpu.width_max or 0] += 1
    usual = {model: counts.most_common(1)[0] for model, counts in values.items()}
    return {m: lanes for m, (lanes, n) in usual.items() if 2 * n > values[m].total()}


def rates(every: list[Loaded], field: str) -> dict[tuple[str, int], float]:
    """Return by host and index what is usual for a GPU like that, itself among them.

    Only those that have the same link are alike; a GPU that is alone of its kind is left out.
    """
    kinds: dict[tuple[object, ...], list[Loaded]] = defaultdict(list)
    for each in every:
        if getattr(each.gpu, field):
            up = sum(link.up for link in each.gpu.links) if field == "to_peer" else 0
            kinds[(each.model, each.gpu.width, each.gpu.generation, up)].append(each)
    return {
        (each.host, each.gpu.index): median(getattr(one.gpu, field) for one in alike)
        for alike in kinds.values()
        if len(alike) > 1
        for each in alike
    }


def find_slow(every: list[Loaded], field: str) -> dict[tuple[str, int], float]:
    """Return the usual rate of each GPU (host, index) whose own is far below it."""
    usual = rates(every, field)
    slow = {}
    for each in every:
        gpu = (each.host, each.gpu.index)
        rate, right = getattr(each.gpu, field), usual.get(gpu)
        if rate and right and rate < SLOW_SHARE * right:
            slow[gpu] = right
    return slow


def poor(gpu: LoadedGpu) -> float | None:
    """Return what its lanes carry, in bytes a second, where copies reach hardly any of it."""
    most = carries(gpu)
    if most is None or gpu.to_device is None:
        return None
    return most if gpu.to_device < POOR_SHARE * most else None


def carries(gpu: LoadedGpu) -> float | None:
    """Return what its lanes carry in one direction, in bytes a second; None where it is not known."""
    lane = LANE_BYTES.get(gpu.generation or 0)
    return lane * gpu.width if lane is not None and gpu.width else None


def suspects(
    facts: Mapping[str, GpuFacts], loads: Mapping[str, GpuLoadFacts]
) -> dict[str, list[str]]:
    """Return by host the UUIDs of GPUs that are to be measured once more before they are accused."""
    every = loaded(facts, loads)
    slow = find_slow(every, "to_device")
    found: dict[str, list[str]] = defaultdict(list)
    for each in every:
        gpu = each.gpu
        doubtful = narrow(gpu) or slower(gpu) or poor(gpu) or (gpu.replays or 0) >= MOST_REPLAYS
        if gpu.uuid and (doubtful or (each.host, gpu.index) in slow):
            found[each.host].append(gpu.uuid)
    return dict(found)
