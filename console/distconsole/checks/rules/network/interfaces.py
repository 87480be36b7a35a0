"""Checks of group ``net`` that hosts answer by themselves: addresses, routes, interface names, ports, clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from distconsole.checks.engine.rule import (
    HostView,
    NotApplicable,
    RuleResults,
    differ,
    fail,
    hint,
    host_rule,
    info,
    rule,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import NetFacts, PortFacts
from distconsole.checks.facts.node import ClockFacts, SshFacts
from distconsole.checks.fixes.cures import BTL, by_run, offer, on_network
from distconsole.checks.gather.addresses import endpoints, machines, shared_networks
from distconsole.checks.rules.wording import join_some, name_hosts, these_have, who
from distconsole.config.writing import network_of_hosts
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
    machine_of, networks = machines(view), shared_networks(view)
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for name, found in view.of(NetFacts).items():
        for entry in found.addresses:
            if not entry.loopback and entry.up and not entry.address.startswith("fe80:"):
                owners[entry.address].setdefault(name, entry.iface)
    for address, hosts in owners.items():
        if len({machine_of[name] for name in hosts}) < 2:
            continue
        interfaces, names = sorted(set(hosts.values())), list(hosts)
        virtual = all(map(is_virtual, interfaces))
        mend = _exclude(view, interfaces, networks)
        if not virtual:
            mend = offer(
                None, f"give each host its own address; two hosts with {address} answer at random"
            )
        yield (warn if virtual else fail)(
            f"{address} ({', '.join(interfaces)}) is on {len(names)} hosts: {name_hosts(names)}",
            names,
            seen=join_some(f"{name}: {hosts[name]} has {address}" for name in names),
            expected="interfaces of containers that no engine picks for training"
            if virtual
            else "an address of its own for each host",
            **mend,
        )


def _exclude(view: View, interfaces: Sequence[str], networks: Sequence[str]) -> dict[str, Any]:
    names = ",".join(interfaces)
    if not networks:
        return offer(None, f"keep engines off {names}: mpirun --mca btl_tcp_if_include")
    ours = by_run(view, (BTL, "NCCL_SOCKET_IFNAME"), "names the network to each of them")
    env = {"NCCL_SOCKET_IFNAME": f"^{names},lo"}
    return offer(Cure(env=env, mca=on_network(networks[0]), by_run=ours))


@rule("net.address", "net", Level.QUICK, NetFacts, SshFacts)
@hint('hosts.NAME.address = "IP" or hosts.NAME.nic = "NIC" at the top of distconsole.toml.')
def _address(view: View) -> RuleResults:
    """No network that all hosts share."""
    if len(view.everyone) < 2:
        yield NotApplicable("one host", tuple(host.name for host in view.hosts))
        return
    chosen = endpoints(view)
    without = [host.name for host in view.hosts if host.name not in chosen]
    if without:
        summary = f"{these_have(without)} no address that others could reach"
        yield fail(summary, without, hint=network_of_hosts(without))
    if len({endpoint.network for endpoint in chosen.values()}) > 1:
        yield info(
            "the hosts share no subnet; these addresses are tested",
            seen=join_some(
                f"{n} {each.address} ({each.interface or '?'})" for n, each in chosen.items()
            ),
        )


@rule("net.nic_names", "net", Level.QUICK, NetFacts, SshFacts)
@hint("Name the network by its subnet, or rename the interface.")
def _nic_names(view: View) -> RuleResults:
    """eth0 here and ens5 there: `NoValidAddressesFound` in horovodrun.

    Horovod's own probe wants one name on all hosts (horovod#2568, #1724).
    """
    nics, networks = {n: e.interface for n, e in endpoints(view).items()}, shared_networks(view)
    cure = Cure(
        mca=on_network(networks[0]) if networks else {},
        hosts={
            name: HostCure(env={"GLOO_SOCKET_IFNAME": nic, "NCCL_SOCKET_IFNAME": f"={nic}"})
            for name, nic in nics.items()
            if nic
        },
        by_run=by_run(view, ("SOCKET_IFNAME", BTL), "sets the name per host"),
    )
    yield from differ(
        warn,
        "its training address on",
        {name: nic or "?" for name, nic in nics.items()},
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
    for name, facts in view.of(NetFacts).items():
        if name not in chosen:
            continue
        own, iface_of = chosen[name], {entry.address: entry.iface for entry in facts.addresses}
        sources = {p: facts.routes.get(each.address) for p, each in chosen.items() if p != name}
        ways = {p: iface_of.get(source, source) for p, source in sources.items() if source}
        wrong = {peer: way for peer, way in ways.items() if way != own.interface}
        if not wrong:
            continue
        taken = {*wrong.values()}
        one = taken.pop() if len(taken) == 1 and taken <= {*iface_of.values()} else ""
        cure = Cure(hosts={name: HostCure(nic=one)}) if one else None
        look = f"on {name}: ip route get ADDRESS"
        yield warn(
            f"{name} sends to {len(wrong)} peers by another interface than {own.interface}",
            (name,),
            seen=join_some(f"{peer} by {way}" for peer, way in wrong.items()),
            expected=f"everything from {own.address} ({own.interface})",
            **offer(cure, look if cure else f"{look}; distconsole run --nic NAME ...", "or"),
        )


@rule("net.mtu_config", "net", Level.QUICK, NetFacts, SshFacts)
@hint("ip link set NIC mtu N, the same everywhere.")
def _mtu(view: View) -> RuleResults:
    """Jumbo frames on some hosts only: 4 KiB pass, 4 MiB hang.

    Ends that disagree: small messages pass, large ones hang (nccl#1524).
    """
    facts, nics = view.of(NetFacts), {n: e.interface or "" for n, e in endpoints(view).items()}
    interfaces = {name: facts[name].interfaces.get(nic) for name, nic in nics.items()}
    values = {
        n: each.mtu for n, each in interfaces.items() if each and (each.mtu or 65536) < 65536
    }
    smallest = min((mtu for mtu in values.values() if mtu), default=0)
    lines = [
        f"on {name}: sudo ip link set {nics[name]} mtu {smallest}"
        for name, mtu in values.items()
        if mtu != smallest
    ]
    expected = "one MTU on the network"
    yield from differ(warn, "MTU", values, expected=expected, hint="\n".join(lines))


@host_rule("port.master_free", "net", Level.QUICK, PortFacts)
@hint("Kill it, or take another MASTER_PORT.")
def _master_port(host: HostView) -> RuleResults:
    """`Address already in use`: a leftover of the last job holds the rendezvous port.

    A port that is held: `EADDRINUSE` (pytorch#126510), for jobs that fix their port.
    """
    launch, ports = host.view.launch, host.of(PortFacts).ports
    fixes = launch.port if launch is not None else None
    spare = [int(number) for number, port in ports.items() if port.free]
    ours = "takes a free port by itself" if fixes is None else ""
    cure = Cure(port=spare[0], by_run=ours) if spare else None
    # The first one is the rendezvous; the others are what could be taken instead.
    for number, port in list(ports.items())[:1]:
        if port.free:
            continue
        pid = port.holder.pid if port.holder is not None else None
        yield (fail if str(fixes) == number else warn)(
            f"port {number} on {host} is {port.why}, by {who(port.holder) if port.holder else 'somebody'}",
            seen=f"bind: {port.why}; pid {pid or 'unknown'}",
            expected="a free rendezvous port on the first host",
            **offer(
                cure,
                f"a leftover of yours: on {host}: kill {pid}" if pid else f"on {host}: ss -ltnp",
            ),
        )


@host_rule("clock.offset", "clock", Level.QUICK, ClockFacts)
@hint("chronyc makestep")
def _clock(host: HostView) -> RuleResults:
    """A clock that is off: munge refuses, logs of different hosts cannot be put in order."""
    facts = host.of(ClockFacts)
    off = abs(facts.offset_seconds) - facts.error_seconds
    if off > WARN_OFFSET_SECONDS:
        yield (fail if off > FAIL_OFFSET_SECONDS else warn)(
            f"the clock of {host} is {facts.offset_seconds:+.3f} s off this machine's",
            seen=f"{facts.offset_seconds:+.4f} s, at most {facts.error_seconds:.4f} s wrong",
            expected=f"within {WARN_OFFSET_SECONDS} s",
            hint=f"on {host}: sudo chronyc makestep   (munge refuses credentials from 300 s on)",
        )


@rule("clock.console", "clock", Level.QUICK, ClockFacts)
@hint("Set this machine's clock.")
def _utc(view: View) -> RuleResults:
    """This machine's own clock is off while all hosts agree."""
    offsets = sorted(facts.offset_seconds for facts in view.of(ClockFacts).values())
    agree = len(offsets) > 1 and offsets[-1] - offsets[0] < WARN_OFFSET_SECONDS
    if agree and min(map(abs, offsets)) > FAIL_OFFSET_SECONDS:
        yield info(f"all hosts agree; this machine is {-offsets[0]:+.1f} s off")


RULES = (_master_port, _iface_matrix, _address, _nic_names, _route, _mtu, _clock, _utc)
