"""Connections that fail: the cure fits the system's code, and what has one cause is one finding."""

from collections.abc import Mapping, Sequence
from itertools import permutations

import pytest

from distconsole.checks.engine.catalogue import find_rule
from distconsole.checks.engine.rule import Verdicts, judge
from distconsole.checks.facts.evidence import HostEvidence, View
from distconsole.checks.facts.network import Edge, ReachFacts
from distconsole.checks.facts.node import KernelEvent, KernelFacts
from distconsole.model.cluster import Host
from distconsole.model.findings import Finding
from distconsole.model.names import HostName

OVERFLOW = "neighbour: arp_cache: neighbor table overflow!"
Broken = Mapping[tuple[str, str], tuple[str, str]]
"""By pair the word and the code with which its connections fail."""


def found_in(
    names: Sequence[str], broken: Broken, overflow: Mapping[str, float] | None = None
) -> list[Finding]:
    """Return what the checks of ways find; ``overflow`` is by host how old the kernel's line is."""
    edges = [
        Edge(
            source=one,
            target=other,
            port=port,
            fixed=port == 29500,
            ok=(one, other) not in broken,
            error=broken.get((one, other), ("", ""))[0],
            errno=broken.get((one, other), ("", ""))[1],
        )
        for one, other in permutations(names, 2)
        for port in (29500, 40001)
    ]
    hosts = []
    for number, name in enumerate(names):
        host = HostEvidence(Host(HostName(name)))
        mine = tuple(edge for edge in edges if edge.source == name)
        host.add_facts(ReachFacts(address=f"10.0.0.{number + 1}", edges=mine))
        age = (overflow or {}).get(name)
        lines = (
            ()
            if age is None
            else (KernelEvent(kind="neighbours", age_seconds=age, text=OVERFLOW),)
        )
        host.add_facts(KernelFacts(source="kmsg", events=lines))
        hosts.append(host)
    verdicts = Verdicts()
    view = View(tuple(hosts), tuple(names))
    for check in ("net.reach_tcp", "net.asymmetric", "net.port_ephemeral"):
        rule = find_rule(check)
        assert rule is not None
        judge(rule, hosts, view, verdicts)
    return verdicts.findings


def both(one: str, other: str, word: str, code: str) -> Broken:
    return {(one, other): (word, code), (other, one): (word, code)}


@pytest.mark.parametrize(
    ("word", "code", "because", "hint", "no_hint"),
    [
        ("no_route", "EHOSTUNREACH", "no route to the host", "ip neigh show 10.0.0.2", "-I INPUT"),
        (
            "no_route",
            "ENETUNREACH",
            "no route to the network",
            "ip route get 10.0.0.2",
            "iptables",
        ),
        ("No buffer space available", "ENOBUFS", "no buffer space", "gc_thresh3", "iptables"),
        ("refused", "ECONNREFUSED", "refused", "-j REJECT", "-I INPUT"),
        ("timeout", "ETIMEDOUT", "no answer", "sudo iptables -I INPUT -s 10.0.0.1", "gc_thresh"),
        ("timeout", "", "no answer", "sudo iptables -I INPUT -s 10.0.0.1", "gc_thresh"),
    ],
)
def test_the_cure_fits_the_code_with_which_a_connection_fails(
    word: str, code: str, because: str, hint: str, no_hint: str
) -> None:
    (found,) = found_in("abcd", both("a", "b", word, code))
    assert found.summary == f"a and b cannot reach each other: {because}"
    assert hint in found.hint
    assert no_hint not in found.hint
    assert f"a -> b: {word}{f' ({code})' if code else ''}" in found.seen


def test_pairs_with_one_cause_are_one_finding_and_with_two_are_two() -> None:
    names = "abcdefgh"
    refused = {
        **both("a", "b", "refused", "ECONNREFUSED"),
        **both("c", "d", "refused", "ECONNREFUSED"),
    }
    (found,) = found_in(names, refused)
    assert found.hosts == ("a", "b", "c", "d")
    assert found.summary == "2 pairs of hosts cannot reach each other: refused"
    two = found_in(names, {**refused, **both("e", "f", "timeout", "")})
    assert [each.hosts for each in two] == [("a", "b", "c", "d"), ("e", "f")]
    (one_way,) = found_in(names, {("a", "b"): ("timeout", ""), ("c", "d"): ("timeout", "")})
    assert one_way.check == "net.asymmetric"
    assert "2 pairs of hosts reach each other in one direction only: no answer" in one_way.summary


def test_a_neighbour_table_that_overflowed_is_one_finding_with_its_own_cure() -> None:
    names = [f"node{number}" for number in range(1, 33)]
    broken: dict[tuple[str, str], tuple[str, str]] = {}
    for number in range(16):
        word = ("timeout", "") if number % 2 else ("no_route", "EHOSTUNREACH")
        one, other = names[number], names[number + 16]
        broken |= {(one, other): word} if number % 5 == 0 else both(one, other, *word)
    (found,) = found_in(names, broken, dict.fromkeys(names, 3.0))
    assert found.summary == (
        "16 pairs of hosts cannot reach each other: the neighbour table overflowed"
    )
    assert "gc_thresh3=" in found.hint
    assert "iptables" not in found.hint
    assert f"kernel's log on node1: {OVERFLOW}" in found.seen


@pytest.mark.parametrize(
    ("age", "word", "code"), [(4000.0, "timeout", ""), (3.0, "refused", "ECONNREFUSED")]
)
def test_a_table_that_overflowed_long_ago_or_a_refusal_is_not_put_down_to_it(
    age: float, word: str, code: str
) -> None:
    (found,) = found_in("abcd", both("a", "b", word, code), {"a": age})
    assert "neighbour" not in found.summary
    assert "iptables" in found.hint
