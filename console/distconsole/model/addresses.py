"""Which subnet hosts share for training traffic: a pure choice for launcher and checks."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

VIRTUAL_PREFIXES = (
    *("docker", "br-", "veth", "virbr", "vnet", "cni", "flannel", "cali", "lxc", "lxd"),
    *("podman", "kube", "cilium", "dummy", "ifb", "sit", "tunl", "gre", "erspan", "ip6tnl"),
)
"""Interfaces of containers and virtual machines; nothing of theirs is reachable from outside."""

LOOPBACK = "127.0.0.1"

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_virtual(interface: str) -> bool:
    return interface.startswith(VIRTUAL_PREFIXES)


def machine_of(boot_id: str, network: str, addresses: Iterable[str]) -> tuple[str, object]:
    """Return the identity of a machine's kernel and network, by ``addresses`` if an older agent names no network."""
    return boot_id, network or frozenset(addresses)


@lru_cache(maxsize=8192)
def ip_of(address: str) -> Ip | None:
    """Return an address, without its zone, as a value; None for other text."""
    try:
        return ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None


@lru_cache(maxsize=8192)
def network_of(address: str, prefix: int | str) -> Network | None:
    """Return the subnet; None if the address or the prefix is not one."""
    try:
        return ipaddress.ip_network(f"{address.partition('%')[0]}/{prefix}", strict=False)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of a host, as its agent lists it."""

    name: str
    address: str
    prefix: int
    up: bool = True
    loopback: bool = False

    @property
    def ip(self) -> Ip | None:
        return ip_of(self.address)

    @property
    def network(self) -> Network | None:
        return network_of(self.address, self.prefix)

    @property
    def usable(self) -> bool:
        ip = self.ip
        return (
            ip is not None
            and self.up
            and not (self.loopback or ip.is_loopback or ip.is_link_local or ip.is_unspecified)
            and not is_virtual(self.name)
        )


def gloo_connects(own: str, other: str) -> bool:
    """Whether of two of Gloo's ends it is the one at ``own`` that connects, and not the one at ``other``.

    The end with the higher address connects and the other one listens (``Device::isInitiator`` in
    gloo/transport/tcp/device.cc; of equal addresses the port decides). So the listening address of a
    single host matters only if another's is higher: one at 127.0.1.1 gets by among 10.0.0.0/8,
    and none does in 172.16.0.0/12 or 192.168.0.0/16.
    """
    one, two = ip_of(own), ip_of(other)
    return one is None or two is None or one.version != two.version or one.packed >= two.packed


def shared_networks(candidates: Mapping[str, Sequence[Interface]]) -> list[Network]:
    """Return the subnets in which every host has an address, in the order of the first host's."""
    per_host = [
        list(dict.fromkeys(n for n in (item.network for item in interfaces) if n is not None))
        for interfaces in candidates.values()
    ]
    if not per_host:
        return []
    return [network for network in per_host[0] if all(network in other for other in per_host)]


def best_subnet(
    candidates: Mapping[str, Sequence[Interface]],
    reached_at: Mapping[str, str],
    clash: Callable[[Mapping[str, Interface]], bool],
) -> dict[str, Interface]:
    """Return each host's address in the best subnet that all share; empty if there is none.

    IPv4 is preferred (rendezvous of engines know it best), then the subnet in which most hosts were
    reached, then the order of the first host's interfaces.

    Args:
        candidates: By host, the addresses that others could reach.
        reached_at: By host, the address that our connection went to.
        clash: Whether different machines have one address in a choice, as container bridges do.
    """
    best: tuple[tuple[int, int, int], dict[str, Interface]] | None = None
    for order, network in enumerate(shared_networks(candidates)):
        chosen = {
            name: next(item for item in interfaces if item.network == network)
            for name, interfaces in candidates.items()
        }
        if clash(chosen):
            continue
        reached = sum(item.address == reached_at.get(name) for name, item in chosen.items())
        score = (-network.version, reached, -order)
        if best is None or score > best[0]:
            best = (score, chosen)
    return {} if best is None else best[1]


def without_subnet(interfaces: Sequence[Interface], reached_at: str) -> Interface | None:
    """Return the address to assume without a shared subnet: the reached one, else the first."""
    owned = next((item for item in interfaces if item.address == reached_at), None)
    return owned or next(iter(interfaces), None)
