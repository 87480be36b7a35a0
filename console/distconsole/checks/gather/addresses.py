"""Which address of each host the checks test: the one that ranks would talk through.

The choice is that of the launcher: what the configuration fixes, else a subnet that all hosts share,
preferring the one that our own connection goes to, else the address that we reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from distconsole.checks.facts.evidence import HostEvidence, View, once_a_view
from distconsole.checks.facts.network import NetAddress, NetFacts
from distconsole.checks.facts.node import SshFacts
from distconsole.model import addresses as model
from distconsole.model.addresses import Interface


@dataclass(frozen=True, slots=True)
class HostEndpoint:
    """A host's address for training, and its interface if known."""

    address: str
    interface: str | None
    network: str


LOOPBACK = HostEndpoint("127.0.0.1", "lo", "127.0.0.0/8")
"""For several names of one machine; Linux and the launcher call the interface so."""


@once_a_view
def machines(view: View) -> Mapping[str, object]:
    """Return each host's identity (``machine_of``); its name while its kernel is unknown."""
    facts, ssh = view.of(NetFacts), view.of(SshFacts)
    found: dict[str, object] = {}
    for host in view.hosts:
        boot = ssh[host.name].boot_id if host.name in ssh else ""
        net = facts.get(host.name) or NetFacts()
        addresses = (entry.address for entry in net.addresses)
        found[host.name] = model.machine_of(boot, net.namespace, addresses) if boot else host.name
    return found


@once_a_view
def one_machine(view: View) -> bool:
    found = machines(view)
    return len(found) == len(view.everyone) and len(set(found.values())) <= 1


@once_a_view
def endpoints(view: View) -> Mapping[str, HostEndpoint]:
    facts, ssh = view.of(NetFacts), view.of(SshFacts)
    hosts = [host for host in view.hosts if host.name in facts]
    fixed = {host.name: _fixed(view, host, facts[host.name]) for host in hosts}
    if len(hosts) > 1 and one_machine(view):
        return {name: endpoint or LOOPBACK for name, endpoint in fixed.items()}
    usable = {str(host.name): _usable(facts[host.name]) for host in hosts}
    chosen_in = model.best_subnet(
        usable,
        {name: found.reached_at for name, found in ssh.items()},
        lambda chosen: len({item.address for item in chosen.values()}) < len(chosen),
    )
    best = {name: _endpoint(item) for name, item in chosen_in.items()}
    for host in hosts:
        reached_at = ssh[host.name].reached_at if host.name in ssh else ""
        chosen = fixed[host.name] or best.get(host.name)
        chosen = chosen or _fallback(host, facts[host.name], reached_at)
        if chosen is not None:
            best[host.name] = chosen
    return best


def endpoints_in(view: View, network: str) -> dict[str, HostEndpoint]:
    """Return each host's endpoint in one subnet; hosts that have none there are left out."""
    found: dict[str, HostEndpoint] = {}
    for name, facts in view.of(NetFacts).items():
        address = next((each for each in _usable(facts) if str(each.network) == network), None)
        if address is not None:
            found[name] = _endpoint(address)
    return found


@once_a_view
def shared_networks(view: View) -> Sequence[str]:
    """Return the subnets in which every host of ``view`` has a usable address, as ``10.0.0.0/24``."""
    usable = {name: _usable(facts) for name, facts in view.of(NetFacts).items()}
    return [str(network) for network in model.shared_networks(usable)]


def _interface(entry: NetAddress) -> Interface:
    return Interface(entry.iface, entry.address, entry.prefix, entry.up, entry.loopback)


def _usable(facts: NetFacts) -> list[Interface]:
    return [item for item in map(_interface, facts.addresses) if item.usable]


def _endpoint(item: Interface) -> HostEndpoint:
    network = item.network
    return HostEndpoint(item.address, item.name, "" if network is None else str(network))


def _fixed(view: View, host: HostEvidence, facts: NetFacts) -> HostEndpoint | None:
    planned = view.launch.hosts.get(host.name) if view.launch is not None else None
    address, nic = host.host.address, host.host.nic
    if planned is not None and planned.address:
        address, nic = planned.address, planned.interface
    same = [e for e in facts.addresses if (e.address == address if address else e.iface == nic)]
    if same:
        return _endpoint(_interface(next((e for e in same if e.iface == nic), same[0])))
    return HostEndpoint(address, nic, "") if address else None


def _fallback(host: HostEvidence, facts: NetFacts, reached_at: str) -> HostEndpoint | None:
    found = model.without_subnet(_usable(facts), reached_at)
    if found is not None:
        return _endpoint(found)
    loopback = [address for address in facts.addresses if address.loopback and host.host.local]
    return _endpoint(_interface(loopback[0])) if loopback else None


T = TypeVar("T")

ALL_PAIRS_HOSTS = 128
"""Up to this many hosts each one tries all others."""


def partners(names: Sequence[T], place: int) -> list[T]:
    """Return the others that the host at ``place`` of ``names`` tries: all, or those 1, 2, 4, 8 … places before and behind it.

    Then each host is tried by as many, in both directions; two parts of the list, such as racks, by many pairs.
    """
    count = len(names)
    if count <= ALL_PAIRS_HOSTS:
        return [*names[:place], *names[place + 1 :]]
    steps = [1 << power for power in range((count // 2).bit_length())]
    places = dict.fromkeys((place + way * step) % count for step in steps for way in (1, -1))
    return [names[each] for each in places if each != place]
