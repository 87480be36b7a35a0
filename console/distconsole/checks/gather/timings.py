"""What collective jobs timed and verified, as figures: bandwidths by nccl-tests' formulae."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.jobs import CollFacts, HorovodCollFacts, MpiCollFacts
from distconsole.model.reports import CollectiveReport, VerifiedReport

SPLIT_OPS = ("all_gather", "reduce_scatter", "all_to_all")
KINDS: tuple[type[CollFacts], ...] = (CollFacts, HorovodCollFacts, MpiCollFacts)


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
    cases: dict[tuple[str, str, str, int], list[tuple[int, dict[str, Any]]]] = {}
    jobs: dict[str, CollFacts] = {}
    for facts, rank, said in _all_said(view):
        if isinstance(said.get("wrong"), int):
            case = str(said["case"]), str(said["dtype"]), int(said["elements"])
            cases.setdefault((facts.group, *case), []).append((rank, said))
            jobs.setdefault(facts.group, facts)
    reports = (_collective(key[1:], entries, jobs[key[0]]) for key, entries in cases.items())
    return tuple(report for report in reports if report is not None)


def _all_said(view: View) -> Iterator[tuple[CollFacts, int, dict[str, Any]]]:
    for kind in KINDS:
        for facts in view.of(kind).values():
            for rank in facts.ranks:
                for said in rank.said:
                    yield facts, rank.rank, said


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
    """Return the collectives that were only verified, and those that an engine lacks, once for all ranks."""
    found: dict[tuple[str, str, str, int], VerifiedReport] = {}
    for facts, _, said in _all_said(view):
        if "case" not in said:
            continue
        op, dtype = str(said["case"]), str(said.get("dtype"))
        elements = int(said.get("elements", 0))
        key = (facts.launcher, op, dtype, elements)
        if "unsupported" in said:
            why = str(said["unsupported"])
            report = VerifiedReport(op=op, dtype=dtype, elements=elements, unsupported=why)
        elif said.get("time_us") is None and isinstance(said.get("wrong"), int):
            well = not said["wrong"] and (key not in found or found[key].correct is True)
            report = VerifiedReport(op=op, dtype=dtype, elements=elements, correct=well)
        else:
            continue
        found[key] = report
    return tuple(found.values())


def left_out_of(view: View) -> tuple[str, ...]:
    words = (
        f"{facts.launcher} {op} of {elements} {dtype}"
        for facts, _, said in _all_said(view)
        for op, dtype, elements in said.get("left_out", ())
    )
    return tuple(dict.fromkeys(words))
