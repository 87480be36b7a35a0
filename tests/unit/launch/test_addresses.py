"""Which addresses are chosen for training traffic."""

from dataclasses import replace

import pytest

from distconsole.errors import PlanError
from distconsole.launch.place import choose_addresses
from distconsole.launch.plan import NodeFacts
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Host
from distconsole.model.names import HostName

LO = Interface("lo", "127.0.0.1", 8, loopback=True)


def node(*interfaces: Interface, boot: str = "", at: str = "") -> NodeFacts:
    return NodeFacts("/usr/bin/python3", 8, 0, (LO, *interfaces), boot, at)


def eth(address: str, name: str = "eth0", prefix: int = 24, *, up: bool = True) -> Interface:
    return Interface(name, address, prefix, up=up)


def chosen(
    facts: list[NodeFacts], nic: str | None = None, **host_fields: str
) -> tuple[list[tuple[str, str | None]], tuple[str, ...]]:
    hosts = [Host(HostName(f"n{i}"), **host_fields) for i in range(len(facts))]  # type: ignore[arg-type]
    known = {h.name: f for h, f in zip(hosts, facts, strict=True)}
    endpoints, notes = choose_addresses(hosts, known, nic)
    return [(endpoints[h.name].address, endpoints[h.name].nic) for h in hosts], notes


def test_the_subnet_that_all_hosts_share_is_taken() -> None:
    found, notes = chosen(
        [
            node(eth("192.168.1.5", "wlan0"), eth("10.1.0.1", "ens5")),
            node(eth("172.20.0.9", "eth0"), eth("10.1.0.2", "enp1s0")),
        ]
    )
    assert found == [("10.1.0.1", "ens5"), ("10.1.0.2", "enp1s0")]
    assert notes == ()


def test_the_address_that_ssh_reached_breaks_a_tie() -> None:
    facts = [
        node(eth("10.1.0.1", "a"), eth("10.2.0.1", "b"), at="10.2.0.1"),
        node(eth("10.1.0.2", "a"), eth("10.2.0.2", "b"), at="10.2.0.2"),
    ]
    assert chosen(facts)[0] == [("10.2.0.1", "b"), ("10.2.0.2", "b")]


@pytest.mark.parametrize(
    "useless",
    [
        eth("172.17.0.1", "docker0", 16),
        eth("172.18.0.1", "br-4f2a", 16),
        eth("10.0.0.1", "down0", up=False),
        eth("169.254.3.3", "eth9", 16),
        eth("172.30.0.1", "strange0", 16),  # the same on both machines: a bridge of its own
    ],
)
def test_what_other_hosts_cannot_reach_is_not_taken(useless: Interface) -> None:
    facts = [
        node(useless, eth("10.1.0.1"), boot="one"),
        node(useless, eth("10.1.0.2"), boot="two"),
    ]
    assert chosen(facts)[0] == [("10.1.0.1", "eth0"), ("10.1.0.2", "eth0")]


def test_ipv4_is_preferred_and_ipv6_is_used_where_it_is_all_there_is() -> None:
    both = [
        node(eth("fd00::1", prefix=64), eth("10.1.0.1")),
        node(eth("fd00::2", prefix=64), eth("10.1.0.2")),
    ]
    assert chosen(both)[0][0] == ("10.1.0.1", "eth0")
    only = [node(eth("fd00::1", prefix=64)), node(eth("fd00::2", prefix=64))]
    assert chosen(only)[0] == [("fd00::1", "eth0"), ("fd00::2", "eth0")]


def test_hosts_without_a_shared_subnet_get_a_note() -> None:
    facts = [node(eth("10.1.0.1"), at="10.1.0.1"), node(eth("10.9.0.2"), at="10.9.0.2")]
    found, notes = chosen(facts)
    assert found == [("10.1.0.1", "eth0"), ("10.9.0.2", "eth0")]
    assert "share no subnet" in notes[0]


def test_one_host_uses_loopback_if_it_is_this_machine_and_else_its_own_address() -> None:
    assert chosen([node(eth("10.1.0.1"))], local=True)[0] == [("127.0.0.1", "lo")]  # type: ignore[arg-type]
    assert chosen([node(eth("10.1.0.1"))])[0] == [("10.1.0.1", "eth0")]


def test_several_servers_on_one_machine_use_loopback() -> None:
    # An interface may come between two looks: the network tells the machine.
    came = node(eth("10.1.0.1"), eth("10.9.0.1", "docker0"), boot="b")
    same = [replace(each, network="net:[4]") for each in (node(eth("10.1.0.1"), boot="b"), came)]
    found, notes = chosen(same)
    assert found == [("127.0.0.1", "lo")] * 2
    assert "one machine" in notes[0] or "this one" in notes[0]


def test_containers_of_one_machine_are_hosts_of_their_own() -> None:
    facts = [node(eth("10.1.0.1"), boot="b"), node(eth("10.1.0.2"), boot="b")]
    assert chosen(facts)[0] == [("10.1.0.1", "eth0"), ("10.1.0.2", "eth0")]
    facts = [replace(each, network=f"net:[{at}]") for at, each in enumerate(facts)]
    assert chosen(facts)[0] == [("10.1.0.1", "eth0"), ("10.1.0.2", "eth0")]


def test_the_interface_asked_for_wins_over_the_shared_subnet() -> None:
    facts = [
        node(eth("10.1.0.1"), eth("10.8.0.1", "ib0")),
        node(eth("10.1.0.2"), eth("10.8.0.2", "ib0")),
    ]
    assert chosen(facts, nic="ib0")[0] == [("10.8.0.1", "ib0"), ("10.8.0.2", "ib0")]
    assert chosen(facts, nic="auto")[0][0] == ("10.1.0.1", "eth0")


def test_an_interface_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    with pytest.raises(PlanError, match="n0 has no interface ib0") as caught:
        chosen([node(eth("10.1.0.1"))], nic="ib0")
    assert "eth0, lo" in caught.value.hint


def test_a_configured_address_is_taken_as_it_is() -> None:
    found, _ = chosen([node(eth("10.1.0.1")), node(eth("10.1.0.2"))], address="10.1.0.1")
    assert found[0] == ("10.1.0.1", "eth0")


def test_a_host_without_any_address_is_an_error() -> None:
    with pytest.raises(PlanError, match="n1 has no address"):
        chosen([node(eth("10.1.0.1"), boot="a"), node(boot="b")])
