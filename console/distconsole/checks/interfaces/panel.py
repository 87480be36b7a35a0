"""The panel: the choice of every present engine on each host, and whether the hosts then meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from distconsole.checks.facts.evidence import View
from distconsole.checks.facts.node import HorovodFacts, MpiFacts, TorchFacts
from distconsole.checks.gather.addresses import HostEndpoint, endpoints
from distconsole.checks.interfaces import gloo, horovod, nccl, open_mpi
from distconsole.checks.interfaces.node import (
    Around,
    Fault,
    HostWay,
    Node,
    Pick,
    Ways,
    nodes_of,
    summarize,
    ways_of,
)
from distconsole.model.addresses import gloo_connects
from distconsole.model.reports import NOT_FORETOLD, ChoiceReport

MAX_ROUNDS = 4

Picks = Mapping[str, Sequence[Pick]]
"""By host the interface of an engine."""
Judged = Iterator[tuple[str, Pick, Around]]


class Engine(StrEnum):
    NCCL = "NCCL"
    GLOO = "Gloo"
    HOROVOD = "Horovod"
    OPEN_MPI = "Open MPI"
    OPEN_MPI_DAEMONS = "Open MPI's daemons"
    MPICH = "MPICH"
    INTEL_MPI = "Intel MPI"


class Start(StrEnum):
    """How the job is started: by ``distconsole run``, which names the interface, or by hand."""

    RUN = "run"
    HAND = "hand"


UNFORESEEN = frozenset({Engine.MPICH, Engine.INTEL_MPI})
"""Engines whose choice the panel cannot predict.

Both leave it to a transport, libfabric (OFI) or UCX. Which one depends on how the library was built,
and which device that takes on the providers and drivers that it finds when a rank starts.
"""

STEERING = (
    *("FI_PROVIDER", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "I_MPI_OFI_PROVIDER"),
    *("UCX_NET_DEVICES", "UCX_TLS", "MPICH_INTERFACE_HOSTNAME"),
)
"""Variables by which people steer it, whichever it is."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An interface that an engine takes; ``meets``: all reach it (None: unknown), else which ``fault`` and ``peers``."""

    engine: Engine
    start: Start
    host: str
    pick: Pick
    meets: bool | None = None
    fault: Fault | None = None
    why: str = ""
    peers: tuple[str, ...] = ()


def choices_of(view: View) -> tuple[EngineChoice, ...]:
    nodes = nodes_of(view)
    if not nodes:
        return ()
    ways = ways_of(view, nodes)
    return tuple(
        _choice(picked.engine, picked.start, name, pick, found)
        for picked in _pick_all(view, nodes, ways)
        for name, pick, found in _judge(picked, ways)
    )


@dataclass(frozen=True, slots=True)
class _Picked:
    """Choices of one engine on each of ``nodes``, which have the variables that ``start`` sets."""

    engine: Engine
    start: Start
    nodes: Mapping[str, Node]
    picks: Picks


def _pick_all(view: View, nodes: Mapping[str, Node], ways: Ways) -> Iterator[_Picked]:
    """Yield the choices of the engines that at least one host has, for every way to start them."""
    told = run_variables(endpoints(view), nodes)
    by_run = {name: node.with_variables(told.get(name, {})) for name, node in nodes.items()}
    for engine in _present(view):
        for start, placed in ((Start.RUN, by_run), (Start.HAND, nodes)):
            if engine in UNFORESEEN:
                mpis = view.of(MpiFacts)
                placed = {n: placed[n] for n in placed if n in mpis and mpis[n].family == engine}
            if engine is Engine.HOROVOD and start is Start.HAND:
                picks = _by_horovodrun(placed, ways)
            else:
                picks = {name: CHOOSERS[engine](node) for name, node in placed.items()}
            yield _Picked(engine, start, placed, picks)


def run_variables(
    chosen: Mapping[str, HostEndpoint], nodes: Mapping[str, Node]
) -> dict[str, dict[str, str]]:
    """Return by host the variables by which ``distconsole run`` names the interface to every engine."""
    subnets = (
        str(nodes[name].network(each.address) or f"{each.address}/32")
        for name, each in chosen.items()
        if name in nodes
    )
    networks = ",".join(dict.fromkeys(each for each in subnets if ":" not in each))
    found: dict[str, dict[str, str]] = {}
    for name, endpoint in chosen.items():
        nic = endpoint.interface
        if nic is None:
            continue
        loopback = endpoint.address.startswith("127.")
        found[name] = {gloo.VARIABLE: nic, horovod.VARIABLE: nic}
        if not loopback:
            found[name][nccl.VARIABLE] = f"={nic}"
        if not loopback and networks:
            found[name] |= {
                f"OMPI_MCA_{open_mpi.INCLUDE}": networks,
                f"OMPI_MCA_{open_mpi.DAEMON_INCLUDE}": networks,
                f"PRTE_MCA_{open_mpi.PRRTE_INCLUDE}": networks,
            }
    return found


