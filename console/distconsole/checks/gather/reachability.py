"""Every host connects to every other at once, on a fixed port and on ports of the kernel's range."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from distconsole.checks.engine.rule import Rule, Verdicts, judge
from distconsole.checks.facts.evidence import ALONE, BROKEN, Outcome
from distconsole.checks.facts.jobs import CollFacts
from distconsole.checks.facts.network import Edge, NetFacts, ReachFacts, matrix_of, pair_reports
from distconsole.checks.facts.node import Facts, KernelFacts, SshFacts, convert
from distconsole.checks.gather.addresses import (
    HostEndpoint,
    endpoints,
    endpoints_in,
    partners,
    shared_networks,
)
from distconsole.checks.gather.context import CheckContext
from distconsole.checks.gather.listeners import Listeners, Listening
from distconsole.checks.gather.reaching import is_lost, leave_out
from distconsole.checks.interfaces.panel import plan_untried
from distconsole.checks.rules.software.ranks import DONE, last_stage
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.events import PairProgress
from distconsole.model.findings import Finding
from distconsole.model.requests import Level

CONNECT_SECONDS = {Level.QUICK: 1.2, Level.STANDARD: 3.2, Level.FULL: 7.5}
"""Per connection: long enough for one, two or three SYNs (they go out after 0, 1, 3 and 7 s)."""

AGAIN_SECONDS = CONNECT_SECONDS[Level.QUICK]
"""The same for second tries."""

KERNEL_SECONDS = 2.0

PINGS, FEW_PINGS = 5, 1
"""Round trips to time with each other host, and beyond ``ALL_PORTS_HOSTS``: the kernel times more."""

MAX_OTHERS = 4
MANY_PORTS_HOSTS, MANY_PORTS, FEW_PORTS = 8, 16, 8
"""Ephemeral ports that each host listens on: the larger number up to this many hosts."""

ALL_PORTS_HOSTS = 32
"""Beyond this many hosts each one tries the fixed port of another and one of its others, in turn."""

WAYS = frozenset({"net.reach_tcp", "net.asymmetric", "net.port_ephemeral", "net.mtu"})
"""Checks of what makes jobs leave hosts out."""

CODE_NAME = re.compile(r"E[A-Z0-9]{1,20}")

Told = str | PairProgress
"""The name of a host whose part is done, or what became of pairs."""


class Result(Facts, frozen=True, kw_only=True):
    """A node's report on one connection (``network/connecting`` there)."""

    id: str
    ok: bool = False
    error: str = ""
    errno: str = ""
    rtt_us: float | None = None
    source: str = ""
    seen_source: str = ""
    bulk: bool | None = None


def reach(context: CheckContext) -> Iterator[Told]:
    """Try all pairs; yields the name of each host once its part is known, and what became of its pairs."""
    chosen = endpoints(context.view((NetFacts, SshFacts)))
    hosts = [host for host in context.reached() if host.name in chosen]
    for host in context.reached():
        if host.name not in chosen:
            why = "it has no address that others could reach"
            context.hosts[host.name].mark_missing(ReachFacts, Outcome.COULD_NOT_RUN, why)
    if len(context.hosts) < 2:
        context.mark_missing((ReachFacts,), Outcome.SKIPPED, "one host")
        return
    timeout = context.time_for(ReachFacts, CONNECT_SECONDS[context.request.level], 0.2)
    if not timeout or len(hosts) < 2:
        context.mark_missing((ReachFacts,), Outcome.COULD_NOT_RUN, ALONE)
        return
    ports = MANY_PORTS if len(hosts) <= MANY_PORTS_HOSTS else FEW_PORTS
    found, errors = yield from _try_network(context, hosts, chosen, ports, timeout, first=True)
    _ask_kernels(context, [edge for edges in found.values() for edge in edges if not edge.ok])
    others = yield from _try_rounds(context, hosts, _other_networks(context, chosen), timeout)
    untried = plan_untried(context.view((NetFacts, SshFacts)))
    choices = yield from _try_rounds(context, hosts, untried, timeout)
    for host in hosts:
        if host.name not in found:
            continue
        context.hosts[host.name].add_facts(
            ReachFacts(
                address=chosen[host.name].address,
                interface=chosen[host.name].interface,
                listen_error=errors.get(host.name, ""),
                edges=found[host.name],
                elsewhere=others.get(host.name, ()),
                chosen=choices.get(host.name, ()),
            )
        )


