"""Every host connects to every other at once, on a fixed port and on ports of the kernel's range.

The listeners are the agents', behind a secret of this check alone, and close by themselves.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from distconsole.checks.engine.losses import is_lost
from distconsole.checks.facts.evidence import ALONE, Outcome
from distconsole.checks.facts.network import Edge, NetFacts, ReachFacts, pair_reports
from distconsole.checks.facts.node import Facts, SshFacts, convert
from distconsole.checks.gather.addresses import Endpoint, endpoints, endpoints_in, shared_networks
from distconsole.checks.gather.nodes import Gathering, fixed_port
from distconsole.checks.gather.second_questions import ask_kernels
from distconsole.checks.interfaces.panel import plan_untried
from distconsole.model import outcome as fan
from distconsole.model.cluster import Host
from distconsole.model.events import PairProgress
from distconsole.model.requests import Level

CONNECT_SECONDS = {Level.QUICK: 1.2, Level.STANDARD: 3.2, Level.FULL: 7.5}
"""Per connection: long enough for one, two or three SYNs (they go out after 0, 1, 3 and 7 s)."""

AGAIN_SECONDS = CONNECT_SECONDS[Level.QUICK]
"""The same for what is tried once more."""

LISTEN_SECONDS = 3.0
PINGS, FEW_PINGS = 5, 1
"""Round trips to time with each other host, and beyond ``ALL_PORTS_HOSTS``: the kernel times more."""

MAX_OTHERS = 4
MANY_PORTS_HOSTS, MANY_PORTS, FEW_PORTS = 8, 16, 8
"""Ports of the kernel's range that each host listens on: the many up to so many hosts."""

ALL_PORTS_HOSTS = 32
"""Beyond so many hosts each one tries the fixed port of another and one of its others, in turn."""


CODE_NAME = re.compile(r"E[A-Z0-9]{1,20}")

Told = str | PairProgress
"""The name of a host whose part is done, or what became of pairs."""


class Result(Facts, frozen=True, kw_only=True):
    """What a node says of one connection (``network/connecting`` there)."""

    id: str
    ok: bool = False
    error: str = ""
    errno: str = ""
    rtt_us: float | None = None
    source: str = ""
    seen_source: str = ""
    bulk: bool | None = None


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a host listens for this check."""

    endpoint: Endpoint
    token: str
    fixed: int | None
    ports: tuple[int, ...]


def reach(gathering: Gathering) -> Iterator[Told]:
    """Try all pairs; yields the name of each host once its part is known, and what became of its pairs."""
    chosen = endpoints(gathering.view((NetFacts, SshFacts)))
    hosts = [host for host in gathering.reached() if host.name in chosen]
    for host in gathering.reached():
        if host.name not in chosen:
            why = "it has no address that others could reach"
            gathering.hosts[host.name].lack(ReachFacts, Outcome.COULD_NOT_RUN, why)
    if len(gathering.hosts) < 2:
        gathering.lack((ReachFacts,), Outcome.SKIPPED, "one host")
        return
    timeout = gathering.time_for(ReachFacts, CONNECT_SECONDS[gathering.request.level], 0.2)
    if not timeout or len(hosts) < 2:
        gathering.lack((ReachFacts,), Outcome.COULD_NOT_RUN, ALONE)
        return
    ports = MANY_PORTS if len(hosts) <= MANY_PORTS_HOSTS else FEW_PORTS
    found, errors = yield from _try_network(gathering, hosts, chosen, ports, timeout, first=True)
    ask_kernels(gathering, [edge for edges in found.values() for edge in edges if not edge.ok])
    others = yield from _try_rounds(gathering, hosts, _other_networks(gathering, chosen), timeout)
    untried = plan_untried(gathering.view((NetFacts, SshFacts)))
    choices = yield from _try_rounds(gathering, hosts, untried, timeout)
    for host in hosts:
        if host.name not in found:
            continue
        gathering.hosts[host.name].learn(
            ReachFacts(
                address=chosen[host.name].address,
                interface=chosen[host.name].interface,
                listen_error=errors.get(host.name, ""),
                edges=found[host.name],
                elsewhere=others.get(host.name, ()),
                chosen=choices.get(host.name, ()),
            )
        )


def _other_networks(
    gathering: Gathering, chosen: dict[str, Endpoint]
) -> Iterator[dict[str, Endpoint]]:
    """Yield the endpoints on every other network that all hosts share; none at level quick."""
    if gathering.request.level is Level.QUICK:
        return
    view = gathering.view((NetFacts, SshFacts))
    tested = {endpoint.network for endpoint in chosen.values()}
    for network in [each for each in shared_networks(view) if each not in tested][:MAX_OTHERS]:
        there = endpoints_in(view, network)
        if len({endpoint.address for endpoint in there.values()}) == len(there):
            yield there


def _try_rounds(
    gathering: Gathering,
    hosts: list[Host],
    rounds: Iterable[dict[str, Endpoint]],
    timeout: float,
) -> Generator[Told, None, dict[str, tuple[Edge, ...]]]:
    """Let all ``hosts`` try one port of each round's endpoints; return the connections of each host."""
    edges: dict[str, tuple[Edge, ...]] = {}
    for there in rounds:
        found, _ = yield from _try_network(gathering, hosts, there, 1, timeout)
        for name, tried in found.items():
            edges[name] = (*edges.get(name, ()), *tried)
    return edges


