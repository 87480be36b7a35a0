"""Checks of group ``net`` on connections between the hosts: why they fail, and a way around.

``attribution`` finds the culprits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import Any

from distconsole.checks.engine.results import NotApplicable, RuleResults, fail, warn
from distconsole.checks.engine.rule import hint, rule, unless_alone
from distconsole.checks.facts.evidence import Outcome, View, by_key, once_a_view
from distconsole.checks.facts.network import SILENT, Edge, Matrix, ReachFacts, matrix_of
from distconsole.checks.facts.node import KernelFacts
from distconsole.checks.fixes.cures import BTL, by_run, offer, on_network
from distconsole.checks.gather.addresses import endpoints_in
from distconsole.checks.gather.attribution import BlamedHost, Direction, Pair, blame, cover
from distconsole.checks.rules.wording import MAX_LISTED, list_some, name_hosts, numbers
from distconsole.model.findings import Cure, Finding, HostCure
from distconsole.model.requests import Level

RECENT_SECONDS = 60.0
"""A line of the kernel's log that is older explains nothing of this check: it comes again and again."""

MORE_NEIGHBOURS = (
    "sudo sysctl -w net.ipv4.neigh.default.gc_thresh3=16384 net.ipv4.neigh.default.gc_thresh2=8192 "
    "net.ipv4.neigh.default.gc_thresh1=4096"
)


class BlockCause(Enum):
    """What keeps a connection from coming about; the value is how a summary says it."""

    BUFFERS = "no buffer space"
    NO_NETWORK = "no route to the network"
    NO_HOST = "no route to the host"
    REFUSED = "refused"
    SILENCE = "no answer"
    OTHER = ""


_BY_CODE = {
    "ENOBUFS": BlockCause.BUFFERS,
    "ENETUNREACH": BlockCause.NO_NETWORK,
    "EHOSTUNREACH": BlockCause.NO_HOST,
    "ECONNREFUSED": BlockCause.REFUSED,
    "ETIMEDOUT": BlockCause.SILENCE,
}
_BY_WORD = {
    "no_route": BlockCause.NO_HOST,
    "refused": BlockCause.REFUSED,
    "timeout": BlockCause.SILENCE,
}
"""For answers of an agent that gives no code, and for a timeout of its own."""

_BY_NEIGHBOURS = frozenset({BlockCause.BUFFERS, BlockCause.NO_HOST, BlockCause.SILENCE})
"""How connections fail that find no room in the neighbour table."""


def cause_of(edges: Iterable[Edge]) -> BlockCause:
    """Return why most of those ``edges`` failed that did; of as many, what says more than silence."""
    each = Counter(
        _BY_CODE.get(edge.errno) or _BY_WORD.get(edge.error, BlockCause.OTHER)
        for edge in edges
        if not edge.ok
    )
    return max(
        each,
        key=lambda cause: (each[cause], cause is not BlockCause.SILENCE),
        default=BlockCause.OTHER,
    )


@once_a_view
def split_neighbours(view: View) -> tuple[Matrix, tuple[Pair, ...]]:
    """Return the pairs of ``view`` without those that found no room in a neighbour table, and these."""
    matrix = matrix_of(view)
    full = overflows(view)
    crowded = {
        pair: edges
        for pair, edges in {**matrix.dead, **matrix.partial}.items()
        if full.keys() & set(pair) and cause_of(edges) in _BY_NEIGHBOURS
    }
    rest = replace(
        matrix,
        tried=tuple(pair for pair in matrix.tried if pair not in crowded),
        dead={pair: edges for pair, edges in matrix.dead.items() if pair not in crowded},
        partial={pair: edges for pair, edges in matrix.partial.items() if pair not in crowded},
    )
    return rest, tuple(crowded)


def by_cause(matrix: Matrix, pairs: Iterable[Pair]) -> dict[BlockCause, list[Pair]]:
    """Return the pairs of each cause: what has one cause is one fault."""
    edges = matrix.edges
    return by_key(
        (cause_of((*edges.get(pair, ()), *edges.get(pair[::-1], ()))), pair) for pair in pairs
    )


@once_a_view
def overflows(view: View) -> Mapping[str, str]:
    """Return by host the line of the kernel's log that says that the neighbour table is full."""
    return {
        name: event.text
        for name, facts in view.of(KernelFacts).items()
        for event in facts.events
        if event.kind == "neighbours" and event.age_seconds < RECENT_SECONDS
    }