def plan_untried(view: View) -> list[dict[str, HostEndpoint]]:
    """Return rounds of addresses that are chosen, and to which only a route may lead from some hosts.

    Each round has at most one address a host; whoever listens there and who cannot get to it tells
    whether such a choice meets.
    """
    nodes = nodes_of(view)
    if len(nodes) < 2:
        return []
    ways = ways_of(view, nodes)
    own = (
        (name, address)
        for name, node in nodes.items()
        for address in (*(e.address for e in node.addresses if not e.loopback), *node.named)
    )
    if all(ways.around(name, address).unknown is None for name, address in own):
        return []  # whatever they choose
    rounds: list[dict[str, HostEndpoint]] = []
    taken = (each.picks.items() for each in _pick_all(view, nodes, ways))
    for host, pick in ((host, pick) for each in taken for host, picks in each for pick in picks):
        if ways.around(host, pick.address).unknown is None:
            continue
        network = nodes[host].network(pick.address)
        there = HostEndpoint(pick.address, pick.interface, "" if network is None else str(network))
        if any(each.get(host) == there for each in rounds):
            continue
        free = next((each for each in rounds if host not in each), None)
        if free is None and len(rounds) < MAX_ROUNDS:
            free = {}
            rounds.append(free)
        if free is not None:
            free[host] = there
    return rounds


def reports(choices: Iterable[EngineChoice]) -> tuple[ChoiceReport, ...]:
    """Return the choices as ``check --json`` gives them."""
    return tuple(
        ChoiceReport(
            engine=choice.engine.value,
            start=choice.start.value,
            host=choice.host,
            interface=choice.pick.interface,
            address=choice.pick.address,
            how=choice.pick.how,
            meets=choice.meets,
            why=choice.why,
        )
        for choice in choices
    )


def _present(view: View) -> list[Engine]:
    torch = [found for found in view.of(TorchFacts).values() if found.present]
    hvd = [found for found in view.of(HorovodFacts).values() if found.present]
    families = {found.family for found in view.of(MpiFacts).values()}
    mpi = "Open MPI" in families
    there = {
        Engine.NCCL: any(found.cuda or found.nccl for found in torch),
        Engine.GLOO: bool(torch),
        Engine.HOROVOD: any((found.built or {}).get("gloo", True) for found in hvd),
        Engine.OPEN_MPI: mpi,
        Engine.OPEN_MPI_DAEMONS: mpi,
        **{engine: engine.value in families for engine in UNFORESEEN},
    }
    return [engine for engine, present in there.items() if present]


def _nccl(node: Node) -> tuple[Pick, ...]:
    """Return what NCCL takes: with InfiniBand the bootstrap's interface alone."""
    picks, devices = nccl.choose(node), nccl.data(node)
    if not devices:
        return picks
    first = picks[0]
    return (replace(first, how=f"{first.how}; data by InfiniBand: {devices}"),)


def _foretell_nothing(node: Node) -> tuple[Pick, ...]:
    told = [f"{name}={node.variables[name]}" for name in STEERING if name in node.variables]
    how = f"{NOT_FORETOLD}: libfabric or UCX, as it was built, takes what it finds at the start"
    return (Pick("", "", f"{how}; set is {', '.join(told)}" if told else how),)


PICK_OF_IPV6 = Pick("", "", f"{NOT_FORETOLD}: a host has no IPv4 address")
AS_BUILT = HostWay(None, None, "whether Open MPI takes IPv6 depends on how it was built")

CHOOSERS: dict[Engine, Callable[[Node], tuple[Pick, ...]]] = {
    Engine.NCCL: _nccl,
    Engine.GLOO: gloo.choose,
    Engine.HOROVOD: horovod.choose,
    Engine.OPEN_MPI: open_mpi.choose,
    Engine.OPEN_MPI_DAEMONS: open_mpi.choose_for_daemons,
    Engine.MPICH: _foretell_nothing,
    Engine.INTEL_MPI: _foretell_nothing,
}


def _judge(picked: _Picked, ways: Ways) -> Judged:
    mpi = picked.engine in (Engine.OPEN_MPI, Engine.OPEN_MPI_DAEMONS)
    if mpi and any(map(open_mpi.knows_ipv6_alone, picked.nodes.values())):
        return ((name, PICK_OF_IPV6, Around({}, AS_BUILT, 0)) for name in picked.picks)
    match picked.engine:
        case Engine.OPEN_MPI:
            return _judge_pairs(picked.nodes, picked.picks, ways)
        case Engine.OPEN_MPI_DAEMONS:
            return _judge_any(picked.picks, ways)
        case Engine.MPICH | Engine.INTEL_MPI:
            every = picked.picks.items()
            return ((name, pick, Around({}, None, 0)) for name, own in every for pick in own)
        case _:
            return _judge_each(picked.picks, ways, by_gloo=picked.engine is not Engine.NCCL)


