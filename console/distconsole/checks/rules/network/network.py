"""Checks of group ``net`` on what connections between the hosts did; culprits by ``attribution``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from distconsole.checks.engine.rule import (
    NotApplicable,
    RuleResult,
    RuleResults,
    fail,
    hint,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import ALONE, Outcome, View
from distconsole.checks.facts.network import SILENT, Edge, Matrix, ReachFacts, matrix_of
from distconsole.checks.fixes.closed_ways import (
    MORE_NEIGHBOURS,
    Cause,
    by_cause,
    cause_of,
    cure_of,
    format_pairs,
    off_it,
    or_elsewhere,
    other_port,
    split_neighbours,
    through_ports,
)
from distconsole.checks.fixes.cures import offer
from distconsole.checks.gather.attribution import (
    BlamedHost,
    Direction,
    Pair,
    blame,
    cover,
)
from distconsole.checks.rules.wording import name_hosts
from distconsole.model.requests import Level

MAX_LISTED = 8
SILENT_CAUSES = (Cause.SILENCE, Cause.OTHER)
"""Causes that the system's code does not tell apart."""


@rule("net.reach_tcp", "net", Level.QUICK, ReachFacts)
@hint("Open all TCP between the hosts.")
def _reach(view: View) -> RuleResults:
    """Hosts that cannot connect to each other: a firewall, a dead interface, a wrong network."""
    facts = view.of(ReachFacts)
    yield from _not_listening(facts)
    yield from alone(view)
    matrix, crowded = split_neighbours(view, matrix_of(facts))
    if crowded:
        yield _warn_of_crowd(view, matrix, crowded)
    yield from _unsure(matrix)
    found = blame(matrix.tried, matrix.dead)
    if found.everyone:
        cause = cause_of(chain(*matrix.dead.values()))
        yield fail(
            f"no two of the {len(found.everyone)} hosts can reach each other{_because(cause)}",
            found.everyone,
            seen=format_pairs(view, matrix, matrix.tried),
            expected="TCP connections between all hosts",
            **or_elsewhere(view, cure_of(cause, facts, *found.everyone[:2])),
        )
    for host in found.hosts:
        if host.direction is Direction.BOTH:
            yield _dead_host(view, host, facts, matrix)
    for cause, pairs in by_cause(matrix, found.links).items():
        (one, other), *more = pairs
        who = f"{len(pairs)} pairs of hosts" if more else f"{one} and {other}"
        yield fail(
            f"{who} cannot reach each other{_because(cause)}",
            {name for pair in pairs for name in pair},
            seen=format_pairs(
                view, matrix, [each for pair in pairs for each in (pair, pair[::-1])]
            ),
            expected="a TCP connection in both directions",
            **or_elsewhere(view, cure_of(cause, facts, one, other)),
        )


def alone(view: View) -> RuleResults:
    """Leave out hosts that have no peer, and say why."""
    if len(view.everyone) < 2:
        yield NotApplicable("one host", tuple(host.name for host in view.hosts))
    elif len(view.hosts) < 2:
        yield NotApplicable(ALONE, tuple(host.name for host in view.hosts), Outcome.COULD_NOT_RUN)


def _unsure(matrix: Matrix) -> RuleResults:
    silent = tuple(dict.fromkeys(target for _, target in matrix.unsure))
    if silent:
        why = "connections to it come about and nobody there answers in time: it is busy"
        yield NotApplicable(why, silent, Outcome.TIMED_OUT)


def _not_listening(facts: Mapping[str, ReachFacts]) -> RuleResults:
    for name, found in facts.items():
        if found.listen_error:
            yield NotApplicable(
                f"could not listen on {found.address}: {found.listen_error}",
                (name,),
                Outcome.COULD_NOT_RUN,
            )


def _dead_host(
    view: View, host: BlamedHost, facts: Mapping[str, ReachFacts], matrix: Matrix
) -> RuleResult:
    address = facts[host.host].address if host.host in facts else ""
    cause = cause_of(chain(*(matrix.edges.get(pair, ()) for pair in host.pairs)))
    peers = [name for pair in host.pairs for name in pair if name != host.host]
    hint = (
        f"a firewall or a wrong network at {host.host}; on it: sudo iptables -S; "
        f"ip -br address; ip route get {_peer_address(host, facts)}"
        if cause in SILENT_CAUSES
        else cure_of(cause, facts, peers[0], host.host)
    )
    return fail(
        f"no TCP connection between {host.host} and its peers works, though SSH does"
        f"{_because(cause)}",
        (host.host,),
        seen=format_pairs(view, matrix, host.pairs),
        expected=f"connections to and from {address} on any port",
        **or_elsewhere(view, hint),
    )


def _peer_address(host: BlamedHost, facts: Mapping[str, ReachFacts]) -> str:
    names = [name for pair in host.pairs for name in pair if name != host.host and name in facts]
    return facts[names[0]].address if names else "PEER"


