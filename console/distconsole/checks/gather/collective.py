"""Short collective jobs over all hosts that can reach each other: participants and cases."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distconsole.checks.facts.evidence import BROKEN, HostEvidence, Outcome
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.network import NetFacts, ReachFacts, matrix_of
from distconsole.checks.facts.node import Facts, OsFacts, SshFacts
from distconsole.checks.gather.addresses import endpoints
from distconsole.checks.gather.attribution import blame
from distconsole.checks.gather.context import CheckContext
from distconsole.launch.planner import visible_gpus
from distconsole.model.cluster import Host
from distconsole.model.requests import CollectiveName, Level

JOIN_SECONDS = 30.0
"""How long ranks wait for each other, instead of torch's ten minutes."""

MOST_PATIENCE = 3.0
LEAST_SECONDS = 3.0
"""A job that has less is not begun."""

JOB_SECONDS = {Level.QUICK: 60.0, Level.STANDARD: 100.0, Level.FULL: 300.0}
"""The whole job: imports on a cold disk, joining, and the cases."""

MAX_LOCAL_RANKS = 64
ODD_ELEMENTS = 1003
"""Not a multiple of any number of ranks, so that no chunk is like another."""

OPS = tuple(name.value for name in CollectiveName)
SIZES = tuple(4 << power for power in range(0, 25, 2))
"""Of a sweep, in bytes: 4 B to 64 MiB, each four times the one before."""

TIMED = (1, 1024, 1 << 20)
"""Elements of the timed all-reduces without a sweep."""

SWEEP_SHARE = 0.6
"""Share of a job's time; the rest is for starting and verifying."""

CASE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Sweep:
    """Operations by ``sizes`` (bytes); the first of ``dtypes`` is timed, others verified at one odd size."""

    ops: tuple[str, ...] = OPS
    sizes: tuple[int, ...] = SIZES
    dtypes: tuple[str, ...] = ("float32", "float64", "int64", "bfloat16")


def work_for(
    level: Level,
    sweep: Sweep | None,
    seconds: float,
    timeout_seconds: float,
    world: int,
    timed: tuple[int, ...] = TIMED,
) -> dict[str, Any]:
    """Return what ranks do: a few cases with ``timed`` elements, or at level full a sweep."""
    if sweep is None and level is Level.FULL:
        sweep = Sweep()
    return {
        "seed": secrets.randbelow(1 << 30),
        "timeout_seconds": timeout_seconds,
        "world_size": world,
        "cases": _few(timed)
        if sweep is None
        else [
            case(op, dtype, ODD_ELEMENTS, 0)
            for dtype in sweep.dtypes[1:]
            for op in sweep.ops
            if op != "barrier"
        ],
        "sweep": sweep
        and {
            "ops": sweep.ops,
            "bytes": sweep.sizes,
            "dtype": sweep.dtypes[0],
            "case_seconds": CASE_SECONDS,
            "seconds": seconds * SWEEP_SHARE,
        },
    }


def _few(timed: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return every type once, then sizes of the operation that training uses, the large ones a few times."""
    types = ("float32", "float64", "int64", "float16", "bfloat16")
    found = [case("all_reduce", dtype, ODD_ELEMENTS, 0) for dtype in types]
    operations = ("all_reduce_max", "broadcast", "all_gather")
    found += [case(operation, "float32", ODD_ELEMENTS, 0) for operation in operations]
    for size in timed:
        iterations = 20 if size <= 1 << 14 else 5 if size <= 1 << 20 else 3
        found.append(case("all_reduce", "float32", size, iterations))
    return found


def case(op: str, dtype: str, elements: int, iterations: int) -> dict[str, Any]:
    """Return one operation as the ranks take it; none of ``iterations`` is timed."""
    return {"op": op, "dtype": dtype, "elements": elements, "iterations": iterations}


def job_seconds(
    context: CheckContext, kind: type[Facts], jobs: int, most: float = math.inf
) -> float:
    """Return the seconds of a job, the first of ``jobs`` still to come; 0, with the reason noted, if too few."""
    left = context.left(math.inf)
    wanted = min(JOB_SECONDS[context.request.level], most, left / max(1, jobs))
    return context.time_for(kind, wanted, LEAST_SECONDS)


def able(
    context: CheckContext, kind: type[Facts], lacking: Callable[[HostEvidence], str]
) -> list[Host]:
    """Return the hosts that can take part; note what is ``lacking`` on the others, the reason for no ``kind``."""
    chosen = endpoints(context.view((NetFacts, SshFacts)))
    hosts = []
    for host in context.reached():
        evidence = context.hosts[host.name]
        why = lacking(evidence)
        if why:
            evidence.mark_missing(kind, Outcome.SKIPPED, why)
        elif host.name not in chosen:
            why = "it has no address that others could reach"
            evidence.mark_missing(kind, Outcome.COULD_NOT_RUN, why)
        else:
            hosts.append(host)
    return _leave_out_broken(context, hosts, kind) if len(context.hosts) > 1 else hosts


def _leave_out_broken(context: CheckContext, hosts: list[Host], kind: type[Facts]) -> list[Host]:
    matrix = matrix_of(context.view((ReachFacts,)))
    broken = {**matrix.dead, **matrix.partial, **matrix.small_only}
    found = blame(matrix.tried, broken)
    out = {host.host for host in found.hosts} or set(found.everyone)
    for source, target in (*found.links, *found.one_way):
        if not {source, target} & out:
            out.add(target)
    staying = [host for host in hosts if host.name not in out]
    why = f"left out: its connections are broken {BROKEN}"
    if len(staying) < 2 <= len(hosts):
        staying, why = [], f"fewer than two hosts reach each other {BROKEN}"
    for host in hosts:
        if host not in staying:
            context.hosts[host.name].mark_missing(kind, Outcome.COULD_NOT_RUN, why)
    return staying


def slots_of(context: CheckContext, host: Host) -> int:
    planned = context.planned(host)
    if planned is not None and planned.ranks:
        return min(len(planned.ranks), MAX_LOCAL_RANKS)
    gpus = context.view((GpuFacts,)).of(GpuFacts).get(host.name)
    count, visible = gpus.count if gpus else 0, visible_gpus(host, {})
    count = count if visible is None else min(count, visible)
    return min(context.request.nproc or host.slots or count or 1, MAX_LOCAL_RANKS)


def join_seconds(context: CheckContext, seconds: float) -> float:
    """Return how long the ranks of a job of ``seconds`` wait for each other: longer on busy hosts."""
    busiest = max((each.busy for each in context.view().of(OsFacts).values()), default=1.0)
    wanted = JOIN_SECONDS * min(MOST_PATIENCE, max(1.0, busiest))
    return min(wanted, max(2.0, seconds * 0.6))
