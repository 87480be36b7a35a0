"""Chooses from facts the address of each host that its ranks use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distconsole.config.writing import in_config, network_of_hosts
from distconsole.errors import PlanError
from distconsole.launch.engines import Engines
from distconsole.model.addresses import LOOPBACK, Interface, best_subnet, without_subnet
from distconsole.model.cluster import Host
from distconsole.model.names import HostName


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A host's properties that placement depends on.

    Attributes:
        python: The interpreter that runs the agent.
        gpus: GPUs, MIG instances counted apart.
        accelerator: Whether it has GPUs or the like, counted or not.
        boot_id: Identifies the running kernel; equal for containers of one machine.
        reached_at: The address of the console's connection; empty where unknown.
        uid: The user's number there; -1 where unknown.
    """

    python: str
    cpus: int = 1
    gpus: int = 0
    interfaces: tuple[Interface, ...] = ()
    boot_id: str = ""
    reached_at: str = ""
    engines: Engines = field(default_factory=Engines)
    uid: int = -1
    accelerator: bool = False

    @property
    def machine(self) -> tuple[str, frozenset[str]]:
        """Equal for hosts that are one machine with one network, such as several sshd on it."""
        return self.boot_id, frozenset(item.address for item in self.interfaces)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host's address for its ranks, and the interface that has it if known."""

    address: str
    nic: str | None


@dataclass(frozen=True, slots=True)
class AddressChoice:
    """An endpoint for every host, and notes about the choice for the user."""

    endpoints: dict[HostName, Endpoint]
    notes: tuple[str, ...] = field(default=())


def choose_addresses(
    hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts], nic: str | None = None
) -> AddressChoice:
    """Choose the addresses that all hosts, in the order of ranks, can reach each other at.

    ``nic`` is an interface of every host; None or ``auto`` chooses. Raises PlanError if a requested
    interface does not exist, or a host has no address at all.
    """
    asked = None if nic in (None, "auto") else nic
    given = {host.name: _endpoint_by_name(host, facts[host.name], asked) for host in hosts}
    endpoints = {name: endpoint for name, endpoint in given.items() if endpoint is not None}
    rest = [host for host in hosts if host.name not in endpoints]
    if not rest:
        return AddressChoice(endpoints)
    if _one_machine(hosts, facts):
        lo = Endpoint(LOOPBACK, _interface_of(facts[rest[0].name], LOOPBACK))
        notes = () if len(hosts) == 1 else ("all hosts are this one machine: 127.0.0.1 is used",)
        return AddressChoice({**endpoints, **{host.name: lo for host in rest}}, notes)
    return _by_subnet(hosts, facts, endpoints)


def _endpoint_by_name(host: Host, facts: NodeFacts, nic: str | None) -> Endpoint | None:
    """Return the endpoint that the configuration or ``--nic`` fixes, or None."""
    if host.address is not None:
        return Endpoint(host.address, host.nic or _interface_of(facts, host.address))
    wanted = nic or host.nic
    if wanted is None:
        return None
    found = [item for item in facts.interfaces if item.name == wanted and item.ip is not None]
    found.sort(key=lambda item: (item.ip is not None and item.ip.version, not item.up))
    if not found:
        names = ", ".join(sorted({item.name for item in facts.interfaces})) or "none"
        raise PlanError(
            f"{host.name} has no interface {wanted} with an address",
            f"it has: {names}; --nic NAME names one for all hosts; for this one alone, "
            f"{in_config(('hosts', str(host.name), 'nic'), 'NAME')}",
        )
    return Endpoint(found[0].address, wanted)


def _one_machine(hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts]) -> bool:
    """True if all hosts share one network stack: this machine, or several sshd on it."""
    if len(hosts) == 1:
        return hosts[0].local or not any(i.usable for i in facts[hosts[0].name].interfaces)
    return len({facts[host.name].machine for host in hosts}) == 1


def _by_subnet(
    hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts], fixed: dict[HostName, Endpoint]
) -> AddressChoice:
    candidates: dict[str, list[Interface]] = {
        host.name: [i for i in facts[host.name].interfaces if i.usable] for host in hosts
    }
    best = best_subnet(
        candidates,
        {host.name: facts[host.name].reached_at for host in hosts},
        lambda chosen: _clash(facts, chosen),
    )
    if best:
        found = {host.name: best[host.name] for host in hosts}
        endpoints = {name: Endpoint(each.address, each.name) for name, each in found.items()}
        return AddressChoice({**endpoints, **fixed})
    return _without_subnet(hosts, facts, candidates, fixed)


def _clash(facts: Mapping[HostName, NodeFacts], chosen: Mapping[str, Interface]) -> bool:
    """True if different machines have the same address, as container bridges do."""
    owner: dict[str, tuple[str, frozenset[str]]] = {}
    machines = {str(name): node.machine for name, node in facts.items()}
    return any(
        owner.setdefault(item.address, machines[name]) != machines[name]
        for name, item in chosen.items()
    )


def _without_subnet(
    hosts: Sequence[Host],
    facts: Mapping[HostName, NodeFacts],
    candidates: Mapping[str, list[Interface]],
    fixed: dict[HostName, Endpoint],
) -> AddressChoice:
    endpoints = dict(fixed)
    for host in hosts:
        if host.name in endpoints:
            continue
        found = without_subnet(candidates[host.name], facts[host.name].reached_at)
        if found is None:
            raise PlanError(
                f"{host.name} has no address that another host could reach",
                network_of_hosts([host.name]),
            )
        endpoints[host.name] = Endpoint(found.address, found.name)
    if len(hosts) == 1:
        return AddressChoice(endpoints)
    listed = ", ".join(f"{host.name} {endpoints[host.name].address}" for host in hosts)
    note = f"the hosts share no subnet; assuming that these reach each other: {listed}"
    return AddressChoice(endpoints, (note,))


def _interface_of(facts: NodeFacts, address: str) -> str | None:
    return next((item.name for item in facts.interfaces if item.address == address), None)
