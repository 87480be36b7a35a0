"""What nodes say of their networks and of the ways between them."""

from __future__ import annotations

import msgspec

from distconsole.checks.facts.node import Facts, Who


class Port(Facts, frozen=True, kw_only=True):
    """One TCP port."""

    free: bool
    why: str = ""
    holder: Who | None = None


class PortFacts(Facts, frozen=True, kw_only=True):
    """Group ``port``."""

    ports: dict[str, Port] = msgspec.field(default_factory=dict)


class NetAddress(Facts, frozen=True, kw_only=True):
    """One address of an interface."""

    iface: str
    address: str
    prefix: int = 0
    family: int = 4
    up: bool = True
    loopback: bool = False


class NetInterface(Facts, frozen=True, kw_only=True):
    """One interface as /sys describes it."""

    mtu: int | None = None
    state: str | None = None
    speed_mbit: int | None = None
    mac: str | None = None
    hardware: bool = False
    bridge: bool = False


class NetFacts(Facts, frozen=True, kw_only=True):
    """Group ``net``: interfaces, and by peer address the source address towards it."""

    addresses: tuple[NetAddress, ...] = ()
    interfaces: dict[str, NetInterface] = msgspec.field(default_factory=dict)
    routes: dict[str, str | None] = msgspec.field(default_factory=dict)


class Edge(Facts, frozen=True, kw_only=True):
    """One connection tried from ``source`` to ``address`` of ``target``; ``fixed`` tells the fixed port."""

    source: str
    target: str
    port: int
    fixed: bool
    ok: bool
    error: str = ""
    errno: str = ""
    """The name of the system's code, such as EHOSTUNREACH; empty where it gave none."""
    connect_us: float | None = None
    rtt_us: float | None = None
    local_address: str = ""
    seen_address: str = ""
    network: str = ""
    address: str = ""
    bulk: bool | None = None


class ReachFacts(Facts, frozen=True, kw_only=True):
    """What a host tried to reach, on the network that the ranks would use, and where it listened."""

    address: str
    interface: str | None = None
    listening: tuple[int, ...] = ()
    listen_error: str = ""
    edges: tuple[Edge, ...] = ()
    elsewhere: tuple[Edge, ...] = ()
    """Connections on the other networks that all hosts share, which an engine may pick by itself."""
    chosen: tuple[Edge, ...] = ()
    """Connections to addresses that an engine will choose in a network that not all hosts are in."""


class Stream(Facts, frozen=True, kw_only=True):
    """One TCP stream; ``gbit_s`` is the best of the repetitions, None when it failed."""

    source: str
    target: str
    gbit_s: float | None
    samples: int = 1
    retransmits: int = 0
    error: str = ""


class BandwidthFacts(Facts, frozen=True, kw_only=True):
    """The streams that a host sent; ``controls`` are of pairs that are not slow, beside slow ones."""

    streams: tuple[Stream, ...] = ()
    controls: tuple[Stream, ...] = ()