def cure_of(cause: BlockCause, facts: Mapping[str, ReachFacts], source: str, target: str) -> str:
    there = facts[target].address if target in facts else target
    here = facts[source].address if source in facts else "PEER"
    look = f"on {source}: ip route get {there}; ip neigh show {there}"
    rules = f"on {target}: sudo iptables -S INPUT; sudo nft list ruleset"
    match cause:
        case BlockCause.BUFFERS:
            return (
                f"on {source}: sudo dmesg | grep -i neigh; where the neighbour table overflowed: "
                f"{MORE_NEIGHBOURS}\nelse the kernel has no memory for packets: "
                "nstat -az TcpMemoryPressures; sysctl net.ipv4.tcp_mem"
            )
        case BlockCause.NO_NETWORK:
            return f"{look.partition(';')[0]}; ip -br address: a route or the interface is missing"
        case BlockCause.NO_HOST:
            return (
                f"{look}\nunreachable, or an error: the route on {source} is wrong\nFAILED or INCOMPLETE: {target} is down there (on it: ip -br address), or the "
                "neighbour table is full (sudo dmesg | grep -i neigh)\n"
                f"REACHABLE: a firewall rejects, as firewalld does; {rules}"
            )
        case BlockCause.REFUSED:
            return (
                f"{target} listens there, so a rule rejects (-j REJECT); {rules}\n"
                f"or another machine has the address {there}; {look}"
            )
        case BlockCause.SILENCE | BlockCause.OTHER:
            return (
                f"on {target}: sudo iptables -S INPUT; what is dropped there is let in by sudo iptables "
                f"-I INPUT -s {here} -j ACCEPT\n"
                "where no rule does it, something between them: a switch or a VLAN; in a cloud the "
                "security group, which must allow all TCP from itself"
            )


def format_pairs(view: View, matrix: Matrix, pairs: Sequence[Pair]) -> str:
    """Return the evidence: the errors of ``pairs``, and the kernels' logs."""
    lines = []
    for pair in pairs:
        errors = sorted(
            {
                (f"{edge.error} ({edge.errno})" if edge.errno else edge.error)
                for edge in matrix.edges.get(pair, ())
                if edge.error
            }
        )
        lines.append(f"{pair[0]} -> {pair[1]}: {', '.join(errors) or 'ok'}")
    names = {name for pair in pairs for name in pair}
    full = [f"kernel's log on {n}: {text}" for n, text in overflows(view).items() if n in names]
    return "\n".join(filter(None, [list_some(lines), *full[:2]]))


def or_elsewhere(view: View, hint: str) -> dict[str, Any]:
    network, cure = _working_network(view)
    return {"hint": hint} if cure is None else offer(cure, hint, f"or by {network}, which works")


@once_a_view
def _working_network(view: View) -> tuple[str, Cure | None]:
    found = view.of(ReachFacts).values()
    edges = by_key((edge.network, edge) for facts in found for edge in facts.elsewhere)
    everyone = len(view.everyone)
    for network, tried in edges.items():
        there = endpoints_in(view, network)
        pairs = {(edge.source, edge.target) for edge in tried}
        whole = len(pairs) == everyone * (everyone - 1) and len(there) == everyone
        if whole and all(edge.ok and edge.bulk is not False for edge in tried):
            nics = {name: HostCure(nic=each.interface or "") for name, each in there.items()}
            return network, Cure(hosts=nics)
    return "", None


def other_port(lost: Sequence[Edge], open_ports: Sequence[int]) -> dict[str, Any]:
    """Return hint and cure where nothing but the fixed port is blocked: another port."""
    if not open_ports or not all(edge.fixed for edge in lost):
        return {}
    cure = Cure(port=open_ports[0], by_run="takes a port of the kernel's choice")
    hint = f"allow TCP port {lost[0].port} between the hosts: sudo iptables -S"
    return offer(cure, hint)


def through_ports(host: str) -> str:
    """Return the remedy if a host cannot be reached on some ephemeral ports."""
    return (
        f"allow all TCP between the hosts; on {host}: sudo iptables -S\n"
        f"or keep the kernel off them: sysctl net.ipv4.ip_local_port_range on {host}\n"
        "without root there is no way round it: torch's Gloo, NCCL and Horovod have no setting for the ports that "
        "they take; mpirun has (--mca btl_tcp_port_min_v4 FIRST --mca oob_tcp_dynamic_ipv4_ports FROM-TO)"
    )


def off_it(view: View, good: str) -> Cure:
    """Return what keeps engines on the network ``good``."""
    nics = {name: found.interface for name, found in view.of(ReachFacts).items()}
    return Cure(
        mca=on_network(good) if good else {},
        hosts={
            name: HostCure(env={"NCCL_SOCKET_IFNAME": f"={nic}"})
            for name, nic in nics.items()
            if nic
        },
        by_run=by_run(view, (BTL, "NCCL_SOCKET_IFNAME"), "names the network to each of them"),
    )


SILENT_CAUSES = (BlockCause.SILENCE, BlockCause.OTHER)
"""Causes that the system's code does not tell apart."""