def _warn_of_crowd(view: View, matrix: Matrix, pairs: Sequence[Pair]) -> RuleResult:
    count = len({frozenset(pair) for pair in pairs})
    return fail(
        f"{count} pair{'s' if count > 1 else ''} of hosts cannot reach each other: the neighbour "
        "table overflowed",
        {name for pair in pairs for name in pair},
        seen=format_pairs(view, matrix, pairs),
        expected="room for every peer, on each network",
        hint=f"on every host: {MORE_NEIGHBOURS}",
    )


def _because(cause: Cause) -> str:
    return f": {cause.value}" if cause.value else ""


@rule("net.asymmetric", "net", Level.QUICK, ReachFacts)
@hint("Open the other direction.")
def _asymmetric(view: View) -> RuleResults:
    """One direction blocked: a stateless filter, a security group without a rule for itself."""
    facts = view.of(ReachFacts)
    yield from alone(view)
    matrix, _ = split_neighbours(view, matrix_of(facts))
    found = blame(matrix.tried, matrix.dead)
    for host in found.hosts:
        if host.direction is Direction.BOTH:
            continue
        inbound = host.direction is Direction.INTO
        way = "nothing reaches" if inbound else "nothing gets out of"
        other = "it reaches the others" if inbound else "others reach it"
        cause = cause_of(chain(*(matrix.edges.get(pair, ()) for pair in host.pairs)))
        rule = (
            f"{'an inbound' if inbound else 'an outbound'} rule at {host.host}; on it: sudo "
            f"iptables -S {'INPUT' if inbound else 'OUTPUT'}; ip rule; in a cloud: the security "
            "group lacks a rule for itself"
        )
        yield fail(
            f"{way} {host.host}, though {other}{_because(cause)}",
            (host.host,),
            seen=format_pairs(view, matrix, host.pairs),
            expected="TCP connections in both directions",
            **or_elsewhere(
                view, rule if cause in SILENT_CAUSES else cure_of(cause, facts, *host.pairs[0])
            ),
        )
    for cause, pairs in by_cause(matrix, found.one_way).items():
        (source, target), *more = pairs
        who = f"{source} cannot reach {target}, though {target} reaches {source}"
        if more:
            who = f"{len(pairs)} pairs of hosts reach each other in one direction only"
        yield fail(
            f"{who}{_because(cause)}",
            {name for pair in pairs for name in pair},
            seen=format_pairs(
                view, matrix, [each for pair in pairs for each in (pair, pair[::-1])]
            ),
            expected="TCP connections in both directions",
            **or_elsewhere(view, cure_of(cause, facts, source, target)),
        )


@rule("net.port_ephemeral", "net", Level.QUICK, ReachFacts)
@hint("Open all TCP ports between the hosts.")
def _ephemeral(view: View) -> RuleResults:
    """Port 29500 is open and training still hangs: the kernel's own range is blocked.

    29500 is open and training still hangs: engines take ports of the kernel's choice.
    """
    facts = view.of(ReachFacts)
    yield from alone(view)
    matrix, _ = split_neighbours(view, matrix_of(facts))
    culprits = {host.host for host in blame(matrix.tried, matrix.dead).hosts}
    partial = {pair: edges for pair, edges in matrix.partial.items() if not culprits & set(pair)}
    if not partial:
        return
    everyone = blame(matrix.tried, partial).everyone
    for name in everyone:
        yield _port_finding(view, name, [p for p in partial if p[1] == name], partial, True)
    for culprit, pairs in cover(() if everyone else partial).items():
        into = any(pair[1] == culprit for pair in pairs)
        yield _port_finding(view, culprit, pairs, partial, into)


def _port_finding(
    view: View,
    host: str,
    pairs: Sequence[Pair],
    partial: Mapping[Pair, tuple[Edge, ...]],
    into: bool,
) -> RuleResult:
    told = [pair for pair in pairs if pair[1] == host] if into else list(pairs)
    edges = [edge for pair in told or pairs for edge in partial[pair]]
    bad = [edge for edge in edges if not edge.ok]
    lost = sorted({edge.port for edge in bad})
    open_ports = sorted({edge.port for edge in edges if edge.ok} - set(lost))
    sources = sorted({edge.source for edge in bad})
    out = sum(not edge.ok for pair in pairs if pair not in told for edge in partial[pair])
    way = f"to {host}" if into else f"from {host}"
    return fail(
        f"{len(bad)} of {len(edges)} connections {way} are lost, others work: some ports are blocked",
        (host,),
        seen=f"lost ({', '.join(sorted({edge.error for edge in bad}))}) from {name_hosts(sources)}: "
        f"{_ports(lost)}\nopen: {_ports(open_ports)}"
        + (f"\nand {out} connections from {host}, by their local ports" if out else ""),
        expected="every port open between the hosts: Gloo, NCCL, MPI and Horovod take any",
        **other_port(bad, open_ports)
        or or_elsewhere(view, through_ports(host, lost, _kernel_ports(edges, lost))),
    )


def _kernel_ports(edges: Sequence[Edge], lost: Sequence[int]) -> list[int]:
    return sorted({edge.port for edge in edges if edge.ok and not edge.fixed} - set(lost))


