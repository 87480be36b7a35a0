"""What collective jobs timed and verified, as figures: bandwidths by nccl-tests' formulae."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.jobs import (
    CollFacts,
    HorovodCollFacts,
    HorovodMpiFacts,
    MpiCollFacts,
)
from distconsole.checks.facts.node import OsFacts
from distconsole.model.reports import CollectiveReport, VerifiedReport

SPLIT_OPS = ("all_gather", "reduce_scatter", "all_to_all")
KINDS: tuple[type[CollFacts], ...] = (CollFacts, HorovodCollFacts, HorovodMpiFacts, MpiCollFacts)


def bus_factor(op: str, ranks: int) -> float:
    """Return what algbw is multiplied with for busbw (nccl-tests, doc/PERFORMANCE.md)."""
    if op.startswith("all_reduce"):
        return 2 * (ranks - 1) / ranks
    if op in SPLIT_OPS:
        return (ranks - 1) / ranks
    return 1.0


def message_bytes(op: str, elements: int, element_bytes: int, ranks: int) -> int:
    """Return nccl-tests' size: the bytes of the larger of the two buffers."""
    whole = op in SPLIT_OPS
    return elements * element_bytes * (ranks if whole else 1)


def collectives_of(view: View) -> tuple[CollectiveReport, ...]:
    """Return what was timed, over the ranks of each job."""
    return tuple(report for kind in KINDS for report in _collectives(view.of(kind)))


def _collectives(facts: Mapping[str, CollFacts]) -> Iterator[CollectiveReport]:
    cases: dict[tuple[str, str, int], list[tuple[int, dict[str, Any]]]] = {}
    for found in facts.values():
        for rank in found.ranks:
            for said in rank.said:
                if isinstance(said.get("wrong"), int):
                    key = (str(said["case"]), str(said["dtype"]), int(said["elements"]))
                    cases.setdefault(key, []).append((rank.rank, said))
    some = next(iter(facts.values()), None)
    for key, entries in cases.items() if some is not None else ():
        report = _collective(key, entries, some) if some is not None else None
        if report is not None:
            yield report


def _collective(
    key: tuple[str, str, int], entries: list[tuple[int, dict[str, Any]]], job: CollFacts
) -> CollectiveReport | None:
    op, dtype, elements = key
    times = [said["time_us"] for _, said in entries if isinstance(said.get("time_us"), float)]
    if not times or sum(times) <= 0:
        return None
    size = message_bytes(op, elements, int(entries[0][1].get("element_bytes", 4)), job.world_size)
    mean_us = sum(times) / len(times)
    algbw = size / mean_us / 1e3
    return CollectiveReport(
        launcher=job.launcher,
        backend=job.backend,
        op=op,
        dtype=dtype,
        bytes=size,
        time_us=round(mean_us, 1),
        algbw_gbs=algbw,
        busbw_gbs=algbw * bus_factor(op, job.world_size),
        correct=len(entries) == job.world_size and not any(said["wrong"] for _, said in entries),
        size=job.world_size,
        ranks=tuple(sorted(rank for rank, _ in entries)),
    )


def verified_of(view: View) -> tuple[VerifiedReport, ...]:
    """Return what was verified and not timed, and what an engine has not, once for all ranks."""
    found: dict[tuple[str, str, str, int], VerifiedReport] = {}
    for kind in KINDS:
        for facts in view.of(kind).values():
            for said in (said for rank in facts.ranks for said in rank.said if "case" in said):
                op, dtype = str(said["case"]), str(said.get("dtype"))
                elements = int(said.get("elements", 0))
                key = (facts.launcher, op, dtype, elements)
                earlier = found.get(key)
                if "unsupported" in said:
                    why = str(said["unsupported"])
                    report = VerifiedReport(op=op, dtype=dtype, elements=elements, unsupported=why)
                elif said.get("time_us") is None and isinstance(said.get("wrong"), int):
                    well = not said["wrong"] and (earlier is None or earlier.correct is True)
                    report = VerifiedReport(op=op, dtype=dtype, elements=elements, correct=well)
                else:
                    continue
                found[key] = report
    return tuple(found.values())


def left_out_of(view: View) -> tuple[str, ...]:
    """Return the cases for which there was no time, each in words."""
    found: dict[str, None] = {}
    for kind in KINDS:
        for facts in view.of(kind).values():
            for rank in facts.ranks:
                for said in rank.said:
                    for op, dtype, elements in said.get("left_out", ()):
                        found[f"{facts.launcher} {op} of {elements} {dtype}"] = None
    return tuple(found)


BUSY = 2.0
"""Processes for each processor, over the last minute."""


def busy_hosts(view: View) -> dict[str, float]:
    """Return the hosts with more to do than they can, with their processes for each processor."""
    return {name: os.busy for name, os in view.of(OsFacts).items() if os.busy > BUSY}