def _ask_kernels(context: CheckContext, broken: Iterable[Edge]) -> None:
    """Read the kernel's log on both ends of connections that failed, as it is since they did."""
    names = {name for edge in broken for name in (edge.source, edge.target)}
    hosts = [host for host in context.reached() if host.name in names]
    seconds = context.left(KERNEL_SECONDS)
    if hosts and seconds >= KERNEL_SECONDS:
        list(context.ask_facts(hosts, KernelFacts, "kernel", seconds))


def _other_networks(
    context: CheckContext, chosen: Mapping[str, HostEndpoint]
) -> Iterator[dict[str, HostEndpoint]]:
    """Yield the endpoints on every other network that all hosts share; none at level quick."""
    if context.request.level is Level.QUICK:
        return
    view = context.view((NetFacts, SshFacts))
    tested = {endpoint.network for endpoint in chosen.values()}
    for network in [each for each in shared_networks(view) if each not in tested][:MAX_OTHERS]:
        there = endpoints_in(view, network)
        if len({endpoint.address for endpoint in there.values()}) == len(there):
            yield there


def _try_rounds(
    context: CheckContext,
    hosts: list[Host],
    rounds: Iterable[dict[str, HostEndpoint]],
    timeout: float,
) -> Generator[Told, None, dict[str, tuple[Edge, ...]]]:
    """Let all ``hosts`` try one port of each round's endpoints; return the connections of each host."""
    edges: dict[str, tuple[Edge, ...]] = {}
    for there in rounds:
        found, _ = yield from _try_network(context, hosts, there, 1, timeout)
        for name, tried in found.items():
            edges[name] = (*edges.get(name, ()), *tried)
    return edges


Targets = dict[str, list[dict[str, Any]]]
"""By host its targets."""

Tried = dict[str, tuple[Edge, ...]]
"""By host the connections that it tried."""


def _try_network(
    context: CheckContext,
    hosts: list[Host],
    chosen: Mapping[str, HostEndpoint],
    ports: int,
    timeout: float,
    *,
    first: bool = False,
) -> Generator[Told, None, tuple[Tried, dict[str, str]]]:
    with Listeners(context, chosen, ports, 2 * timeout + 15.0) as listeners:
        targets = _all_targets(hosts, listeners.listening)
        found = yield from _connect_all(context, targets, listeners, timeout, first=first)
        silent = [name for name in targets if name not in found and is_lost(context, name)]
        found = {
            name: tuple(edge for edge in edges if edge.target not in silent)
            for name, edges in found.items()
        }
        doubtful = _doubtful(found, targets)
        if doubtful and context.left(2 * AGAIN_SECONDS) >= 2 * AGAIN_SECONDS:
            again = yield from _connect_all(context, doubtful, listeners, AGAIN_SECONDS)
            for name, tried in again.items():
                newer = {(edge.target, edge.port): edge for edge in tried}
                found[name] = tuple(newer.get((e.target, e.port), e) for e in found[name])
            if first:
                edges = [edge for name in again for edge in found[name]]
                yield _progress(context, edges)
    return found, listeners.errors


def _connect_all(
    context: CheckContext,
    targets: Targets,
    listeners: Listeners,
    timeout: float,
    *,
    first: bool = False,
) -> Generator[Told, None, Tried]:
    """Connect; pairs of the ``first`` network are reported as they come."""
    hosts = [host for host in context.reached() if host.name in targets]
    batch_seconds = timeout * 1.5 + 2.0
    found: Tried = {}

    def connect(host: Host) -> dict[str, Any]:
        return {"targets": targets[host.name], "timeout_seconds": timeout}

    for outcome in listeners.ask(hosts, "net.connect", batch_seconds, connect):
        if isinstance(outcome, fan.Failed):
            evidence = context.hosts[outcome.host]
            evidence.mark_missing(ReachFacts, Outcome.COULD_NOT_RUN, outcome.error.message)
        else:
            asked = targets[outcome.host]
            edges = _edges(outcome.host, asked, listeners.listening, outcome.value)
            found[outcome.host] = edges
            if first:
                yield _progress(context, edges)
        yield outcome.host
    return found


def _progress(context: CheckContext, edges: Iterable[Edge]) -> PairProgress:
    pairs = tuple(pair_reports(edges))
    return PairProgress(stage="reach", hosts=tuple(context.hosts), pairs=pairs)