Tried = dict[str, tuple[Edge, ...]]
"""By host the connections that it tried."""


def _try_network(
    gathering: Gathering,
    hosts: list[Host],
    chosen: dict[str, Endpoint],
    ports: int,
    timeout: float,
    *,
    first: bool = False,
) -> Generator[Told, None, tuple[Tried, dict[str, str]]]:
    """Let all ``hosts`` try the endpoints of ``chosen``, which are some of them or all."""
    there = [host for host in hosts if host.name in chosen]
    secret = secrets.token_hex(32)
    listening, errors = open_listeners(gathering, there, chosen, secret, ports, 2 * timeout + 15.0)
    targets = _all_targets(hosts, listening)
    try:
        found = yield from _connect_all(
            gathering, targets, listening, secret, timeout, first=first
        )
        found = _among_living(gathering, found, targets)
        doubtful = _doubtful(found, targets)
        if doubtful and gathering.left(2 * AGAIN_SECONDS) >= 2 * AGAIN_SECONDS:
            again = yield from _connect_all(gathering, doubtful, listening, secret, AGAIN_SECONDS)
            found = _replace_tries(found, again)
            if first:
                edges = [edge for name in again for edge in found[name]]
                yield _progress(gathering, edges)
    finally:
        close_listeners(gathering, listening)
    return found, errors


def open_listeners(
    gathering: Gathering,
    hosts: list[Host],
    chosen: dict[str, Endpoint],
    secret: str,
    ports: int,
    ttl_seconds: float,
) -> tuple[dict[str, Listening], dict[str, str]]:
    """Have ``hosts`` listen; return where, and why not for those that do not."""
    # Two names of one address would take the fixed port from each other.
    first_of: dict[str, str] = {}
    for host in hosts:
        first_of.setdefault(chosen[host.name].address, host.name)

    def listen(host: Host) -> dict[str, Any]:
        fixed = first_of[chosen[host.name].address] == host.name
        return {
            "address": chosen[host.name].address,
            "ports": [fixed_port(gathering)] if fixed else [],
            "ephemeral": ports,
            "secret": secret,
            "ttl_seconds": ttl_seconds,
        }

    listening: dict[str, Listening] = {}
    errors: dict[str, str] = {}
    for outcome in gathering.ask_all(hosts, "net.listen", LISTEN_SECONDS, listen):
        if isinstance(outcome, fan.Failed):
            errors[outcome.host] = outcome.error.message
        else:
            listening[outcome.host] = _listening(chosen[outcome.host], outcome.value)
    return listening, errors


def close_listeners(gathering: Gathering, listening: dict[str, Listening]) -> None:
    """Close what is still open; a host that is gone closes by itself."""
    hosts = [host for host in gathering.reached() if host.name in listening]

    def token(host: Host) -> dict[str, Any]:
        return {"token": listening[host.name].token}

    for _ in gathering.ask_all(hosts, "net.close", LISTEN_SECONDS, token):
        pass


