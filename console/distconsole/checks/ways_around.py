"""Cures for connections that fail: another network of the same hosts, another port. They are not tried here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distconsole.checks.addresses import endpoints_in
from distconsole.checks.cures import BTL, by_run, on_network, with_cure
from distconsole.checks.evidence import View
from distconsole.checks.net_facts import Edge, ReachFacts
from distconsole.model.findings import Cure, HostCure


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
            return {"hint": with_cure(hint, cure, f"or by {network}, which works"), "cure": cure}
    return {"hint": hint}


def other_port(lost: Sequence[Edge], open_ports: Sequence[int]) -> dict[str, Any]:
    """Return hint and cure where nothing but the fixed port is blocked: another port."""
    if not open_ports or not all(edge.fixed for edge in lost):
        return {}
    cure = Cure(port=open_ports[0], by_run="takes a port of the kernel's choice")
    hint = f"allow TCP port {lost[0].port} between the hosts: sudo iptables -S"
    return {"hint": with_cure(hint, cure), "cure": cure}


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
