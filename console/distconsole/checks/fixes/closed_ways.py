"""Why connections between hosts fail, what to do about each, and the ways around: a network, a port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from distconsole.checks.facts.evidence import View, by_key, once_a_view
from distconsole.checks.facts.network import Edge, Matrix, ReachFacts, matrix_of
from distconsole.checks.facts.node import KernelFacts
from distconsole.checks.fixes.cures import BTL, by_run, offer, on_network
from distconsole.checks.gather.addresses import endpoints_in
from distconsole.checks.gather.attribution import Pair
from distconsole.checks.rules.wording import list_some
from distconsole.model.findings import Cure, HostCure

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