def _listening(endpoint: Endpoint, answer: dict[str, Any]) -> Listening:
    entries = answer.get("ports")
    ports: list[tuple[object, int]] = [
        (entry.get("asked"), entry["port"])
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("port"), int)
    ]
    fixed = next((port for asked, port in ports if asked), None)
    others = tuple(port for asked, port in ports if not asked)
    return Listening(endpoint, str(answer.get("token", "")), fixed, others)


def _connect_all(
    gathering: Gathering,
    targets: dict[str, list[dict[str, Any]]],
    listening: dict[str, Listening],
    secret: str,
    timeout: float,
    *,
    first: bool = False,
) -> Generator[Told, None, Tried]:
    """Connect; the pairs of the ``first`` network that is tried are told as they come."""
    hosts = [host for host in gathering.reached() if host.name in targets]
    batch_seconds = timeout * 1.5 + 2.0
    found: Tried = {}

    def connect(host: Host) -> dict[str, Any]:
        return {"targets": targets[host.name], "secret": secret, "timeout_seconds": timeout}

    for outcome in gathering.ask_all(hosts, "net.connect", batch_seconds, connect):
        if isinstance(outcome, fan.Failed):
            evidence = gathering.hosts[outcome.host]
            evidence.lack(ReachFacts, Outcome.COULD_NOT_RUN, outcome.error.message)
        else:
            edges = _edges(outcome.host, targets[outcome.host], listening, outcome.value)
            found[outcome.host] = edges
            if first:
                yield _progress(gathering, edges)
        yield outcome.host
    return found


def _progress(gathering: Gathering, edges: Iterable[Edge]) -> PairProgress:
    pairs = tuple(pair_reports(edges))
    return PairProgress(stage="reach", hosts=tuple(gathering.hosts), pairs=pairs)


def _all_targets(
    hosts: list[Host], listening: dict[str, Listening]
) -> dict[str, list[dict[str, Any]]]:
    """Return what each host connects to; one connection of a pair is timed and carries much."""
    every = len(listening) <= ALL_PORTS_HOSTS
    return {
        host.name: [
            {
                "id": f"{name} {port}",
                "address": there.endpoint.address,
                "port": port,
                "bulk": position == 0,
                "pings": 0 if position else PINGS if every else FEW_PINGS,
            }
            for name, there in listening.items()
            if name != host.name
            for position, port in enumerate(_ports(there, None if every else turn))
        ]
        for turn, host in enumerate(hosts)
    }


def _ports(there: Listening, turn: int | None) -> list[int]:
    fixed = [there.fixed] if there.fixed else []
    if turn is None or not there.ports:
        return [*fixed, *there.ports]
    return [*fixed, there.ports[turn % len(there.ports)]]


def _among_living(
    gathering: Gathering, found: Tried, targets: dict[str, list[dict[str, Any]]]
) -> Tried:
    """Leave out connections to hosts that died meanwhile; ``targets`` too."""
    silent = [name for name in targets if name not in found and is_lost(gathering, name)]
    living = {}
    for name, edges in found.items() if silent else ():
        targets[name] = [each for each in targets[name] if _name(each) not in silent]
        living[name] = tuple(edge for edge in edges if edge.target not in silent)
    return living if silent else found


def _doubtful(
    found: Tried, targets: dict[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Return what did not come through: before anybody is accused it is tried once more."""
    doubtful: dict[str, list[dict[str, Any]]] = {}
    for name, edges in found.items():
        pairs = zip(edges, targets[name], strict=True)
        if again := [target for edge, target in pairs if not edge.ok or edge.bulk is False]:
            doubtful[name] = again
    return doubtful


def _replace_tries(first: Tried, second: Tried) -> Tried:
    """Return ``first`` with what came of each second try in its place."""
    whole = dict(first)
    for name, edges in second.items():
        newer = {(edge.target, edge.port): edge for edge in edges}
        whole[name] = tuple(newer.get((edge.target, edge.port), edge) for edge in first[name])
    return whole


def _edges(
    source: str,
    targets: list[dict[str, Any]],
    listening: dict[str, Listening],
    answer: dict[str, Any],
) -> tuple[Edge, ...]:
    """Pair each target with its result; what the node did not answer as agreed counts as a timeout."""
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