def _choice(engine: Engine, start: Start, host: str, pick: Pick, found: Around) -> EngineChoice:
    if found.shut:
        first = next(iter(found.shut.values()))
        peers = tuple(found.shut)
        return EngineChoice(engine, start, host, pick, False, first.fault, first.why, peers)
    if found.unknown is not None:
        return EngineChoice(engine, start, host, pick, None, None, found.unknown.why)
    return EngineChoice(engine, start, host, pick, True if found.peers else None)


def _judge_each(picks: Picks, ways: Ways, *, by_gloo: bool) -> Judged:
    """Whoever connects goes to the address that the other published."""
    families = {name: {":" in p.address for p in own if p.address} for name, own in picks.items()}
    mixed = len({each for found in families.values() for each in found}) > 1
    for name, own in picks.items():
        for place, pick in enumerate(own):
            found = ways.around(name, pick.address)
            if by_gloo:
                found = _without_listeners(found, place, pick, picks)
            if by_gloo and mixed:
                found = _keep_family(found, name, pick, families)
            yield name, pick, found


def _without_listeners(found: Around, place: int, pick: Pick, picks: Picks) -> Around:
    """Leave out peers that would only find loopback there, and that wait to be connected to."""
    shut = {
        peer: way
        for peer, way in found.shut.items()
        if way.fault is not Fault.LOOPBACK
        or gloo_connects(picks[peer][min(place, len(picks[peer]) - 1)].address, pick.address)
    }
    return Around(shut, found.unknown, found.peers)


def _keep_family(
    found: Around, name: str, pick: Pick, families: Mapping[str, set[bool]]
) -> Around:
    other = {
        peer: HostWay(False, Fault.APART, f"{peer} takes the other family of addresses")
        for peer, theirs in families.items()
        if peer != name and peer not in found.shut and (":" in pick.address) not in theirs
    }
    return Around({**found.shut, **other}, found.unknown, found.peers)


def _judge_any(picks: Picks, ways: Ways) -> Judged:
    """All addresses are tried until one answers."""
    for name, own in picks.items():
        around = [ways.around(name, pick.address) for pick in own]
        lost = set(around[0].shut).intersection(*(each.shut for each in around[1:]))
        for pick, each in zip(own, around, strict=True):
            shut = {peer: way for peer, way in each.shut.items() if peer in lost}
            yield name, pick, Around(shut, each.unknown, each.peers)


def _judge_pairs(nodes: Mapping[str, Node], picks: Picks, ways: Ways) -> Judged:
    """Interfaces are matched pair by pair, and messages go over all pairs at once."""
    sides = {name: open_mpi.side_of(node) for name, node in nodes.items()}
    places = {name: place for place, name in enumerate(nodes)}
    uses: dict[str, list[dict[str, HostWay]]] = {
        name: [{} for _ in own] for name, own in picks.items()
    }
    together = dict.fromkeys(
        (one, other) if places[one] < places[other] else (other, one)
        for one in nodes
        for other in ways.partners(one)
        if other in nodes
    )
    for one, other in together:
        matched = open_mpi.pairs(sides[one], sides[other])
        for x, y in matched:
            a, b = sides[one].picks[x], sides[other].picks[y]
            forth, back = ways.way(one, other, b.address), ways.way(other, one, a.address)
            worse = forth if forth.open is False or back.open else back
            uses[one][x][other] = worse
            uses[other][y][one] = worse
        if not matched:
            nothing = HostWay(False, Fault.APART, f"no interfaces of {one} and {other} fit")
            for name, peer in ((one, other), (other, one)):
                for use in uses[name]:
                    use[peer] = nothing
    for name, own in picks.items():
        for pick, use in zip(own, uses[name], strict=True):
            yield name, pick, summarize(use)


def _by_horovodrun(nodes: Mapping[str, Node], ways: Ways) -> Mapping[str, tuple[Pick, ...]]:
    if len({ways.machine_of.get(name) for name in nodes}) == 1:
        local = Pick("lo", "127.0.0.1", "all hosts are one machine")
        return dict.fromkeys(nodes, (local,))
    return horovod.choose_by_probe(
        list(nodes.values()),
        lambda source, target, address: (
            ways.way(source.name, target.name, address).open is not False
        ),
    )