def _all_targets(hosts: list[Host], listening: dict[str, Listening]) -> Targets:
    """Return the targets of each host; one connection of a pair is timed and carries much."""
    every = len(listening) <= ALL_PORTS_HOSTS
    # In the order of the hosts, not in that of their answers.
    ring = list(dict.fromkeys((*(str(host.name) for host in hosts), *listening)))
    return {
        host.name: [
            {
                "id": f"{name} {port}",
                "address": listening[name].endpoint.address,
                "port": port,
                "bulk": position == 0,
                "pings": 0 if position else PINGS if every else FEW_PINGS,
            }
            for name in partners(ring, turn)
            if name in listening
            for position, port in enumerate(_ports(listening[name], None if every else turn))
        ]
        for turn, host in enumerate(hosts)
    }


def _ports(there: Listening, turn: int | None) -> list[int]:
    fixed = [there.fixed] if there.fixed else []
    others = there.ports[len(fixed) :]
    if turn is None or not others:
        return list(there.ports)
    return [*fixed, others[turn % len(others)]]


def _doubtful(found: Tried, targets: Targets) -> Targets:
    """Return what did not come through: before anybody is accused it is tried once more."""
    doubtful: Targets = {}
    for name, edges in found.items():
        bad = {f"{e.target} {e.port}" for e in edges if not e.ok or e.bulk is False}
        if bad:
            doubtful[name] = [target for target in targets[name] if target["id"] in bad]
    return doubtful


def _edges(
    source: str,
    targets: list[dict[str, Any]],
    listening: dict[str, Listening],
    answer: dict[str, Any],
) -> tuple[Edge, ...]:
    """Pair each target with its result; a malformed answer counts as a timeout."""
    results = {}
    entries = answer.get("results")
    for entry in entries if isinstance(entries, list) else ():
        with suppress(ValueError):
            result = convert(Result, entry)
            results[result.id] = result
    return tuple(
        _edge(source, target, listening[_name(target)], results.get(target["id"], Result(id="")))
        for target in targets
    )


def _edge(source: str, target: dict[str, Any], there: Listening, result: Result) -> Edge:
    ok = result.ok
    known = CODE_NAME.fullmatch(result.errno) is not None
    return Edge(
        source=source,
        target=_name(target),
        network=there.endpoint.network,
        address=there.endpoint.address,
        port=target["port"],
        fixed=target["port"] == there.fixed,
        ok=ok,
        error="" if ok else (result.error or "timeout")[:80],
        errno=result.errno if known and not ok else "",
        rtt_us=result.rtt_us if ok else None,
        local_address=result.source[:64],
        bulk=result.bulk,
        seen_address=result.seen_source[:64],
    )


def _name(target: dict[str, Any]) -> str:
    return str(target["id"]).rpartition(" ")[0]


def any_broken(context: CheckContext) -> bool:
    matrix = matrix_of(context.view((ReachFacts,)))
    return bool(matrix.dead or matrix.partial or matrix.small_only)


def judge_ways(context: CheckContext, rules: Iterable[Rule], verdicts: Verdicts) -> list[Finding]:
    """Judge the ways by ``rules``; only those that find something are added to ``verdicts``."""
    findings: list[Finding] = []
    for rule in rules:
        found = Verdicts()
        findings += judge(rule, context.hosts.values(), context.view(), found)
        if not found.findings:
            continue
        verdicts.findings += found.findings
        for name, cells in found.cells.items():
            verdicts.cells.setdefault(name, {}).update(cells)
    return findings


def stuck_jobs(context: CheckContext, kinds: Iterable[type[Facts]]) -> list[type[Facts]]:
    """Return the jobs, by their facts, that did not end though all was well: a way may have broken since."""
    if context.lost or any_broken(context):
        return []
    jobs = {
        kind: context.view().of(kind).values() for kind in kinds if issubclass(kind, CollFacts)
    }
    return [
        kind
        for kind, found in jobs.items()
        if any(last_stage(rank) != DONE for job in found for rank in job.ranks)
    ]


def excuse(context: CheckContext, kinds: Iterable[type[Facts]]) -> None:
    """Drop the results of jobs while a connection broke: the connection is at fault, not the hosts."""
    for kind in kinds:
        leave_out(context, kind, context.hosts, f"a way broke while it went on {BROKEN}")
