"""Whether one host can reach an address that a library of another will wait at."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import SILENT, ReachFacts
from distconsole.checks.gather.addresses import machines
from distconsole.checks.interfaces.node import Fault, Node
from distconsole.model.addresses import Ip


@dataclass(frozen=True, slots=True)
class Way:
    """From a host to an address of another: ``open`` is None where nothing tells."""

    open: bool | None
    fault: Fault | None = None
    why: str = ""


OPEN = Way(True)
UNKNOWN = Way(None, None, "another network, and nobody tried it")


@dataclass(frozen=True, slots=True)
class Around:
    """All ways to one address: those that are shut, one that nobody knows, and how many there are."""

    shut: Mapping[str, Way]
    unknown: Way | None
    peers: int


def summarize(ways: Mapping[str, Way]) -> Around:
    """Return the ways from each peer together."""
    shut = {peer: way for peer, way in ways.items() if way.open is False}
    unknown = next((way for way in ways.values() if way.open is None), None)
    return Around(shut, unknown, len(ways))


@dataclass(slots=True)
class Ways:
    """What is known of the ways between hosts: connections that were tried, else subnets and routes."""

    nodes: Mapping[str, Node]
    machine_of: Mapping[str, object]
    tried: Mapping[tuple[str, str, str], str]
    """Source, target and address -> the error; empty where a connection succeeded."""
    _own: dict[str, set[str]] = field(default_factory=dict)
    _networks: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    _known: dict[tuple[str, str, str], Way] = field(default_factory=dict)
    _around: dict[tuple[str, str], Around] = field(default_factory=dict)

    def around(self, target: str, address: str) -> Around:
        """Return all ways to ``address`` of ``target``."""
        key = (target, address)
        if key not in self._around:
            peers = [peer for peer in self.nodes if peer != target]
            self._around[key] = summarize({p: self.way(p, target, address) for p in peers})
        return self._around[key]

    def way(self, source: str, target: str, address: str) -> Way:
        """Return the way from ``source`` to ``address`` of ``target``."""
        key = (source, target, address)
        if key not in self._known:
            self._known[key] = self._way(source, target, address)
        return self._known[key]

    def _way(self, source: str, target: str, address: str) -> Way:
        if self.machine_of.get(source) == self.machine_of.get(target):
            return OPEN
        ip = ip_of(address)
        if ip is None:
            return Way(False, Fault.NONE_FOUND, f"{target} has no address for it")
        if ip.is_loopback:
            return Way(False, Fault.LOOPBACK, f"{address} is loopback: it means every host itself")
        if address in self._addresses_of(source):
            return Way(False, Fault.TWICE, f"{source} has {address}, too, and would reach itself")
        error = self.tried.get((source, target, address))
        if error is not None:
            return Way(False, Fault.SILENT, f"{source} -> {address}: {error}") if error else OPEN
        theirs = next((e for e in self.nodes[target].addresses if e.address == address), None)
        if theirs is not None and not self.nodes[target].running(theirs):
            return Way(False, Fault.SILENT, f"{theirs.iface} of {target} has no carrier")
        number = int(ip)
        if any(
            version == ip.version and number & mask == network
            for version, network, mask in self._networks_of(source)
        ):
            return OPEN
        routes = self.nodes[source].routes
        if address in routes and routes[address] is None:
            return Way(False, Fault.APART, f"{source} has no route to {address}")
        return UNKNOWN

    def _addresses_of(self, name: str) -> set[str]:
        if name not in self._own:
            self._own[name] = {each.address for each in self.nodes[name].addresses}
        return self._own[name]

    def _networks_of(self, name: str) -> list[tuple[int, int, int]]:
        """Return version, network and mask of each subnet of a host, as numbers."""
        if name not in self._networks:
            self._networks[name] = [
                (each.version, int(each.network_address), int(each.netmask))
                for each in self.nodes[name].networks()
            ]
        return self._networks[name]


def ways_of(view: View, nodes: Mapping[str, Node]) -> Ways:
    """Return what ``view`` knows of the ways between ``nodes``."""
    tried: dict[tuple[str, str, str], str] = {}
    for found in view.of(ReachFacts).values():
        for edge in (*found.edges, *found.elsewhere, *found.chosen):
            if edge.error == SILENT:
                continue
            key = (edge.source, edge.target, edge.address)
            # One port that answers is a way: what firewalls do to ports is told elsewhere.
            tried[key] = "" if edge.ok else tried.get(key, edge.error)
    return Ways(nodes, machines(view), tried)


@lru_cache(maxsize=8192)
def ip_of(address: str) -> Ip | None:
    """Return an address as a value; None where it is not one."""
    try:
        return ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
