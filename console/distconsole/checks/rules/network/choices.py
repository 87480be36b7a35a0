"""Check ``net.choices``: engines that would take addresses at which the hosts cannot meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from distconsole.checks.engine.rule import (
    NotApplicable,
    PredictedChoices,
    RuleResult,
    RuleResults,
    fail,
    hint,
    rule,
    unless_alone,
    warn,
)
from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.network import NetFacts, ReachFacts, matrix_of
from distconsole.checks.facts.node import (
    EnvFacts,
    HorovodFacts,
    MpiFacts,
    OsFacts,
    SshFacts,
    TorchFacts,
)
from distconsole.checks.gather.addresses import endpoints
from distconsole.checks.gather.attribution import blame
from distconsole.checks.interfaces import gloo, nccl, open_mpi
from distconsole.checks.interfaces.horovod import VARIABLE as HOROVOD_VARIABLE
from distconsole.checks.interfaces.node import Fault, network_of, nodes_of
from distconsole.checks.interfaces.panel import (
    UNFORESEEN,
    Choice,
    Engine,
    Start,
    choices_of,
    reports,
    run_variables,
)
from distconsole.checks.rules.wording import MAX_LISTED, dissent
from distconsole.config.writing import network_of_hosts
from distconsole.model.findings import Cure, HostCure
from distconsole.model.requests import Level

CHECK = "net.choices"

BY_RUN = "it names the interface of each host"

NAMES: Mapping[Engine, tuple[str, ...]] = {
    Engine.NCCL: (nccl.VARIABLE,),
    Engine.GLOO: (gloo.VARIABLE,),
    Engine.HOROVOD: (),  # horovodrun sets its ranks' variable by itself
    Engine.OPEN_MPI: (f"OMPI_MCA_{open_mpi.INCLUDE}",),
    Engine.OPEN_MPI_DAEMONS: (f"OMPI_MCA_{open_mpi.DAEMON_INCLUDE}",),
    **dict.fromkeys(UNFORESEEN, ()),  # never red
}


@rule(
    CHECK,
    "net",
    Level.QUICK,
    *(NetFacts, SshFacts, OsFacts, EnvFacts),
    *(TorchFacts, HorovodFacts, MpiFacts, ReachFacts),
    unless=unless_alone,
)
@hint(
    "Name the interface: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, btl_tcp_if_include, "
    "horovodrun --network-interfaces; `distconsole run` does it per host."
)
def _choices(view: View) -> RuleResults:
    """NCCL, Gloo, Open MPI or Horovod that would take interfaces of different networks on the hosts, or an address where nobody reaches them. The panel shows what each takes, as `distconsole run` starts it and by hand; what another check explains is no second finding.

    What another check explains is red in the panel and is no second finding.
    """
    choices = choices_of(view)
    if not choices:
        yield NotApplicable(
            "none of these engines is here", tuple(host.name for host in view.hosts)
        )
        return
    yield PredictedChoices(reports(choices))
    unknown = [choice.host for choice in choices if choice.engine in UNFORESEEN]
    known = {choice.host for choice in choices if choice.engine not in UNFORESEEN}
    if set(unknown) - known:
        hosts = tuple(host for host in dict.fromkeys(unknown) if host not in known)
        yield NotApplicable("what MPICH and Intel MPI take is not foretold", hosts)
    groups: dict[tuple[tuple[str, ...], Fault | None], list[Choice]] = {}
    for engine in Engine:
        for start in Start:
            mine = [c for c in choices if c.engine is engine and c.start is start]
            red = [c for c in mine if c.meets is False and not _explains(c, view)]
            if red:
                culprits = _culprits(red, mine, view)
                groups.setdefault((culprits, red[0].fault), []).extend(red)
    for (culprits, _), red in groups.items():
        yield _finding(culprits, red, view)


def _explains(choice: Choice, view: View) -> bool:
    """Whether another check says already what is wrong there."""
    host, pick = choice.host, choice.pick
    variables = view.of(EnvFacts)[host].variables
    match choice.fault:
        case Fault.TWICE:
            return True  # net.iface_matrix
        case Fault.LOOPBACK:
            return "GLOO_SOCKET_IFNAME" not in variables  # os.hostname_bindable
        case Fault.NONE_FOUND:
            return _explains_missing(choice, view)
        case Fault.SILENT:
            found = view.of(ReachFacts).values()
            tried = {edge.address for each in found for edge in (*each.edges, *each.elsewhere)}
            return pick.address in tried  # net.reach_tcp, net.other_networks and their like
        case _:
            return False


def _explains_missing(choice: Choice, view: View) -> bool:
    variables = view.of(EnvFacts)[choice.host].variables
    if choice.engine is Engine.HOROVOD and choice.start is Start.HAND:
        own_name = choice.pick.how.startswith("its own name")
        names = {name: each.interface or "?" for name, each in endpoints(view).items()}
        dead = matrix_of(view.of(ReachFacts)).dead  # of which net.reach_tcp and its like tell
        # os.hostname_bindable, net.nic_names
        return own_name or dissent(names) is not None or bool(dead)
    if choice.engine is Engine.HOROVOD:
        return HOROVOD_VARIABLE not in variables  # os.hostname_bindable
    return any(name in variables for name in NAMES[choice.engine])  # env.iface_exists


def _culprits(red: Sequence[Choice], mine: Sequence[Choice], view: View) -> tuple[str, ...]:
    """Return the hosts that take another network than most, else those that most pairs break at."""
    nets = view.of(NetFacts)
    taken = {choice.host: choice for choice in reversed(mine)}
    taken |= {choice.host: choice for choice in reversed(red)}
    split = dissent(
        {host: _network(nets[host], each.pick.address) for host, each in taken.items()}
    )
    if split is not None and split.majority is not None:
        return split.minority
    dead = dict.fromkeys((peer, choice.host) for choice in red for peer in choice.peers)
    found = blame([(a, b) for a in taken for b in taken if a != b], dead)
    named_hosts = {host.host for host in found.hosts} or {each.host for each in red}
    return tuple(host for host in dict.fromkeys(c.host for c in mine) if host in named_hosts)


def _network(facts: NetFacts, address: str) -> str:
    entry = next((each for each in facts.addresses if each.address == address), None)
    return address if entry is None else str(network_of(entry))


def _finding(culprits: tuple[str, ...], red: Sequence[Choice], view: View) -> RuleResult:
    engines = list(dict.fromkeys(choice.engine for choice in red))
    by_run = any(choice.start is Start.RUN for choice in red)
    severity = fail if by_run else warn
    first = {choice.host: choice for choice in reversed(red)}
    told = [f"{host} takes {_where(first[host])}" for host in culprits if host in first]
    more = f", and {len(told) - 2} more hosts" if len(told) > 2 else ""
    finding = severity(
        f"{' and '.join(engine.value for engine in engines)}"
        f"{'' if by_run else ', started by hand,'} cannot meet: {', '.join(told[:2])}{more}",
        culprits,
        seen="\n".join(dict.fromkeys(_format_choice(choice) for choice in red[:MAX_LISTED])),
        expected="addresses that every host reaches"
        + ("" if by_run else "; `distconsole run` names the interface by itself"),
        hint="\n".join(_hints(culprits, engines, red, view)),
    )
    variables = _variables_for(engines, view)
    if by_run or not any(variables.values()):
        return finding
    return msgspec.structs.replace(finding, cure=_cure_of(variables))


def _hints(
    culprits: Sequence[str], engines: Sequence[Engine], red: Sequence[Choice], view: View
) -> Iterator[str]:
    chosen, systems = endpoints(view), view.of(OsFacts)
    named_ones = {choice.host for choice in red if choice.pick.how.startswith("its own name")}
    for host in culprits:
        if host in named_ones and host in chosen:
            yield f"in /etc/hosts of {host}: {chosen[host].address} {systems[host].hostname}"
    typed = _lines_for_shell(_variables_for(engines, view))
    by_hand = any(choice.start is Start.HAND for choice in red)
    if by_hand and typed:
        yield f"for jobs started by hand: {typed}" if "\n" not in typed else typed
    if by_hand and Engine.HOROVOD in engines and _horovodrun_option(view):
        yield f"with horovodrun: {_horovodrun_option(view)}"
    if not by_hand and not named_ones:
        yield network_of_hosts(culprits)


def _format_choice(choice: Choice) -> str:
    how = choice.pick.how
    return f"{choice.engine.value} on {choice.host}: {_where(choice)} ({how}): {choice.why}"


def _where(choice: Choice) -> str:
    return f"{choice.pick.interface} {choice.pick.address}".strip() or "nothing"


def _variables_for(engines: Iterable[Engine], view: View) -> dict[str, dict[str, str]]:
    """Return by host the variables that lead ``engines`` to the addresses that the check tested."""
    wanted = {name for engine in engines for name in NAMES[engine]}
    told = run_variables(endpoints(view), nodes_of(view))
    return {
        host: {name: value for name, value in variables.items() if name in wanted}
        for host, variables in told.items()
    }


def _horovodrun_option(view: View) -> str:
    """Return the option that keeps horovodrun from looking; empty where no one name fits all hosts."""
    names = {endpoint.interface for endpoint in endpoints(view).values()}
    return f"horovodrun --network-interfaces {names.pop()}" if len(names) == 1 else ""


def _cure_of(variables: Mapping[str, Mapping[str, str]]) -> Cure:
    """Return ``variables`` as a cure: for all hosts at once where they agree."""
    everywhere = [each for each in variables.values() if each]
    if everywhere and all(each == everywhere[0] for each in everywhere):
        mca = "OMPI_MCA_"
        return Cure(
            env={name: v for name, v in everywhere[0].items() if not name.startswith(mca)},
            mca={n.removeprefix(mca): v for n, v in everywhere[0].items() if n.startswith(mca)},
            by_run=BY_RUN,
        )
    hosts = {host: HostCure(env=dict(each)) for host, each in variables.items() if each}
    return Cure(hosts=hosts, by_run=BY_RUN)


def _lines_for_shell(variables: Mapping[str, Mapping[str, str]]) -> str:
    """Return ``variables`` as lines for a shell: one for all hosts where they agree."""
    lines = {
        host: "; ".join(f"export {name}={value}" for name, value in each.items())
        for host, each in variables.items()
        if each
    }
    if len(set(lines.values())) == 1:
        return next(iter(lines.values()))
    return "\n".join(f"on {host}: {line}" for host, line in lines.items())


RULES = (_choices,)