def _ports(ports: Sequence[int]) -> str:
    if len(ports) <= MAX_LISTED:
        return ", ".join(map(str, ports))
    return f"{len(ports)} ports from {ports[0]} to {ports[-1]}"


@rule("net.nat_src", "net", Level.QUICK, ReachFacts)
@hint("--network host, or a flat network.")
def _nat(view: View) -> RuleResults:
    """Address translation between the hosts: what a rank advertises cannot be reached.

    An address that a peer sees otherwise cannot be advertised to it.
    """
    yield from alone(view)
    seen: dict[str, Edge] = {}
    for found in view.of(ReachFacts).values():
        for edge in found.edges:
            if (
                edge.ok
                and edge.seen_address
                and _plain(edge.seen_address) != _plain(edge.local_address)
            ):
                seen.setdefault(edge.source, edge)
    for source, edge in seen.items():
        yield fail(
            f"{edge.target} sees {source} as {edge.seen_address}, not as {edge.local_address}",
            (source,),
            seen=f"accept on {edge.target}: {edge.seen_address}; getsockname on {source}: "
            f"{edge.local_address}",
            expected="no address translation between the hosts",
            hint="use the hosts' own network (docker: --network host)",
        )


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:").partition("%")[0]


@rule("net.mtu", "net", Level.QUICK, ReachFacts)
@hint("One MTU on the whole way, or net.ipv4.tcp_mtu_probing=1.")
def _mtu(view: View) -> RuleResults:
    """Jumbo frames on a way that does not carry them: 4 KiB all-reduce, 4 MiB hang on both sides.

    Interfaces that believe in larger packets than the way carries: large messages hang.
    """
    facts = view.of(ReachFacts)
    yield from alone(view)
    matrix = matrix_of(facts)
    found = blame([pair for pair in matrix.tried if pair not in matrix.dead], matrix.small_only)
    for host in found.hosts:
        where = f"between {host.host} and its peers"
        yield _mtu_finding(view, where, (host.host,), host.pairs, facts)
    if found.everyone:
        pairs = tuple(matrix.small_only)
        yield _mtu_finding(view, "between all hosts", found.everyone, pairs, facts)
    for one, other in found.links:
        yield _mtu_finding(
            view, f"between {one} and {other}", (one, other), ((one, other),), facts
        )
    for one, other in found.one_way:
        yield _mtu_finding(view, f"from {one} to {other}", (one, other), ((one, other),), facts)


def _mtu_finding(
    view: View,
    where: str,
    hosts: Sequence[str],
    pairs: Sequence[Pair],
    facts: Mapping[str, ReachFacts],
) -> RuleResult:
    nic = facts[hosts[0]].interface or "NIC" if hosts[0] in facts else "NIC"
    peer = facts[pairs[0][1]].address if pairs[0][1] in facts else "PEER"
    return fail(
        f"small messages {where} pass and large ones are lost: the MTU is larger than the way's",
        hosts,
        seen="\n".join(f"{a} -> {b}: pings pass, 32 KiB do not" for a, b in pairs[:MAX_LISTED]),
        expected="messages of any size",
        **or_elsewhere(
            view,
            f"find the size: ping -M do -c1 -s 1472 {peer} (passes), -s 8972 (does not)\n"
            f"then: sudo ip link set {nic} mtu 1500; or let TCP find it: "
            "sudo sysctl net.ipv4.tcp_mtu_probing=1",
        ),
    )


@rule("net.other_networks", "net", Level.STANDARD, ReachFacts)
@hint("Mend it, or keep the engines off it by NCCL_SOCKET_IFNAME and btl_tcp_if_include.")
def _elsewhere(view: View) -> RuleResults:
    """A second network that is up and broken: NCCL and Open MPI pick it all the same.

    NCCL and Open MPI use every network that they find, also one that is broken.
    """
    yield from alone(view)
    by_network: dict[str, list[Edge]] = {}
    for found in view.of(ReachFacts).values():
        for edge in found.elsewhere:
            if edge.error == SILENT:
                continue
            by_network.setdefault(edge.network, []).append(edge)
    for network, edges in by_network.items():
        broken = {(edge.source, edge.target): edge.error for edge in edges if not edge.ok}
        if not broken:
            continue
        found_blame = blame([(edge.source, edge.target) for edge in edges], broken)
        culprits = [*found_blame.everyone, *(host.host for host in found_blame.hosts)]
        culprits += [name for pair in (*found_blame.links, *found_blame.one_way) for name in pair]
        hosts = list(dict.fromkeys(culprits))
        good = next((e.network for f in view.of(ReachFacts).values() for e in f.edges), "")
        yield warn(
            f"connections on {network} fail at {name_hosts(hosts)}; {good or 'another'} works",
            hosts,
            seen="\n".join(f"{a} -> {b}: {error}" for (a, b), error in list(broken.items())[:8]),
            expected="every network that all hosts share works, or engines are kept off it",
            **offer(off_it(view, good)),
        )


RULES = (_reach, _asymmetric, _ephemeral, _mtu, _nat, _elsewhere)
