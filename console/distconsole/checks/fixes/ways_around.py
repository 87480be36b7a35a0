"""Cures for connections that fail: another network of the same hosts, another port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import Edge, ReachFacts
from distconsole.checks.fixes.cures import BTL, by_run, offer, on_network
from distconsole.checks.gather.addresses import endpoints_in
from distconsole.model.findings import Cure, HostCure

LEAST_PORTS = 1000
"""A job of many ranks takes hundreds of ports on a host."""


def or_elsewhere(view: View, hint: str) -> dict[str, Any]:
    """Return the hint, and as a cure another network that works between all hosts, if there is one."""
    found = view.of(ReachFacts)
    edges: dict[str, list[Edge]] = {}
    for edge in (edge for facts in found.values() for edge in facts.elsewhere):
        edges.setdefault(edge.network, []).append(edge)
    everyone = len(view.everyone)
    for network, tried in edges.items():
        there = endpoints_in(view, network)
        pairs = {(edge.source, edge.target) for edge in tried}
        whole = len(pairs) == everyone * (everyone - 1) and len(there) == everyone
        if whole and all(edge.ok and edge.bulk is not False for edge in tried):
            cure = Cure(hosts={name: HostCure(nic=e.interface or "") for name, e in there.items()})
            return offer(cure, hint, f"or by {network}, which works")
    return {"hint": hint}


def other_port(lost: Sequence[Edge], open_ports: Sequence[int]) -> dict[str, Any]:
    """Return hint and cure where nothing but the fixed port is blocked: another port."""
    if not open_ports or not all(edge.fixed for edge in lost):
        return {}
    cure = Cure(port=open_ports[0], by_run="takes a port of the kernel's choice")
    hint = f"allow TCP port {lost[0].port} between the hosts: sudo iptables -S"
    return offer(cure, hint)


def through_ports(host: str, lost: Sequence[int], open_ports: Sequence[int]) -> str:
    """Return what to do where a host cannot be reached on some ports of the kernel's choice."""
    lines = [f"allow all TCP between the hosts; on {host}: sudo iptables -S"]
    low, high = _widest(lost, open_ports)
    if high - low < LEAST_PORTS:
        lines.append(f"or keep the kernel off them: sysctl net.ipv4.ip_local_port_range on {host}")
    else:
        lines.append(
            f"or keep the kernel to ports of which both ends were reached, on {host}: "
            f'sudo sysctl -w net.ipv4.ip_local_port_range="{low} {high}"'
        )
    ports = f"{low} --mca btl_tcp_port_range_v4 {high - low}" if high > low else "FIRST"
    lines.append(
        "without root there is no way round it: torch's Gloo, NCCL and Horovod have no setting for the ports that "
        f"they take; mpirun has (--mca btl_tcp_port_min_v4 {ports} "
        "--mca oob_tcp_dynamic_ipv4_ports FROM-TO)"
    )
    return "\n".join(lines)


def _widest(lost: Sequence[int], open_ports: Sequence[int]) -> tuple[int, int]:
    """Return the first and last port of the widest stretch of ``open_ports`` without one that was lost."""
    best, first = (0, 0), 0
    bad = set(lost)
    for port in sorted({*lost, *open_ports}):
        if port in bad:
            first = 0
            continue
        first = first or port
        best = max(best, (first, port), key=lambda ends: ends[1] - ends[0])
    return best


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
