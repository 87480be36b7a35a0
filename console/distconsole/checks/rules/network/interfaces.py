"""Checks of group ``net`` on addresses and interfaces, and on which of them the engines would take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import product
from typing import Any

from distconsole.checks.engine.results import (
    NotApplicable,
    PredictedChoices,
    RuleResults,
    fail,
    info,
    warn,
)
from distconsole.checks.engine.rule import HostView, hint, host_rule, rule, unless_alone
from distconsole.checks.facts.evidence import View, once_a_view
from distconsole.checks.facts.network import EnvFacts, NetFacts, PortFacts, ReachFacts, matrix_of
from distconsole.checks.facts.node import HorovodFacts, MpiFacts, OsFacts, SshFacts, TorchFacts
from distconsole.checks.fixes.cures import BTL, OMPI, by_run, lines_to_type, offer, on_network
from distconsole.checks.gather.addresses import endpoints, machines, partners, shared_networks
from distconsole.checks.gather.attribution import blame
from distconsole.checks.interfaces import gloo, nccl, open_mpi
from distconsole.checks.interfaces.horovod import VARIABLE as HOROVOD_VARIABLE
from distconsole.checks.interfaces.node import Fault, nodes_of
from distconsole.checks.interfaces.panel import (
    UNFORESEEN,
    Engine,
    EngineChoice,
    Start,
    choices_of,
    reports,
    run_variables,
)
from distconsole.checks.rules.wording import (
    MAX_LISTED,
    differ,
    dissent,
    name_hosts,
    these_have,
    who,
)
from distconsole.config.writing import network_of_hosts
from distconsole.model.addresses import is_virtual
from distconsole.model.findings import Cure, Finding, HostCure
from distconsole.model.names import count_text, join_some
from distconsole.model.requests import Level


@hint("Kill it, or take another MASTER_PORT.")
@host_rule("port.master_free", "net", Level.QUICK, PortFacts)
def _master_port(host: HostView) -> RuleResults:
    """`Address already in use`: a leftover of the last job holds the rendezvous port."""
    # pytorch#126510
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


@hint("Include the real network by its subnet, exclude the virtual interface by name.")
@rule("net.iface_matrix", "net", Level.QUICK, NetFacts, SshFacts)
def _iface_matrix(view: View) -> RuleResults:
    """The same address on several hosts, such as docker0's 172.17.0.1: Open MPI connects to itself: it hangs for ever, or (5.0) fails at its first message."""
    # Whoever picks that interface talks to itself (ompi#6377).
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
        own = f"give each host its own address; two hosts with {address} answer at random"
        mend = _exclude(view, interfaces, networks) if virtual else offer(None, own)
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


@hint('hosts.NAME.address = "IP" or hosts.NAME.nic = "NIC" at the top of distconsole.toml.')
@rule("net.address", "net", Level.QUICK, NetFacts, SshFacts)
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
            seen=join_some(f"{n} {e.address} ({e.interface or '?'})" for n, e in chosen.items()),
        )


@hint("Name the network by its subnet, or rename the interface.")
@rule("net.nic_names", "net", Level.QUICK, NetFacts, SshFacts)
def _nic_names(view: View) -> RuleResults:
    """eth0 here and ens5 there: `NoValidAddressesFound` in horovodrun."""
    # Horovod's own probe wants one name on all hosts (horovod#2568, #1724).
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


CHECK = "net.choices"

BY_RUN = "it names the interface of each host"

NAMES: Mapping[Engine, tuple[str, ...]] = {
    Engine.NCCL: (nccl.VARIABLE,),
    Engine.GLOO: (gloo.VARIABLE,),
    Engine.HOROVOD: (),  # horovodrun sets its ranks' variable by itself
    Engine.OPEN_MPI: (OMPI + open_mpi.INCLUDE,),
    Engine.OPEN_MPI_DAEMONS: (OMPI + open_mpi.DAEMON_INCLUDE,),
    **dict.fromkeys(UNFORESEEN, ()),  # never red
}

