"""Checks of group ``net`` that hosts answer by themselves: addresses, routes, interface names, ports, clocks."""

from __future__ import annotations

from typing import Any

from distconsole.checks.engine.rule import (
    NotApplicable,
    RuleResults,
    fail,
    hint,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import NetFacts, PortFacts
from distconsole.checks.facts.node import ClockFacts, SshFacts
from distconsole.checks.fixes.cures import BTL, by_run, offer, on_network
from distconsole.checks.gather.addresses import endpoints, machines, shared_networks
from distconsole.checks.rules.wording import dissent, name_hosts, these_have, who
from distconsole.config.pasting import network_of_hosts
from distconsole.model.addresses import is_virtual
from distconsole.model.findings import Cure, HostCure
from distconsole.model.requests import Level

WARN_OFFSET_SECONDS = 0.1
FAIL_OFFSET_SECONDS = 1.0


@rule("net.iface_matrix", "net", Level.QUICK, NetFacts, SshFacts)
@hint("Include the real network by its subnet, exclude the virtual interface by name.")
def _iface_matrix(view: View) -> RuleResults:
    """The same address on several hosts, such as docker0's 172.17.0.1: Open MPI connects to itself and hangs for ever.

    One address on several hosts: whoever picks that interface talks to itself (ompi#6377).
    """
    facts = view.of(NetFacts)
    machine_of = machines(view)
    owners: dict[str, dict[str, str]] = {}
    for name, found in facts.items():
        for entry in found.addresses:
            if not entry.loopback and entry.up and not entry.address.startswith("fe80:"):
                owners.setdefault(entry.address, {}).setdefault(name, entry.iface)
    networks = shared_networks(view)
    for address, hosts in owners.items():
        if len({machine_of[name] for name in hosts}) < 2:
            continue
        interfaces = sorted(set(hosts.values()))
        virtual = all(map(is_virtual, interfaces))
        names = [name for name in facts if name in hosts]
        severity = warn if virtual else fail
        yield severity(
            f"{address} ({', '.join(interfaces)}) is on {len(names)} hosts: {name_hosts(names)}",
            names,
            seen=", ".join(f"{name}: {hosts[name]} has {address}" for name in names[:8]),
            expected="an address of its own for each host"
            if not virtual
            else "interfaces of containers that no engine picks for training",
            **_exclude(view, interfaces, networks)
            if virtual
            else {
                "hint": f"give each host its own address; two hosts with {address} answer at random"
            },
        )


def _exclude(view: View, interfaces: list[str], networks: list[str]) -> dict[str, Any]:
    if not networks:
        return {
            "hint": f"keep engines off {', '.join(interfaces)}: mpirun --mca btl_tcp_if_include"
        }
    cure = Cure(
        env={"NCCL_SOCKET_IFNAME": f"^{','.join(interfaces)},lo"},
        mca=on_network(networks[0]),
        by_run=by_run(view, (BTL, "NCCL_SOCKET_IFNAME"), "names the network to each of them"),
    )
    return offer(cure)


@rule("net.address", "net", Level.QUICK, NetFacts, SshFacts)
@hint('hosts.NAME.address = "IP" or hosts.NAME.nic = "NIC" at the top of distconsole.toml.')
def _address(view: View) -> RuleResults:
    """No network that all hosts share.

    Say which network is tested, and when there is none that all hosts share.
    """
    if len(view.everyone) < 2:
        yield NotApplicable("one host", tuple(host.name for host in view.hosts))
        return
    chosen = endpoints(view)
    without = [host.name for host in view.hosts if host.name not in chosen]
    if without:
        yield fail(
            f"{these_have(without)} no address that others could reach",
            without,
            hint=network_of_hosts(without),
        )
    networks = {endpoint.network for endpoint in chosen.values()}
    listed = ", ".join(
        f"{name} {endpoint.address} ({endpoint.interface or '?'})"
        for name, endpoint in list(chosen.items())[:8]
    )
    if len(networks) > 1:
        yield info("the hosts share no subnet; these addresses are tested", seen=listed)


@rule("net.nic_names", "net", Level.QUICK, NetFacts, SshFacts)
@hint("Name the network by its subnet, or rename the interface.")
def _nic_names(view: View) -> RuleResults:
    """eth0 here and ens5 there: `NoValidAddressesFound` in horovodrun.

    Horovod's own probe wants one name on all hosts (horovod#2568, #1724).
    """
    chosen = endpoints(view)
    split = dissent({name: endpoint.interface or "?" for name, endpoint in chosen.items()})
    if split is not None:
        networks = shared_networks(view)
        cure = Cure(
            mca=on_network(networks[0]) if networks else {},
            hosts={
                name: HostCure(
                    env={
                        "GLOO_SOCKET_IFNAME": endpoint.interface,
                        "NCCL_SOCKET_IFNAME": f"={endpoint.interface}",
                    }
                )
                for name, endpoint in chosen.items()
                if endpoint.interface
            },
            by_run=by_run(view, ("SOCKET_IFNAME", BTL), "sets the name per host"),
        )
        yield warn(
            split.told("its training address on"),
            split.minority,
            expected="one interface name on every host, for Horovod's and NCCL's variables",
            **offer(cure),
        )


@rule("net.route_dev", "net", Level.QUICK, NetFacts, SshFacts)
@hint("Add a route, or use the addresses of the right network.")
def _route(view: View) -> RuleResults:
    """Training traffic that leaves by the management interface or by a bridge.

    Traffic to a peer must leave from the address that the peer is told.
    """
    chosen = endpoints(view)
    wrong: dict[str, list[str]] = {}
    for name, facts in view.of(NetFacts).items():
        own = chosen.get(name)
        if own is None:
            continue
        owner = {entry.address: entry.iface for entry in facts.addresses}
        for peer, endpoint in chosen.items():
            source = facts.routes.get(endpoint.address)
            if peer != name and source is not None and owner.get(source) != own.interface:
                wrong.setdefault(name, []).append(f"{peer} by {owner.get(source, source)}")
    for name, peers in wrong.items():
        own = chosen[name]
        ways = {each.rpartition(" by ")[2] for each in peers}
        taken = {entry.iface for entry in view.of(NetFacts)[name].addresses} & ways
        one = next(iter(taken)) if len(ways) == 1 and taken else ""
        cure = Cure(hosts={name: HostCure(nic=one)}) if one else None
        look = f"on {name}: ip route get ADDRESS"
        yield warn(
            f"{name} sends to {len(peers)} peers by another interface than {own.interface}",
            (name,),
            seen=", ".join(peers[:8]),
            expected=f"everything from {own.address} ({own.interface})",
            **offer(cure, look if cure else f"{look}; distconsole run --nic NAME ...", "or"),
        )


@rule("net.mtu_config", "net", Level.QUICK, NetFacts, SshFacts)
@hint("ip link set NIC mtu N, the same everywhere.")
def _mtu(view: View) -> RuleResults:
    """Jumbo frames on some hosts only: 4 KiB pass, 4 MiB hang.

    Ends that disagree: small messages pass, large ones hang (nccl#1524).
    """
    chosen, facts = endpoints(view), view.of(NetFacts)
    values: dict[str, int] = {}
    for name, endpoint in chosen.items():
        interface = facts[name].interfaces.get(endpoint.interface or "")
        if interface is not None and interface.mtu is not None and interface.mtu < 65536:
            values[name] = interface.mtu
    split = dissent(values)
    if split is not None:
        smallest = min(values.values())
        yield warn(
            split.told("MTU"),
            split.minority,
            expected="one MTU on the network",
            hint="\n".join(
                f"on {name}: sudo ip link set {chosen[name].interface} mtu {smallest}"
                for name, value in values.items()
                if value != smallest
            ),
        )


@rule("port.master_free", "net", Level.QUICK, PortFacts)
@hint("Kill it, or take another MASTER_PORT.")
def _master_port(view: View) -> RuleResults:
    """`Address already in use`: a leftover of the last job holds the rendezvous port.

    A port that is held: `EADDRINUSE` (pytorch#126510), for jobs that fix their port.
    """
    for name, facts in view.of(PortFacts).items():
        fixed = view.launch is not None and view.launch.port is not None
        said = "" if fixed else "takes a free port by itself"
        spare = [int(number) for number, port in facts.ports.items() if port.free]
        cure = Cure(port=spare[0], by_run=said) if spare else None
        # The first one is the rendezvous; the others are what could be taken instead.
        for number, port in list(facts.ports.items())[:1]:
            if port.free:
                continue
            holder = port.holder
            by = "somebody" if holder is None else who(holder)
            pid = holder.pid if holder is not None else None
            fixed = view.launch is not None and str(view.launch.port) == number
            yield (fail if fixed else warn)(
                f"port {number} on {name} is {port.why}, by {by}",
                (name,),
                seen=f"bind: {port.why}; pid {pid or 'unknown'}",
                expected="a free rendezvous port on the first host",
                **offer(cure, _leftover(name, pid)),
            )


def _leftover(name: str, pid: int | None) -> str:
    return f"a leftover of yours: on {name}: kill {pid}" if pid else f"on {name}: ss -ltnp"


@rule("clock.offset", "clock", Level.QUICK, ClockFacts)
@hint("chronyc makestep")
def _clock(view: View) -> RuleResults:
    """A clock that is off: munge refuses, logs of different hosts cannot be put in order."""
    for name, facts in view.of(ClockFacts).items():
        off = abs(facts.offset_seconds) - facts.error_seconds
        if off > WARN_OFFSET_SECONDS:
            severity = fail if off > FAIL_OFFSET_SECONDS else warn
            yield severity(
                f"the clock of {name} is {facts.offset_seconds:+.3f} s off this machine's",
                (name,),
                seen=f"{facts.offset_seconds:+.4f} s, at most {facts.error_seconds:.4f} s wrong",
                expected=f"within {WARN_OFFSET_SECONDS} s",
                hint=f"on {name}: sudo chronyc makestep   (munge refuses credentials from 300 s on)",
            )


@rule("clock.console", "clock", Level.QUICK, ClockFacts)
@hint("Set this machine's clock.")
def _utc(view: View) -> RuleResults:
    """This machine's own clock is off while all hosts agree.

    When every host is off by the same, it is this machine that is wrong.
    """
    offsets = [facts.offset_seconds for facts in view.of(ClockFacts).values()]
    if len(offsets) > 1 and min(abs(offset) for offset in offsets) > FAIL_OFFSET_SECONDS:
        spread = max(offsets) - min(offsets)
        if spread < WARN_OFFSET_SECONDS:
            yield info(f"all hosts agree; this machine is {-offsets[0]:+.1f} s off")


RULES = (_master_port, _iface_matrix, _address, _nic_names, _route, _mtu, _clock, _utc)
