"""A host's interfaces for a library that chooses one, its choice, and whether other hosts reach that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain

from distconsole.checks.facts.evidence import View, once_a_view
from distconsole.checks.facts.network import (
    SILENT,
    EnvFacts,
    NetAddress,
    NetFacts,
    NetInterface,
    ReachFacts,
)
from distconsole.checks.facts.node import OsFacts
from distconsole.checks.gather.addresses import machines, partners
from distconsole.model.addresses import Network, ip_of

NO_CARRIER = ("down", "lowerlayerdown", "notpresent")
"""States of /sys/class/net/NAME/operstate in which the kernel does not set IFF_RUNNING."""


class Fault(StrEnum):
    """Why a choice cannot be reached."""

    NONE_FOUND = "none_found"
    LOOPBACK = "loopback"
    TWICE = "twice"
    SILENT = "silent"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class Pick:
    """An interface and address that a library takes, by which rule; without one, ``how`` says what then."""

    interface: str
    address: str
    how: str


@dataclass(frozen=True, slots=True)
class Node:
    """A host's addresses in the order of getifaddrs(3), its variables and what its own name means to it.

    Attributes:
        addresses: As the kernel lists them: IPv4 of all interfaces, then IPv6; getifaddrs(3) of glibc
            and the agent ask it by the same netlink message.
        variables: As a rank would get them.
        parameters: Of Open MPI, from its files.
        named: The addresses of its own name that it can bind, in the resolver's order.
    """

    name: str
    addresses: tuple[NetAddress, ...] = ()
    interfaces: Mapping[str, NetInterface] = field(default_factory=dict)
    routes: Mapping[str, str | None] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    infiniband: tuple[str, ...] = ()

    def with_variables(self, more: Mapping[str, str]) -> Node:
        return replace(self, variables={**self.variables, **more})

    def running(self, entry: NetAddress) -> bool:
        known = self.interfaces.get(entry.iface)
        return entry.up and (known is None or known.state not in NO_CARRIER)

    def owner(self, address: str) -> str:
        """Return the interface that has ``address``; ``lo`` has all of 127/8; else nothing."""
        found = next((each.iface for each in self.addresses if each.address == address), "")
        ip = ip_of(address)
        if found or ip is None or not ip.is_loopback:
            return found
        return next((each.iface for each in self.addresses if each.loopback), "lo")

    def networks(self) -> frozenset[Network]:
        """Return the subnets that it has an address in, of interfaces that carry something."""
        usable = (each for each in self.addresses if self.running(each) and not each.loopback)
        return frozenset(network for each in usable if (network := each.network) is not None)

    def network(self, address: str) -> Network | None:
        return next((e.network for e in self.addresses if e.address == address), None)


@once_a_view
def nodes_of(view: View) -> Mapping[str, Node]:
    nets, systems, environments = view.of(NetFacts), view.of(OsFacts), view.of(EnvFacts)
    return {
        name: Node(
            name=name,
            addresses=net.addresses,
            interfaces=net.interfaces,
            routes=net.routes,
            variables=_add_nccl_files(environments[name]),
            parameters=_assignments(chain(*environments[name].parameters.values())),
            named=tuple(e.address for e in systems[name].resolution.addresses if e.bindable),
            infiniband=systems[name].infiniband,
        )
        for name, net in nets.items()
        if name in systems and name in environments
    }


def _add_nccl_files(facts: EnvFacts) -> dict[str, str]:
    """Add what nccl.conf says; a variable wins over the user's file, and that over /etc/nccl.conf.

    param.cc of NCCL: ``initEnv`` reads the user's file first, and ``setenv`` keeps what is there.
    """
    found: dict[str, str] = {}
    for path, lines in facts.files.items():
        said = _assignments(lines)
        found = {**found, **said} if path != "/etc/nccl.conf" else {**said, **found}
    return {**found, **facts.variables}


def _assignments(lines: Iterable[str]) -> dict[str, str]:
    """Return ``NAME = value`` lines; later ones win."""
    parts = (line.partition("#")[0].partition("=") for line in lines)
    return {
        name.strip(): value.strip() for name, equals, value in parts if equals and name.strip()
    }


@dataclass(frozen=True, slots=True)
class HostWay:
    """From a host to an address of another: ``open`` is None where nothing tells."""

    open: bool | None
    fault: Fault | None = None
    why: str = ""


OPEN = HostWay(True)
UNKNOWN = HostWay(None, None, "another network, and nobody tried it")


@dataclass(frozen=True, slots=True)
class Around:
    """All connections to one address: broken ones, an unknown one, and their number."""

    shut: Mapping[str, HostWay]
    unknown: HostWay | None
    peers: int


def summarize(ways: Mapping[str, HostWay]) -> Around:
    shut = {peer: way for peer, way in ways.items() if way.open is False}
    unknown = next((way for way in ways.values() if way.open is None), None)
    return Around(shut, unknown, len(ways))


@dataclass(slots=True)
class Ways:
    """Connections between hosts: tried ones, else subnets and routes."""

    nodes: Mapping[str, Node]
    machine_of: Mapping[str, object]
    tried: Mapping[tuple[str, str, str], str]
    """Source, target and address -> the error; empty if a connection succeeded."""
    _addresses: dict[str, dict[str, NetAddress]] = field(init=False)
    _networks: dict[str, frozenset[Network]] = field(init=False)
    _inside: dict[tuple[str, frozenset[Network]], bool] = field(default_factory=dict)
    _names: list[str] = field(init=False)
    _places: dict[str, int] = field(init=False)
    _known: dict[tuple[str, str, str], HostWay] = field(default_factory=dict)
    _around: dict[tuple[str, str], Around] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._addresses = {
            name: {each.address: each for each in reversed(node.addresses)}
            for name, node in self.nodes.items()
        }
        self._networks = {name: node.networks() for name, node in self.nodes.items()}
        self._names = list(self.nodes)
        self._places = {name: place for place, name in enumerate(self._names)}

    def around(self, target: str, address: str) -> Around:
        key = (target, address)
        if key not in self._around:
            peers = self.partners(target)
            self._around[key] = summarize({p: self.way(p, target, address) for p in peers})
        return self._around[key]

    def partners(self, name: str) -> list[str]:
        return partners(self._names, self._places[name])

    def way(self, source: str, target: str, address: str) -> HostWay:
        key = (source, target, address)
        if key not in self._known:
            self._known[key] = self._way(source, target, address)
        return self._known[key]

    def _way(self, source: str, target: str, address: str) -> HostWay:
        if self.machine_of.get(source) == self.machine_of.get(target):
            return OPEN
        ip = ip_of(address)
        if ip is None:
            return HostWay(False, Fault.NONE_FOUND, f"{target} has no address for it")
        if ip.is_loopback:
            return HostWay(
                False, Fault.LOOPBACK, f"{address} is loopback: it means every host itself"
            )
        if address in self._addresses[source]:
            return HostWay(
                False, Fault.TWICE, f"{source} has {address}, too, and would reach itself"
            )
        error = self.tried.get((source, target, address))
        if error is not None:
            return (
                HostWay(False, Fault.SILENT, f"{source} -> {address}: {error}") if error else OPEN
            )
        theirs = self._addresses[target].get(address)
        if theirs is not None and not self.nodes[target].running(theirs):
            return HostWay(False, Fault.SILENT, f"{theirs.iface} of {target} has no carrier")
        key = address, self._networks[source]
        if key not in self._inside:
            self._inside[key] = any(ip in network for network in key[1])
        if self._inside[key]:
            return OPEN
        routes = self.nodes[source].routes
        if address in routes and routes[address] is None:
            return HostWay(False, Fault.APART, f"{source} has no route to {address}")
        return UNKNOWN


def ways_of(view: View, nodes: Mapping[str, Node]) -> Ways:
    tried: dict[tuple[str, str, str], str] = {}
    for found in view.of(ReachFacts).values():
        for edge in (*found.edges, *found.elsewhere, *found.chosen):
            if edge.error == SILENT:
                continue
            key = (edge.source, edge.target, edge.address)
            # One port that answers suffices: findings on firewalled ports are separate.
            tried[key] = "" if edge.ok else tried.get(key, edge.error)
    return Ways(nodes, machines(view), tried)