USED_AS = {Engine.GLOO: "coll", Engine.HOROVOD: "horovod"}
"""Launcher's name -> engines; those of MPI are ``mpi``. Horovod may use NCCL, too."""


@hint(
    "Name the interface: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, btl_tcp_if_include, "
    "horovodrun --network-interfaces; `distconsole run` does it per host."
)
@rule(
    CHECK,
    "net",
    Level.QUICK,
    *(NetFacts, SshFacts, OsFacts, EnvFacts),
    *(TorchFacts, HorovodFacts, MpiFacts, ReachFacts),
    unless=unless_alone,
)
def _choices(view: View) -> RuleResults:
    """NCCL, Gloo, Open MPI or Horovod that would take interfaces of different networks on the hosts, or an address where nobody reaches them. The panel shows what each takes, as `distconsole run` starts it and by hand; what another check explains is no second finding."""
    choices = choices_of(view)
    if not choices:
        yield NotApplicable("none of these engines is here", tuple(view.of(NetFacts)))
        return
    yield PredictedChoices(reports(choices))
    known = {choice.host for choice in choices if choice.engine not in UNFORESEEN}
    unknown = dict.fromkeys(choice.host for choice in choices if choice.host not in known)
    yield NotApplicable("what MPICH and Intel MPI take is not foretold", tuple(unknown))
    groups: dict[tuple[tuple[str, ...], Fault | None], list[EngineChoice]] = {}
    launch = view.launch
    for engine, start in product(Engine, Start):
        by = USED_AS.get(engine, "mpi")
        if launch is not None and engine is not Engine.NCCL and launch.unused(by):
            continue
        mine = [c for c in choices if c.engine is engine and c.start is start]
        red = [c for c in mine if c.meets is False and not _explains(c, view)]
        if red:
            groups.setdefault((_culprits(red, mine, view), red[0].fault), []).extend(red)
    for (culprits, _), red in groups.items():
        yield _finding(culprits, red, view)


def _explains(choice: EngineChoice, view: View) -> bool:
    host, pick = choice.host, choice.pick
    variables = view.of(EnvFacts)[host].variables
    match choice.fault:
        case Fault.TWICE:
            return True  # net.iface_matrix
        case Fault.LOOPBACK:
            return "GLOO_SOCKET_IFNAME" not in variables  # os.hostname_bindable
        case Fault.NONE_FOUND:
            if choice.engine is Engine.HOROVOD and choice.start is Start.HAND:
                own_name = choice.pick.how.startswith("its own name")
                dead = matrix_of(view).dead  # of which net.reach_tcp and its like tell
                # os.hostname_bindable, net.nic_names
                return own_name or _names_differ(view) or bool(dead)
            if choice.engine is Engine.HOROVOD:
                return HOROVOD_VARIABLE not in variables  # os.hostname_bindable
            return any(name in variables for name in NAMES[choice.engine])  # env.iface_exists
        case Fault.SILENT:
            # net.reach_tcp, net.other_networks and their like
            return pick.address in _tried_addresses(view)
        case _:
            return False


@once_a_view
def _tried_addresses(view: View) -> Set[str]:
    found = view.of(ReachFacts).values()
    return {edge.address for each in found for edge in (*each.edges, *each.elsewhere)}


@once_a_view
def _names_differ(view: View) -> bool:
    return dissent({n: each.interface or "?" for n, each in endpoints(view).items()}) is not None


