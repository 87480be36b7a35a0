"""One host as a library that looks for an interface sees it, and what it takes there. It looks nowhere itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import NetAddress, NetFacts, NetInterface
from distconsole.checks.facts.node import EnvFacts, OsFacts
from distconsole.model.addresses import Network

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
    """An interface and the address on it that a library takes, and by which of its rules.

    ``address`` is empty where it finds none; ``how`` then says what it does about it.
    """

    interface: str
    address: str
    how: str

    @property
    def loopback(self) -> bool:
        """Whether nobody else can mean this host by the address."""
        try:
            return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback
        except ValueError:
            return False


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
        """Return the same host with ``more`` set for its ranks."""
        return replace(self, variables={**self.variables, **more})

    def running(self, entry: NetAddress) -> bool:
        """Whether the interface of ``entry`` is up and has a carrier."""
        known = self.interfaces.get(entry.iface)
        return entry.up and (known is None or known.state not in NO_CARRIER)

    def owner(self, address: str) -> str:
        """Return the interface that has ``address``; ``lo`` has all of 127/8; else nothing."""
        found = next((each.iface for each in self.addresses if each.address == address), "")
        if found or not Pick("", address, "").loopback:
            return found
        return next((each.iface for each in self.addresses if each.loopback), "lo")

    def networks(self) -> set[Network]:
        """Return the subnets that it has an address in, of interfaces that carry something."""
        usable = (each for each in self.addresses if self.running(each) and not each.loopback)
        return {network for network in map(network_of, usable) if network is not None}

    def network(self, address: str) -> Network | None:
        """Return the subnet of one of its own addresses."""
        return next((network_of(e) for e in self.addresses if e.address == address), None)


def network_of(entry: NetAddress) -> Network | None:
    """Return the subnet of an address; None where it is not one."""
    try:
        return ipaddress.ip_network(f"{entry.address.partition('%')[0]}/{entry.prefix}", False)
    except ValueError:
        return None


def nodes_of(view: View) -> dict[str, Node]:
    """Return the hosts of ``view`` that said what is needed."""
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
    """Add what nccl.conf says; a variable wins over ~/.nccl.conf, and that over /etc/nccl.conf.

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