@hint("Open all TCP between the hosts.")
@rule("net.reach_tcp", "net", Level.QUICK, ReachFacts, unless=unless_alone)
def _reach(view: View) -> RuleResults:
    """Hosts that cannot connect to each other: a firewall, a dead interface, a wrong network."""
    facts = view.of(ReachFacts)
    for name, own in facts.items():
        if own.listen_error:
            why = f"could not listen on {own.address}: {own.listen_error}"
            yield NotApplicable(why, (name,), Outcome.COULD_NOT_RUN)
    matrix, crowded = split_neighbours(view)
    if crowded:
        count = len({frozenset(pair) for pair in crowded})
        yield fail(
            f"{count} pair{'s' if count > 1 else ''} of hosts cannot reach each other: the neighbour "
            "table overflowed",
            {name for pair in crowded for name in pair},
            seen=format_pairs(view, matrix, crowded),
            expected="room for every peer, on each network",
            hint=f"on every host: {MORE_NEIGHBOURS}",
        )
    silent = tuple(dict.fromkeys(target for _, target in matrix.unsure))
    why = "connections to it come about and nobody there answers in time: it is busy"
    yield NotApplicable(why, silent, Outcome.TIMED_OUT)
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
        yield _fail_pairs(view, matrix, cause, pairs, f"{who} cannot reach each other")


def _fail_pairs(
    view: View, matrix: Matrix, cause: BlockCause, pairs: Sequence[Pair], summary: str
) -> Finding:
    return fail(
        f"{summary}{_because(cause)}",
        {name for pair in pairs for name in pair},
        seen=format_pairs(view, matrix, [way for pair in pairs for way in (pair, pair[::-1])]),
        expected="a TCP connection in both directions",
        **or_elsewhere(view, cure_of(cause, view.of(ReachFacts), *pairs[0])),
    )


def _dead_host(
    view: View, host: BlamedHost, facts: Mapping[str, ReachFacts], matrix: Matrix
) -> Finding:
    address = facts[host.host].address if host.host in facts else ""
    cause = _cause_at(host, matrix)
    peers = [name for pair in host.pairs for name in pair if name != host.host]
    known = [facts[name].address for name in peers if name in facts]
    hint = (
        f"a firewall or a wrong network at {host.host}; on it: sudo iptables -S; "
        f"ip -br address; ip route get {known[0] if known else 'PEER'}"
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


def _cause_at(host: BlamedHost, matrix: Matrix) -> BlockCause:
    return cause_of(chain(*(matrix.edges.get(pair, ()) for pair in host.pairs)))


def _because(cause: BlockCause) -> str:
    return f": {cause.value}" if cause.value else ""


@hint("Open the other direction.")
@rule("net.asymmetric", "net", Level.QUICK, ReachFacts, unless=unless_alone)
def _asymmetric(view: View) -> RuleResults:
    """One direction blocked: a stateless filter, a security group without a rule for itself."""
    facts = view.of(ReachFacts)
    matrix, _ = split_neighbours(view)
    found = blame(matrix.tried, matrix.dead)
    for host in found.hosts:
        if host.direction is Direction.BOTH:
            continue
        inbound = host.direction is Direction.INTO
        way = "nothing reaches" if inbound else "nothing gets out of"
        other = "it reaches the others" if inbound else "others reach it"
        cause = _cause_at(host, matrix)
        rule = (
            f"{'an inbound' if inbound else 'an outbound'} rule at {host.host}; on it: sudo "
            f"iptables -S {'INPUT' if inbound else 'OUTPUT'}; ip rule; in a cloud: the security "
            "group lacks a rule for itself"
        )
        hint = rule if cause in SILENT_CAUSES else cure_of(cause, facts, *host.pairs[0])
        yield fail(
            f"{way} {host.host}, though {other}{_because(cause)}",
            (host.host,),
            seen=format_pairs(view, matrix, host.pairs),
            expected="TCP connections in both directions",
            **or_elsewhere(view, hint),
        )
    for cause, pairs in by_cause(matrix, found.one_way).items():
        (source, target), *more = pairs
        who = f"{source} cannot reach {target}, though {target} reaches {source}"
        if more:
            who = f"{len(pairs)} pairs of hosts reach each other in one direction only"
        yield _fail_pairs(view, matrix, cause, pairs, who)


@hint("Open all TCP ports between the hosts.")
@rule("net.port_ephemeral", "net", Level.QUICK, ReachFacts, unless=unless_alone)
def _ephemeral(view: View) -> RuleResults:
    """Port 29500 is open and training still hangs: the kernel's own range is blocked."""
    matrix, _ = split_neighbours(view)
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
) -> Finding:
    told = [pair for pair in pairs if pair[1] == host] if into else list(pairs)
    edges = [edge for pair in told or pairs for edge in partial[pair]]
    bad = [edge for edge in edges if not edge.ok]
    lost = sorted({edge.port for edge in bad})
    open_ports = sorted({edge.port for edge in edges if edge.ok} - set(lost))
    sources = sorted({edge.source for edge in bad})
    errors = ", ".join(sorted({edge.error for edge in bad}))
    out = sum(not edge.ok for pair in pairs if pair not in told for edge in partial[pair])
    lines = [f"lost ({errors}) from {name_hosts(sources)}: {_ports(lost)}"]
    lines += [f"open: {_ports(open_ports)}"]
    lines += [f"and {out} connections from {host}, by their local ports"] if out else []
    return fail(
        f"{len(bad)} of {len(edges)} connections {'to' if into else 'from'} {host} are lost, others "
        "work: some ports are blocked",
        (host,),
        seen="\n".join(lines),
        expected="every port open between the hosts: Gloo, NCCL, MPI and Horovod take any",
        **other_port(bad, open_ports) or or_elsewhere(view, through_ports(host)),
    )