def _culprits(
    red: Sequence[EngineChoice], mine: Sequence[EngineChoice], view: View
) -> tuple[str, ...]:
    nets = view.of(NetFacts)
    taken = {choice.host: choice for choice in reversed(mine)}
    taken |= {choice.host: choice for choice in reversed(red)}
    networks: dict[str, str] = {}
    for host, address in ((host, choice.pick.address) for host, choice in taken.items()):
        own = (str(e.network) for e in nets[host].addresses if e.address == address)
        networks[host] = next(own, address)
    split = dissent(networks)
    if split is not None and split.majority is not None:
        return split.minority
    dead = dict.fromkeys((peer, choice.host) for choice in red for peer in choice.peers)
    names = list(taken)
    tried = [(a, b) for place, a in enumerate(names) for b in partners(names, place)]
    found = blame(tried, dead)
    named_hosts = {host.host for host in found.hosts} or {each.host for each in red}
    return tuple(host for host in dict.fromkeys(c.host for c in mine) if host in named_hosts)


def _finding(culprits: tuple[str, ...], red: Sequence[EngineChoice], view: View) -> Finding:
    engines = list(dict.fromkeys(choice.engine for choice in red))
    by_run = any(choice.start is Start.RUN for choice in red)
    severity = fail if by_run else warn
    cure = _cure_of(engines, view)
    typed = lines_to_type(cure)
    first = {choice.host: choice for choice in reversed(red)}
    told = [f"{host} takes {_where(first[host])}" for host in culprits if host in first]
    more = f", and {count_text(len(told) - 2, 'more host')}" if len(told) > 2 else ""
    return severity(
        f"{' and '.join(engine.value for engine in engines)}"
        f"{'' if by_run else ', started by hand,'} cannot meet: {', '.join(told[:2])}{more}",
        culprits,
        seen="\n".join(
            dict.fromkeys(
                f"{each.engine.value} on {each.host}: {_where(each)} ({each.pick.how}): {each.why}"
                for each in red[:MAX_LISTED]
            )
        ),
        expected="addresses that every host reaches"
        + ("" if by_run else "; `distconsole run` names the interface by itself"),
        hint="\n".join(_hints(culprits, engines, red, typed, view)),
        cure=cure if typed and not by_run else None,
    )


def _hints(
    culprits: Sequence[str],
    engines: Sequence[Engine],
    red: Sequence[EngineChoice],
    typed: Sequence[str],
    view: View,
) -> Iterator[str]:
    chosen, systems = endpoints(view), view.of(OsFacts)
    named_ones = {choice.host for choice in red if choice.pick.how.startswith("its own name")}
    for host in culprits:
        if host in named_ones and host in chosen:
            yield f"in /etc/hosts of {host}: {chosen[host].address} {systems[host].hostname}"
    if any(choice.start is Start.HAND for choice in red):
        for line in typed:
            yield f"for jobs started by hand: {line}"
        names = {endpoint.interface for endpoint in chosen.values()}
        if Engine.HOROVOD in engines and any(":" in each.address for each in chosen.values()):
            yield "horovodrun takes IPv4 addresses alone: give each host one on an interface of one name"
        elif Engine.HOROVOD in engines and len(names) == 1:
            yield f"with horovodrun: horovodrun --network-interfaces {names.pop()}"
    elif not named_ones:
        yield network_of_hosts(culprits)


def _where(choice: EngineChoice) -> str:
    return f"{choice.pick.interface} {choice.pick.address}".strip() or "nothing"


def _cure_of(engines: Iterable[Engine], view: View) -> Cure:
    """Return the variables that lead ``engines`` to the tested addresses, for all hosts if they agree."""
    wanted = {name for engine in engines for name in NAMES[engine]}
    told = run_variables(endpoints(view), nodes_of(view))
    variables = {
        host: {name: value for name, value in each.items() if name in wanted}
        for host, each in told.items()
    }
    first, *more = [each for each in variables.values() if each] or [{}]
    if any(each != first for each in more):
        hosts = {host: HostCure(env=each) for host, each in variables.items() if each}
        return Cure(hosts=hosts, by_run=BY_RUN)
    mca = {n.removeprefix(OMPI): v for n, v in first.items() if n.startswith(OMPI)}
    env = {name: value for name, value in first.items() if not name.startswith(OMPI)}
    return Cure(env=env, mca=mca, by_run=BY_RUN)
