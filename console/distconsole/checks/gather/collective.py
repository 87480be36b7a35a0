"""Short collective jobs over all hosts that can reach each other: who takes part, and torch's own.

It decides the backend and the interface; the ranks verify, the rules judge.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from distconsole.checks.engine.losses import is_lost, leave_out_for
from distconsole.checks.engine.target import LaunchNeeds
from distconsole.checks.facts.evidence import BROKEN, HostEvidence, Outcome
from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.jobs import CollFacts, RankReport
from distconsole.checks.facts.network import NetFacts, PortFacts, ReachFacts, matrix_of
from distconsole.checks.facts.node import Facts, OsFacts, SshFacts, TorchFacts, convert
from distconsole.checks.gather.addresses import Endpoint, endpoints
from distconsole.checks.gather.attribution import blame
from distconsole.checks.gather.nodes import BUDGET_OVER, CheckContext, interpreter
from distconsole.errors import NodeError
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.requests import CollectiveName, Level

JOIN_SECONDS = 30.0
"""How long ranks wait for each other, instead of torch's ten minutes."""

MOST_PATIENCE = 3.0
LEAST_SECONDS = 3.0
"""A job that has less is not begun."""

JOB_SECONDS = {Level.QUICK: 60.0, Level.STANDARD: 100.0, Level.FULL: 300.0}
"""The whole job: imports on a cold disk, joining, and the cases."""

STOP, STOP_SECONDS = "coll.stop", 5.0
MAX_LOCAL_RANKS = 64
ODD_ELEMENTS = 1003
"""Not a multiple of any number of ranks, so that no chunk is like another."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job as planned: who runs which ranks, and where they meet."""

    hosts: tuple[Host, ...]
    ranks: dict[str, tuple[int, ...]]
    endpoints: dict[str, Endpoint]
    backend: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def world_size(self) -> int:
        """Ranks over all hosts."""
        return sum(map(len, self.ranks.values()))


OPS = tuple(name.value for name in CollectiveName)
SIZES = tuple(4 << power for power in range(0, 25, 2))
"""Of a sweep, in bytes: 4 B to 64 MiB, each four times the one before."""

TIMED = (1, 1024, 1 << 20)
SWEEP_SHARE = 0.6
"""Of a job's time; the rest is for starting and for what each rank computes to verify."""

