"""One short torch job over all hosts that can reach each other, started by the agents.

It decides who takes part, over which backend and interface; the ranks verify, the rules judge.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distconsole.checks.addresses import Endpoint, endpoints
from distconsole.checks.attribution import blame
from distconsole.checks.edges import matrix_of
from distconsole.checks.evidence import BROKEN, Outcome
from distconsole.checks.facts import (
    CollFacts,
    GpuFacts,
    NetFacts,
    RankReport,
    ReachFacts,
    SshFacts,
    TorchFacts,
    convert,
)
from distconsole.checks.gather import Gathering
from distconsole.errors import NodeError
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.requests import Level

JOIN_SECONDS = 30.0
"""How long ranks wait for each other, instead of torch's ten minutes."""

JOB_SECONDS = {Level.QUICK: 60.0, Level.STANDARD: 100.0, Level.FULL: 300.0}
"""The whole job: imports on a cold disk, joining, and the cases."""

STOP_SECONDS = 5.0
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
    token: str

    @property
    def world_size(self) -> int:
        """Ranks over all hosts."""
        return sum(map(len, self.ranks.values()))


def cases(level: Level) -> list[dict[str, Any]]:
    """Return what the ranks do: every type once, then sizes of the operation that training uses."""
    types = ("float32", "float64", "int64", "float16", "bfloat16")
    found = [_case("all_reduce", dtype, ODD_ELEMENTS, 0) for dtype in types]
    operations = ["all_reduce_max", "broadcast", "all_gather"]
    sizes = [1, 1024, 1 << 20]
    if level is Level.FULL:
        operations += ["reduce_scatter", "all_to_all"]
        sizes = [4**power for power in range(13)]
    found += [_case(operation, "float32", ODD_ELEMENTS, 0) for operation in operations]
    found += [_case("all_reduce", "float32", size, _iterations(size)) for size in sizes]
    return found


def _case(op: str, dtype: str, elements: int, iterations: int) -> dict[str, Any]:
    return {"op": op, "dtype": dtype, "elements": elements, "iterations": iterations}


def _iterations(elements: int) -> int:
    if elements <= 1 << 14:
        return 20
    return 5 if elements <= 1 << 20 else 3


def run_job(gathering: Gathering) -> Iterator[str]:
    """Run the job; yields the name of each host once its ranks have ended."""
    seconds = gathering.left(JOB_SECONDS[gathering.request.level])
    hosts = _able(gathering)
    if not hosts:
        gathering.lack((CollFacts,), Outcome.COULD_NOT_RUN, "no host can take part")
        return
    if seconds < 3.0:
        gathering.lack((CollFacts,), Outcome.TIMED_OUT, "the budget was over")
        return
    try:
        job = _plan(gathering, hosts)
    except NodeError as error:
        why = f"no port for the rendezvous: {error.message}"
        gathering.lack((CollFacts,), Outcome.COULD_NOT_RUN, why)
        return
    yield from _run(gathering, job, seconds)


def _able(gathering: Gathering) -> list[Host]:
    """Return the hosts that can take part, and note of each other one why it cannot."""
    chosen = endpoints(gathering.view((NetFacts, SshFacts)))
    hosts = []
    for host in gathering.reached():
        evidence = gathering.hosts[host.name]
        torch = evidence.known.get(TorchFacts)
        if not isinstance(torch, TorchFacts) or not torch.present or torch.error:
            evidence.lack(CollFacts, Outcome.SKIPPED, "no torch there")
        elif host.name not in chosen:
            why = "it has no address that others could reach"
            evidence.lack(CollFacts, Outcome.COULD_NOT_RUN, why)
        else:
            hosts.append(host)
    return _connected(gathering, hosts) if len(gathering.hosts) > 1 else hosts


def _connected(gathering: Gathering, hosts: list[Host]) -> list[Host]:
    """Leave out hosts whose connections are broken: a job with them would only hang."""
    facts = gathering.view((ReachFacts,)).of(ReachFacts)
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
            gathering.hosts[host.name].lack(CollFacts, Outcome.COULD_NOT_RUN, why)
    return staying


def _plan(gathering: Gathering, hosts: list[Host]) -> Job:
    view = gathering.view((NetFacts, SshFacts))
    chosen = endpoints(view)
    gpus, torches = view.of(GpuFacts), view.of(TorchFacts)
    per_host = {host.name: _slots(gathering, host, gpus.get(host.name)) for host in hosts}
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
    address = chosen[hosts[0].name].address
    answer = gathering.ask(hosts[0], "port.free", 3.0, {"address": address})
    return Job(
        tuple(hosts),
        ranks,
        chosen,
        "nccl" if nccl else "gloo",
        int(answer.get("port", 0)),
        secrets.token_hex(8),
    )


def _slots(gathering: Gathering, host: Host, gpus: GpuFacts | None) -> int:
    asked = gathering.request.nproc or host.slots or (gpus.count if gpus else 0) or 1
    return min(asked, MAX_LOCAL_RANKS)


def _run(gathering: Gathering, job: Job, seconds: float) -> Iterator[str]:
    timeout = min(JOIN_SECONDS, max(2.0, seconds * 0.6))
    work = {
        "seed": secrets.randbelow(1 << 30),
        "timeout_seconds": timeout,
        "cases": cases(gathering.request.level),
    }

    def start(host: Host) -> dict[str, Any]:
        return gathering.ask(
            host,
            "coll",
            seconds,
            {
                "ranks": list(job.ranks[host.name]),
                "world_size": job.world_size,
                "master_address": job.endpoints[job.hosts[0].name].address,
                "master_port": job.port,
                "interface": job.endpoints[host.name].interface,
                "backend": job.backend,
                "job": work,
                "token": job.token,
                "python": host.python,
                "setup": host.setup,
            },
        )

    waiting = {host.name: host for host in job.hosts}
    for outcome in gathering.on_each(list(job.hosts), start, seconds):
        waiting.pop(outcome.host)
        evidence = gathering.hosts[outcome.host]
        if isinstance(outcome, fan.Failed):
            evidence.lack(CollFacts, Outcome.COULD_NOT_RUN, outcome.error.message)
        else:
            evidence.learn(_facts(job, outcome.host, outcome.value, timeout))
        facts = evidence.known.get(CollFacts)
        well = isinstance(facts, CollFacts) and not any(rank.exit_code for rank in facts.ranks)
        if waiting and not well:
            _stop(gathering, job, list(waiting.values()))
        yield outcome.host


def _stop(gathering: Gathering, job: Job, hosts: list[Host]) -> None:
    """Let the others end that would only wait for who failed."""

    def stop(host: Host) -> dict[str, Any]:
        return gathering.ask(host, "coll.stop", STOP_SECONDS, {"token": job.token})

    for _ in gathering.on_each(hosts, stop, STOP_SECONDS):
        pass


def _facts(job: Job, host: str, answer: dict[str, Any], timeout: float) -> CollFacts:
    """Return what the ranks said; a rank that the node says nothing of is there without a word."""
    said: dict[int, RankReport] = {}
    entries = answer.get("ranks")
    for entry in entries if isinstance(entries, list) else []:
        try:
            report = convert(RankReport, entry)
        except ValueError:
            continue
        said[report.rank] = report
    return CollFacts(
        backend=job.backend,
        world_size=job.world_size,
        planned=job.ranks[host],
        ranks=tuple(said.get(rank, RankReport(rank=rank)) for rank in job.ranks[host]),
        timeout_seconds=timeout,
    )
