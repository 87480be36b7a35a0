"""Why a rank is slow, as far as its host, its GPU or its process say so at that time; compared with the others'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import NamedTuple, TypeAlias

from distconsole.model.run_events import GpuSample, NodeSample, RunFinding, Window
from distconsole.runs.detectors.slowness import Straggler

Sample: TypeAlias = NodeSample | GpuSample | RunFinding

TELLING_SECONDS = 15.0
"""What was told longer before is not of this time."""
CLOCK_SHARE = 0.9
"""Clocks below this share of the others' are slow."""
QUEUED_PERCENT = 5.0
"""Waiting for a processor for so much longer than the others is a cause."""
FULL_PERCENT, MORE_PERCENT = 95.0, 15.0
"""Processors, or memory, are full from here on, if the others' are so much less so."""


class Cause(NamedTuple):
    """What makes a rank slow: a word for programs, words to read, and what to do."""

    kind: str
    text: str
    hint: str


class Load:
    """The newest words of hosts and GPUs."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeSample] = {}
        self._gpus: dict[int, GpuSample] = {}

    def taken(self, events: Iterator[Sample]) -> Iterator[Sample]:
        """Yield ``events``, and keep those that are samples."""
        for event in events:
            if isinstance(event, NodeSample):
                self._nodes[event.host] = event
            elif isinstance(event, GpuSample) and isinstance(event.rank, int):
                self._gpus[event.rank] = event
            yield event

    def cause_of(self, slow: Straggler, windows: Mapping[int, Window], t: float) -> Cause | None:
        """Return why ``slow`` is, at ``t`` (UNIX seconds); None where nothing tells it from the others."""
        ranks = slow.ranks or (slow.rank,)
        gpus = {rank: gpu for rank, gpu in self._gpus.items() if _is_of(gpu.t, t)}
        nodes = {host: node for host, node in self._nodes.items() if _is_of(node.t, t)}
        mine = [gpus[rank] for rank in ranks if rank in gpus]
        others = [gpu for rank, gpu in gpus.items() if rank not in ranks]
        hosts = {windows[rank].host for rank in ranks if rank in windows}
        return (
            _of_gpus(mine, others)
            or _of_queues(ranks, windows)
            or _of_nodes(
                [node for host, node in nodes.items() if host in hosts],
                [node for host, node in nodes.items() if host not in hosts],
            )
        )


def _is_of(told: float, t: float) -> bool:
    return abs(t - told) <= TELLING_SECONDS


def _of_gpus(mine: list[GpuSample], others: list[GpuSample]) -> Cause | None:
    usual = {reason for gpu in others for reason in gpu.throttle}
    clocks = [gpu.sm_clock_mhz for gpu in others if gpu.sm_clock_mhz]
    for gpu in mine:
        where = f"GPU {gpu.gpu} of {gpu.host}"
        own = ", ".join(reason for reason in gpu.throttle if reason not in usual)
        if own:
            heat = f" at {gpu.temp_c:.0f} °C" if gpu.temp_c is not None else ""
            look = f"look at its cooling and power: nvidia-smi -q -d PERFORMANCE on {gpu.host}"
            return Cause("throttled", f"{where} is held back ({own}){heat}", look)
        if gpu.strangers:
            text = f"{where} is shared with pid {gpu.strangers[0]}"
            return Cause("gpu_shared", text, "end it, or give the rank another GPU")
        if gpu.ecc_uncorrected and not any(other.ecc_uncorrected for other in others):
            text = f"{where} counts {gpu.ecc_uncorrected:,} uncorrected memory errors"
            return Cause("ecc", text, "leave the host out, and have the GPU replaced")
        if gpu.sm_clock_mhz and clocks and gpu.sm_clock_mhz < CLOCK_SHARE * median(clocks):
            text = (
                f"{where} runs at {gpu.sm_clock_mhz:,.0f} MHz where {median(clocks):,.0f} is usual"
            )
            return Cause("clocks", text, f"nvidia-smi -q -d CLOCK on {gpu.host}; nvidia-smi -rgc")
    return None


def _of_queues(ranks: Iterable[int], windows: Mapping[int, Window]) -> Cause | None:
    """Return that others run on the processors of ``ranks``, whose processes wait for them."""
    known = {rank: each.cpu_wait for rank, each in windows.items() if each.cpu_wait is not None}
    mine = [known.pop(rank) for rank in ranks if rank in known]
    usual = median(known.values()) if known else 0.0
    if not mine or min(mine) < usual + QUEUED_PERCENT:
        return None
    text = f"it waits for a processor {median(mine):.0f} % of the time, the others {usual:.0f} %"
    return Cause(
        "processors",
        text,
        "another process runs on its processors: top there, sorted by CPU; taskset",
    )


def _of_nodes(mine: list[NodeSample], others: list[NodeSample]) -> Cause | None:
    for what, kind, percent in (("processors", "processors", _cpu), ("memory", "memory", _memory)):
        usual = [share for node in others if (share := percent(node)) is not None]
        for node in mine:
            share = percent(node)
            if share is None or share < FULL_PERCENT or not usual:
                continue
            if median(usual) <= share - MORE_PERCENT:
                verb = "are" if what == "processors" else "is"
                text = f"the {what} of {node.host} {verb} {share:.0f} % in use, the others' {median(usual):.0f} %"
                return Cause(kind, text, f"look which processes use it: top on {node.host}")
    return None


def _cpu(node: NodeSample) -> float | None:
    return node.cpu


def _memory(node: NodeSample) -> float | None:
    if node.mem_used is None or not node.mem_total:
        return None
    return 100.0 * node.mem_used / node.mem_total