CASE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Sweep:
    """Operations by sizes to verify and to time, biggest buffers counted as nccl-tests does.

    Attributes:
        sizes: In bytes.
        dtypes: The first one is timed at every size; of the others one odd size is verified.
    """

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
    """Return what the ranks do (``collective_worker``): a few cases, or at level full a sweep.

    Args:
        timed: Elements of the all-reduces that are timed where there is no sweep.
    """
    if sweep is None and level is Level.FULL:
        sweep = Sweep()
    return {
        "seed": secrets.randbelow(1 << 30),
        "timeout_seconds": timeout_seconds,
        "world_size": world,
        "cases": _few(timed) if sweep is None else _each_type(sweep),
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
    """Return every type once, then sizes of the operation that training uses."""
    types = ("float32", "float64", "int64", "float16", "bfloat16")
    found = [case("all_reduce", dtype, ODD_ELEMENTS, 0) for dtype in types]
    operations = ("all_reduce_max", "broadcast", "all_gather")
    found += [case(operation, "float32", ODD_ELEMENTS, 0) for operation in operations]
    found += [case("all_reduce", "float32", size, _iterations(size)) for size in timed]
    return found


def _each_type(sweep: Sweep) -> list[dict[str, Any]]:
    ops = [op for op in sweep.ops if op != "barrier"]
    return [case(op, dtype, ODD_ELEMENTS, 0) for dtype in sweep.dtypes[1:] for op in ops]


def case(op: str, dtype: str, elements: int, iterations: int) -> dict[str, Any]:
    """Return one operation as the ranks take it; none of ``iterations`` is timed."""
    return {"op": op, "dtype": dtype, "elements": elements, "iterations": iterations}


def _iterations(elements: int) -> int:
    if elements <= 1 << 14:
        return 20
    return 5 if elements <= 1 << 20 else 3


def job_seconds(
    context: CheckContext, kind: type[Facts], jobs: int, most: float = math.inf
) -> float:
    """Return how long a job may take that is the first of ``jobs`` still to come.

    Where that is too short, it is noted why there is no ``kind``, and 0 is returned.
    """
    left = context.left(math.inf)
    seconds = min(JOB_SECONDS[context.request.level], most, left / max(1, jobs))
    if seconds >= LEAST_SECONDS:
        return seconds
    context.mark_missing((kind,), Outcome.TIMED_OUT, BUDGET_OVER)
    return 0.0


def run_job(context: CheckContext, sweep: Sweep | None = None, jobs: int = 1) -> Iterator[str]:
    """Run torch's job, the first of ``jobs``; yields each host once its ranks have ended."""
    hosts = able(context, CollFacts, _without_torch)
    if not hosts:
        context.mark_missing((CollFacts,), Outcome.COULD_NOT_RUN, "no host can take part")
        return
    seconds = job_seconds(context, CollFacts, jobs)
    if not seconds:
        return
    try:
        job = _plan(context, hosts)
    except NodeError as error:
        why = f"no port for the rendezvous: {error.message}"
        context.mark_missing((CollFacts,), Outcome.COULD_NOT_RUN, why)
        return
    yield from _run(context, job, seconds, sweep)


def _without_torch(evidence: HostEvidence) -> str:
    torch = evidence.known.get(TorchFacts)
    there = isinstance(torch, TorchFacts) and torch.present and not torch.error
    return "" if there else "no torch there"


def able(
    context: CheckContext, kind: type[Facts], lacking: Callable[[HostEvidence], str]
) -> list[Host]:
    """Return the hosts that can take part, and note of each other one why it has no ``kind``.

    Args:
        lacking: Why a host cannot for what it has not; empty if it can.
    """
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
    """Leave out hosts whose connections are broken: a job with them would only hang."""
    facts = context.view((ReachFacts,)).of(ReachFacts)
    matrix = matrix_of(facts)
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


def _plan(context: CheckContext, hosts: list[Host]) -> Job:
    view = context.view((NetFacts, SshFacts))
    chosen = endpoints(view)
    gpus, torches = view.of(GpuFacts), view.of(TorchFacts)
    per_host = {host.name: slots_of(context, host) for host in hosts}
    nccl = all(
        host.name in gpus
        and gpus[host.name].count >= per_host[host.name]
        and torches[host.name].cuda is not None
        for host in hosts
    )
    ranks: dict[str, tuple[int, ...]] = {}
    first = 0
    for host in hosts:
        ranks[host.name] = tuple(range(first, first + per_host[host.name]))
        first += per_host[host.name]
    needs = context.launch.needs if context.launch is not None else LaunchNeeds()
    fixed = _port_of_launch(context, hosts[0])
    return Job(
        tuple(hosts),
        ranks,
        chosen,
        "nccl" if nccl and needs.backend != "gloo" else "gloo",
        fixed or free_port(context, hosts[0], chosen[hosts[0].name].address),
    )


def free_port(context: CheckContext, host: Host, address: str) -> int:
    """Return a port that is free at this address of ``host``."""
    return int(context.ask(host, "port.free", 3.0, {"address": address}).get("port", 0))


def _port_of_launch(context: CheckContext, host: Host) -> int | None:
    """Return the port that the launch fixes, unless it is held there: that is another finding."""
    launch = context.launch
    if launch is None or launch.port is None:
        return None
    facts = context.view((PortFacts,)).of(PortFacts).get(host.name)
    port = facts.ports.get(str(launch.port)) if facts is not None else None
    return launch.port if port is not None and port.free else None


def slots_of(context: CheckContext, host: Host) -> int:
    """Return how many ranks a host gets."""
    launch = context.launch
    planned = launch.hosts.get(host.name) if launch is not None else None
    if planned is not None and planned.ranks:
        return min(len(planned.ranks), MAX_LOCAL_RANKS)
    gpus = context.view((GpuFacts,)).of(GpuFacts).get(host.name)
    asked = context.request.nproc or host.slots or (gpus.count if gpus else 0) or 1
    return min(asked, MAX_LOCAL_RANKS)


def join_seconds(context: CheckContext, seconds: float) -> float:
    """Return how long the ranks of a job of so many seconds wait for each other: longer on busy hosts."""
    busiest = max((each.busy for each in context.view().of(OsFacts).values()), default=1.0)
    wanted = JOIN_SECONDS * min(MOST_PATIENCE, max(1.0, busiest))
    return min(wanted, max(2.0, seconds * 0.6))


def _run(context: CheckContext, job: Job, seconds: float, sweep: Sweep | None) -> Iterator[str]:
    timeout = join_seconds(context, seconds)
    work = work_for(context.request.level, sweep, seconds, timeout, job.world_size)
    lost: list[str] = []
    for outcome in start_ranks(context, job, work, seconds, partial(interpreter, context)):
        evidence = context.hosts[outcome.host]
        if isinstance(outcome, fan.Failed):
            evidence.mark_missing(CollFacts, Outcome.COULD_NOT_RUN, outcome.error.message)
            lost += [outcome.host] if is_lost(context, outcome.host) else []
        else:
            evidence.add_facts(
                CollFacts(
                    backend=job.backend,
                    world_size=job.world_size,
                    planned=job.ranks[outcome.host],
                    ranks=reports_of(job, outcome),
                    timeout_seconds=timeout,
                )
            )
        yield outcome.host
    if lost:
        leave_out_for(context, CollFacts, [host.name for host in job.hosts], lost)


def start_ranks(
    context: CheckContext,
    job: Job,
    work: Mapping[str, Any],
    seconds: float,
    conditions: Callable[[Host], dict[str, Any]],
) -> Iterator[fan.Outcome[dict[str, Any]]]:
    """Start the ranks of ``job`` and yield what each host says of its own once they have ended.

    Once a rank fails, the ranks of the other hosts are stopped: they would only wait for it.

    Args:
        conditions: How a host starts processes, as the probe ``coll`` takes it.
    """

    def args(host: Host) -> dict[str, Any]:
        return {
            "ranks": list(job.ranks[host.name]),
            "world_size": job.world_size,
            "master_address": job.endpoints[job.hosts[0].name].address,
            "master_port": job.port,
            "interface": job.endpoints[host.name].interface,
            "backend": job.backend,
            "job": work,
            "token": job.token,
            **conditions(host),
        }

    waiting = {host.name: host for host in job.hosts}
    try:
        for outcome in context.ask_all(job.hosts, "coll", seconds, args):
            waiting.pop(outcome.host)
            codes = [rank.exit_code for rank in reports_of(job, outcome)]
            if waiting and (isinstance(outcome, fan.Failed) or any(codes)):
                context.stop(waiting.values(), STOP, job.token, STOP_SECONDS)
            yield outcome
    except BaseException:
        # Ctrl-C, or a consumer that went away: nobody waits for the ranks any more.
        context.stop(waiting.values(), STOP, job.token, STOP_SECONDS)
        raise


def reports_of(job: Job, outcome: fan.Outcome[dict[str, Any]]) -> tuple[RankReport, ...]:
    """Return what a host says of its ranks of ``job``; one that failed says nothing of any."""
    answer = outcome.value if isinstance(outcome, fan.Ok) else {}
    return reports(answer.get("ranks"), job.ranks[outcome.host])


def reports(entries: object, planned: tuple[int, ...]) -> tuple[RankReport, ...]:
    """Return what a node says of its ranks; one that it says nothing of is there without a word."""
    said: dict[int, RankReport] = {}
    for entry in entries if isinstance(entries, list | tuple) else ():
        with suppress(ValueError):
            report = convert(RankReport, entry)
            said[report.rank] = report
    return tuple(said.get(rank, RankReport(rank=rank)) for rank in planned)
