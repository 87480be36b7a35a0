"""What nodes say of their networks, of variables that steer who uses which, and of the ways between them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from distconsole.checks.facts.evidence import View, by_key, once_a_view
from distconsole.checks.facts.node import Facts, OsFacts, Who
from distconsole.checks.gather.attribution import Pair
from distconsole.model.addresses import Network, network_of
from distconsole.model.reports import PairReport


class Port(Facts, frozen=True, kw_only=True):
    free: bool
    why: str = ""
    holder: Who | None = None


class PortFacts(Facts, frozen=True, kw_only=True):
    group: ClassVar[str] = "port"
    ports: dict[str, Port] = msgspec.field(default_factory=dict)


class NetAddress(Facts, frozen=True, kw_only=True):
    iface: str
    address: str
    prefix: int = 0
    family: int = 4
    up: bool = True
    loopback: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if it is none: rules compare addresses as numbers."""
        ipaddress.ip_address(self.address)

    @property
    def network(self) -> Network | None:
        return network_of(self.address, self.prefix)


class NetInterface(Facts, frozen=True, kw_only=True):
    state: str | None = None
    speed_mbit: int | None = None


class NetFacts(Facts, frozen=True, kw_only=True):
    """Interfaces, and by peer address the source address towards it; ``namespace`` is the kernel's name of theirs."""

    group: ClassVar[str] = "net"
    namespace: str = ""
    addresses: tuple[NetAddress, ...] = ()
    interfaces: dict[str, NetInterface] = msgspec.field(default_factory=dict)
    routes: dict[str, str | None] = msgspec.field(default_factory=dict)


class EnvFacts(Facts, frozen=True, kw_only=True):
    """Variables that steer the engines, as a rank would get them.

    ``files`` are the lines of NCCL's, ``parameters`` those of Open MPI's, of which the last one wins;
    both without comments.
    """

    group: ClassVar[str] = "env"
    leans_on = (NetFacts,)
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    files: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    parameters: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class Edge(Facts, frozen=True, kw_only=True):
    """One connection tried from ``source`` to ``address`` of ``target``; ``fixed`` tells the fixed port."""

    source: str
    target: str
    port: int
    fixed: bool
    ok: bool
    error: str = ""
    errno: str = ""
    """The name of the system's code, such as EHOSTUNREACH; empty without one."""
    rtt_us: float | None = None
    local_address: str = ""
    seen_address: str = ""
    network: str = ""
    address: str = ""
    bulk: bool | None = None


class ReachFacts(Facts, frozen=True, kw_only=True):
    """Connections that a host tried on the ranks' network, and its own listeners."""

    group: ClassVar[str] = "reach"
    leans_on = (NetFacts,)
    address: str
    interface: str | None = None
    listen_error: str = ""
    edges: tuple[Edge, ...] = ()
    elsewhere: tuple[Edge, ...] = ()
    """Connections on the other networks that all hosts share, which an engine may choose."""
    chosen: tuple[Edge, ...] = ()
    """Connections to addresses that an engine will choose in a network that not all hosts are in."""


class TimedStream(Facts, frozen=True, kw_only=True):
    """One TCP stream; ``gbit_s`` is the best of the repetitions, None when it failed."""

    source: str
    target: str
    gbit_s: float | None
    samples: int = 1
    retransmits: int = 0
    error: str = ""


class BandwidthFacts(Facts, frozen=True, kw_only=True):
    """The streams that a host sent; ``controls`` are of pairs that are not slow, beside slow ones."""

    group: ClassVar[str] = "bandwidth"
    leans_on = (ReachFacts, NetFacts)
    streams: tuple[TimedStream, ...] = ()
    controls: tuple[TimedStream, ...] = ()


class PeerName(Facts, frozen=True, kw_only=True):
    """Meaning of a name on one host; ``late`` if its resolver did not answer in time."""

    addresses: tuple[str, ...] = ()
    error: str = ""
    late: bool = False


class NameFacts(Facts, frozen=True, kw_only=True):
    """The names of all hosts, as this host resolves them."""

    group: ClassVar[str] = "names"
    leans_on = (OsFacts, NetFacts)
    names: dict[str, PeerName]


class LoginAttempt(Facts, frozen=True, kw_only=True):
    """One host's own ssh to another: by which ``name``; ``error`` is the kind of failure."""

    target: str
    name: str = ""
    ok: bool = False
    error: str = ""
    said: str = ""
    seconds: float = 0.0


class BetweenFacts(Facts, frozen=True, kw_only=True):
    """``client``: whether the host has an ssh."""

    group: ClassVar[str] = "between"
    client: bool = True
    logins: tuple[LoginAttempt, ...] = ()


SILENT = "silent"
"""The error of a connection that came about and was not answered (``connecting`` on the node)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What the edges say of pairs: dead (no port answers), some dead ports, only small messages.

    A connection that came about, and whose listener then said nothing in time, tells nothing of the
    network: it counts nowhere, and a pair that has no other is ``unsure``.
    """

    tried: tuple[Pair, ...]
    dead: dict[Pair, tuple[Edge, ...]]
    partial: dict[Pair, tuple[Edge, ...]]
    small_only: dict[Pair, tuple[Edge, ...]]
    edges: dict[Pair, tuple[Edge, ...]]
    unsure: tuple[Pair, ...] = ()


@once_a_view
def matrix_of(view: View) -> Matrix:
    """Sort the edges by pair; edges to hosts that could not listen were not tried."""
    every = (edge for found in view.of(ReachFacts).values() for edge in found.edges)
    pairs = by_key(((edge.source, edge.target), edge) for edge in every)
    told = {pair: [e for e in found if e.error != SILENT] for pair, found in pairs.items()}
    edges = {pair: tuple(found) for pair, found in told.items() if found}
    dead = {pair: found for pair, found in edges.items() if not any(edge.ok for edge in found)}
    partial = {
        pair: found
        for pair, found in edges.items()
        if pair not in dead and not all(edge.ok for edge in found)
    }
    small_only = {
        pair: found
        for pair, found in edges.items()
        if any(edge.bulk is False for edge in found) and not any(edge.bulk for edge in found)
    }
    unsure = tuple(pair for pair in pairs if pair not in edges)
    return Matrix(tuple(edges), dead, partial, small_only, edges, unsure)


def pair_reports(
    edges: Iterable[Edge], rates: Mapping[Pair, float | None] | None = None
) -> Iterator[PairReport]:
    """Yield one report a pair, of the connections (``edges``) that were tried; ``rates`` are Gbit/s."""
    by_pair = by_key(((edge.source, edge.target), edge) for edge in edges)
    for (source, target), tried in by_pair.items():
        times = [edge.rtt_us for edge in tried if edge.rtt_us is not None]
        lost = [edge for edge in tried if not edge.ok]
        bulk = [edge.bulk for edge in tried if edge.bulk is not None]
        small = "small messages pass and large ones do not" if bulk and not any(bulk) else ""
        yield PairReport(
            source=source,
            target=target,
            rtt_us=min(times) if times else None,
            gbit_s=(rates or {}).get((source, target)),
            reachable=not lost,
            error=f"{len(lost)} of {len(tried)} ports: {lost[0].error}" if lost else small,
        )
