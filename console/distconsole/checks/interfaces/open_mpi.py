"""Open MPI's choice of interfaces: of its ranks (btl_tcp) and of its daemons (oob_tcp).

Sources: opal/mca/btl/tcp/btl_tcp_component.c (all interfaces that are up, less
``btl_tcp_if_exclude``, by default 127.0.0.1/8 and sppp), btl_tcp_proc.c (local and remote
interfaces are matched: as many pairs as there can be, and of these the greatest weight),
opal/mca/reachable/weighted/reachable_weighted.c (the weights) and orte/mca/oob/tcp of open-mpi/ompi
4.1, which 5 keeps (the daemons': PRRTE, ``prte_if_include``). Only IPv4: whether it takes IPv6, too, depends on how
it was built (Debian's does), and no subnet of IPv6 can be named to it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from distconsole.checks.interfaces.node import Node, Pick
from distconsole.model.addresses import ip_of, network_of

INCLUDE, EXCLUDE = "btl_tcp_if_include", "btl_tcp_if_exclude"
DAEMON_INCLUDE, DAEMON_EXCLUDE = "oob_tcp_if_include", "oob_tcp_if_exclude"
PRRTE_INCLUDE, PRRTE_EXCLUDE = "prte_if_include", "prte_if_exclude"
DEFAULT_EXCLUDED = "127.0.0.1/8,sppp"
PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"))
)
"""``opal_net_private_ipv4``."""

MAX_MATCHED = 10
"""Interfaces of a host that are matched with another's."""


def choose(node: Node) -> tuple[Pick, ...]:
    return _choose_picks(
        node, _parameter(node, INCLUDE), _parameter(node, EXCLUDE) or DEFAULT_EXCLUDED, INCLUDE
    )


def choose_for_daemons(node: Node) -> tuple[Pick, ...]:
    """Return the addresses that its daemons tell each other; the first that answers is used."""
    include = _parameter(node, DAEMON_INCLUDE) or _parameter(node, PRRTE_INCLUDE, "PRTE_MCA_")
    exclude = _parameter(node, DAEMON_EXCLUDE) or _parameter(node, PRRTE_EXCLUDE, "PRTE_MCA_")
    return _choose_picks(node, include, exclude, DAEMON_INCLUDE)


def knows_ipv6_alone(node: Node) -> bool:
    """Whether the host has addresses that others could reach, and none of IPv4."""
    return {each.family for each in node.addresses if each.up and not each.loopback} == {6}


def _parameter(node: Node, name: str, prefix: str = "OMPI_MCA_") -> str:
    return node.variables.get(f"{prefix}{name}") or node.parameters.get(name, "")


def _choose_picks(node: Node, include: str, exclude: str, parameter: str) -> tuple[Pick, ...]:
    up = [each for each in node.addresses if each.family == 4 and each.up and not each.loopback]
    if include:
        how = f"{parameter}={include}"
        found = [each for each in up if _is_in_list(each.iface, each.address, include)]
    else:
        how = "every interface that is up"
        found = [each for each in up if not _is_in_list(each.iface, each.address, exclude)]
    picks = tuple(Pick(each.iface, each.address, how) for each in found)
    return picks or (Pick("", "", f"{how}: it has none" if include else "no interface is up"),)


def _is_in_list(interface: str, address: str, words: str) -> bool:
    ip = ip_of(address)
    for word in words.split(","):
        network = network_of(*word.split("/", 1)) if "/" in word else None
        if word == interface or (ip is not None and network is not None and ip in network):
            return True
    return False


Matched = tuple[tuple[int, int], ...]


class Weighed(NamedTuple):
    """An interface as its weight in a pair is computed from it; address, network and mask are numbers."""

    address: int
    network: int
    mask: int
    private: bool
    mbit_s: int


@dataclass(frozen=True, slots=True)
class Side:
    """The interfaces of one host that its ranks can pair."""

    picks: tuple[Pick, ...]
    weighed: tuple[Weighed, ...]


def side_of(node: Node) -> Side:
    picks = tuple(pick for pick in choose(node) if pick.address)[:MAX_MATCHED]
    return Side(picks, tuple(_weigh(node, pick) for pick in picks))


def pairs(one: Side, other: Side) -> Matched:
    """Return which interface of ``one`` its ranks pair with which of ``other``, by their places."""
    return _match_weights(tuple(tuple(_weight(a, b) for b in other.weighed) for a in one.weighed))


@lru_cache(maxsize=256)
def _match_weights(weights: tuple[tuple[int, ...], ...]) -> Matched:
    @cache
    def best(row: int, taken: frozenset[int]) -> tuple[int, int, Matched]:
        """Return how many pairs there can be from ``row`` on, their weight, and they themselves."""
        if row == len(weights):
            return 0, 0, ()
        most = best(row + 1, taken)
        for column, weight in enumerate(weights[row]):
            if weight and column not in taken:
                count, total, rest = best(row + 1, taken | {column})
                if (count + 1, total + weight) > most[:2]:
                    most = count + 1, total + weight, ((row, column), *rest)
        return most

    return best(0, frozenset())[2]


def _weigh(node: Node, pick: Pick) -> Weighed:
    ip, network = ip_of(pick.address), node.network(pick.address)
    assert ip is not None, pick
    known = node.interfaces.get(pick.interface)
    speed = (known.speed_mbit if known is not None else 0) or 0
    private = any(ip in each for each in PRIVATE)
    if network is None:
        return Weighed(int(ip), int(ip), (1 << ip.max_prefixlen) - 1, private, speed)
    return Weighed(int(ip), int(network.network_address), int(network.netmask), private, speed)


def _weight(a: Weighed, b: Weighed) -> int:
    if a.private != b.private:
        return 0
    same = b.address & a.mask == a.network
    quality = (80 if same else 50) if a.private else (100 if same else 90)
    return int(quality * (min(a.mbit_s, b.mbit_s) + 1.0 / (1.0 + abs(a.mbit_s - b.mbit_s))))
