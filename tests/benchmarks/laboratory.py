"""Precision and recall of ``check``: every fault of the laboratory, and healthy clusters of 16.

A fault counts as found if all that must be found is, with the right hosts; whatever else a check
warns of is a false finding.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row
from benchmarks.cluster import distconsole, finish
from suite.obstacles import obstacle
from testbed import Testbed
from testbed.faults import BY_NAME, FAULTS, THREE_AT_ONCE, Fault, Found, Laboratory
from testbed.slurm import SLURM_ENVIRONMENT, laboratory_slurm

CLUSTER = 16
TROUBLE = ("warn", "fail")


def findings(
    bed: Testbed, folder: Path, words: Sequence[str], variables: Mapping[str, str]
) -> tuple[list[Found], float]:
    """Return what a check warns of, and its seconds."""
    command = distconsole(bed, "check", "--json", *words)
    out, seconds = finish(command, folder, codes=range(4), **variables)
    found = [
        (each["severity"], each["check"], tuple(each["hosts"]))
        for each in json.loads(out)["findings"]
        if each["severity"] in TROUBLE
    ]
    return sorted(found), seconds


def judged(wanted: Sequence[Found], found: Sequence[Found], seconds: float) -> dict[str, Any]:
    return {
        "found": set(wanted) <= set(found),
        "false": [each for each in found if each not in wanted],
        "missed": [each for each in wanted if each not in found],
        "seconds": seconds,
    }


def one_fault(laboratory: Laboratory, fault: Fault, folder: Path) -> dict[str, Any]:
    with ExitStack() as stack:
        stack.enter_context(fault.inject(laboratory, fault.culprit))
        variables: Mapping[str, str] = {}
        if fault.in_allocation:
            variables = stack.enter_context(laboratory.running_slurm.allocation())
        found, seconds = findings(laboratory.bed, folder, fault.words(), variables)
    return judged(fault.found(laboratory), found, seconds)


@contextmanager
def small(*, slurm: bool) -> Iterator[Laboratory]:
    """Three hosts; with ``slurm`` two nodes of it and a login host."""
    with ExitStack() as stack:
        bed = stack.enter_context(Testbed(3, environment=SLURM_ENVIRONMENT if slurm else {}))
        yield Laboratory(bed, stack.enter_context(laboratory_slurm(bed)) if slurm else None)


def cluster(folder: Path, healthy: int) -> dict[str, Any]:
    """Check 16 healthy hosts so many times, then with three faults at once."""
    with ExitStack() as stack:
        laboratory = Laboratory(stack.enter_context(Testbed(CLUSTER)))
        runs = []
        for number in range(healthy):
            found, seconds = findings(laboratory.bed, folder, ("--level", "quick"), {})
            runs.append(judged((), found, seconds))
            print(f"healthy {number + 1}: {found or 'no finding'}, {seconds:.1f} s", flush=True)
        wanted: list[Found] = []
        for name, culprit in THREE_AT_ONCE.items():
            stack.enter_context(BY_NAME[name].inject(laboratory, culprit))
            wanted += BY_NAME[name].found(laboratory, culprit)
        found, seconds = findings(laboratory.bed, folder, ("--level", "quick"), {})
    return {"healthy": runs, "three-at-once": judged(wanted, found, seconds)}


def measure(healthy: int = 10, only: str = ",".join(BY_NAME)) -> dict[str, Any]:
    """Go through the list, then through the healthy clusters."""
    names = only.split(",")
    faults: dict[str, Any] = {}
    unable: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="bench-laboratory-") as name:
        folder = Path(name)
        for slurm in (False, True):
            able = []
            for fault in FAULTS:
                if fault.name in names and (fault.needs == "slurm") is slurm:
                    if fault.needs not in ("", "torch") and (why := obstacle(fault.needs)):
                        unable[fault.name] = why
                    else:
                        able.append(fault)
            if able:
                with small(slurm=slurm) as laboratory:
                    for fault in able:
                        faults[fault.name] = one_fault(laboratory, fault, folder)
                        print(line_of(fault.name, faults[fault.name]), flush=True)
        big = cluster(folder, healthy) if healthy else {"healthy": []}
    if "three-at-once" in big:
        faults["three-at-once"] = big["three-at-once"]
        print(line_of("three-at-once", faults["three-at-once"]), flush=True)
    return {"faults": faults, "unable": unable, "healthy": big["healthy"]}


def line_of(name: str, verdict: Mapping[str, Any]) -> str:
    said = "found" if verdict["found"] else f"MISSED {verdict['missed']}"
    more = f", FALSE {verdict['false']}" if verdict["false"] else ""
    return f"{name:30} {said}{more}, {verdict['seconds']:.1f} s"


def rows(figures: Figures) -> list[Row]:
    """Return the summary's rows."""
    faults, healthy = figures["faults"].values(), figures["healthy"]
    found = sum(each["found"] for each in faults)
    beside = sum(len(each["false"]) for each in faults)
    false = sum(len(each["false"]) for each in healthy)
    return [
        Row(
            "laboratory: faults found with the right culprit",
            f"{found} of {len(faults)}, {beside} false findings beside them",
            "",
            "all, none",
            found == len(faults) and not beside,
        ),
        Row(
            f"laboratory: findings in checks of {CLUSTER} healthy hosts",
            f"{false} in {len(healthy)}",
            "",
            "none in 10",
            not false,
        ),
    ]