def _ports(ports: Sequence[int]) -> str:
    if len(ports) <= MAX_LISTED:
        return numbers(ports)
    return f"{len(ports)} ports from {ports[0]} to {ports[-1]}"


@hint("One MTU on the whole way, or net.ipv4.tcp_mtu_probing=1.")
@rule("net.mtu", "net", Level.QUICK, ReachFacts, unless=unless_alone)
def _mtu(view: View) -> RuleResults:
    """Jumbo frames on a way that does not carry them: 4 KiB all-reduce, 4 MiB hang on both sides."""
    matrix = matrix_of(view)
    found = blame([pair for pair in matrix.tried if pair not in matrix.dead], matrix.small_only)
    for host in found.hosts:
        where = f"between {host.host} and its peers"
        yield _mtu_finding(view, where, (host.host,), host.pairs)
    if found.everyone:
        yield _mtu_finding(view, "between all hosts", found.everyone, tuple(matrix.small_only))
    for pair in (*found.links, *found.one_way):
        one, other = ("between", "and") if pair in found.links else ("from", "to")
        yield _mtu_finding(view, f"{one} {pair[0]} {other} {pair[1]}", pair, (pair,))


def _mtu_finding(view: View, where: str, hosts: Sequence[str], pairs: Sequence[Pair]) -> Finding:
    facts = view.of(ReachFacts)
    nic = facts[hosts[0]].interface or "NIC" if hosts[0] in facts else "NIC"
    peer = facts[pairs[0][1]].address if pairs[0][1] in facts else "PEER"
    return fail(
        f"small messages {where} pass and large ones are lost: the MTU is larger than the way's",
        hosts,
        seen=list_some([f"{a} -> {b}: pings pass, 32 KiB do not" for a, b in pairs]),
        expected="messages of any size",
        **or_elsewhere(
            view,
            f"find the size: ping -M do -c1 -s 1472 {peer} (passes), -s 8972 (does not)\n"
            f"then: sudo ip link set {nic} mtu 1500; or let TCP find it: "
            "sudo sysctl net.ipv4.tcp_mtu_probing=1",
        ),
    )


@hint("--network host, or a flat network.")
@rule("net.nat_src", "net", Level.QUICK, ReachFacts, unless=unless_alone)
def _nat(view: View) -> RuleResults:
    """Address translation between the hosts: what a rank advertises cannot be reached."""
    seen: dict[str, Edge] = {}
    for edge in (edge for found in view.of(ReachFacts).values() for edge in found.edges):
        changed = edge.seen_address and _plain(edge.seen_address) != _plain(edge.local_address)
        if edge.ok and changed:
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


@hint("Mend it, or keep the engines off it by NCCL_SOCKET_IFNAME and btl_tcp_if_include.")
@rule("net.other_networks", "net", Level.STANDARD, ReachFacts, unless=unless_alone)
def _elsewhere(view: View) -> RuleResults:
    """A second network that is up and broken: NCCL and Open MPI pick it all the same."""
    facts = view.of(ReachFacts).values()
    good = next((edge.network for found in facts for edge in found.edges), "")
    elsewhere = (edge for found in facts for edge in found.elsewhere if edge.error != SILENT)
    by_network = by_key((edge.network, edge) for edge in elsewhere)
    for network, edges in by_network.items():
        broken = {(edge.source, edge.target): edge.error for edge in edges if not edge.ok}
        if not broken:
            continue
        hosts = blame([(edge.source, edge.target) for edge in edges], broken).culprits
        yield warn(
            f"connections on {network} fail at {name_hosts(hosts)}; {good or 'another'} works",
            hosts,
            seen=list_some([f"{a} -> {b}: {error}" for (a, b), error in broken.items()]),
            expected="every network that all hosts share works, or engines are kept off it",
            **offer(off_it(view, good)),
        )
