"""Broken connections are explained by as few culprits as possible; which others a host tries."""

import itertools

import pytest

from distconsole.checks.gather.addresses import ALL_PAIRS_HOSTS, partners
from distconsole.checks.gather.attribution import Direction, blame, cover, usual
from distconsole.checks.gather.pair_bandwidth import MATCHINGS, rounds_of
from distconsole.checks.rules.wording import dissent, name_hosts


def pairs(names: str) -> list[tuple[str, str]]:
    return list(itertools.permutations(names, 2))


def test_no_broken_pair_blames_nobody() -> None:
    found = blame(pairs("abcd"), [])
    assert (found.hosts, found.links, found.one_way, found.everyone) == ((), (), (), ())


@pytest.mark.parametrize("size", [3, 4, 8, 16])
def test_a_dead_host_explains_all_its_pairs(size: int) -> None:
    names = "abcdefghijklmnop"[:size]
    found = blame(pairs(names), [pair for pair in pairs(names) if "b" in pair])
    assert [(host.host, host.direction) for host in found.hosts] == [("b", Direction.BOTH)]
    assert not found.links
    assert not found.one_way


def test_three_faults_at_once_are_told_apart() -> None:
    names = "abcdefghijklmnop"
    broken = [(name, "m") for name in names if name != "m"] + [("d", "j"), ("j", "d"), ("a", "b")]
    found = blame(pairs(names), broken)
    assert [(host.host, host.direction) for host in found.hosts] == [("m", Direction.INTO)]
    assert found.links == (("d", "j"),)
    assert found.one_way == (("a", "b"),)


def test_one_bad_pair_among_three_blames_no_host() -> None:
    found = blame(pairs("abc"), [("a", "b"), ("b", "a")])
    assert not found.hosts
    assert found.links == (("a", "b"),)


def test_where_nothing_works_nobody_is_to_blame() -> None:
    assert blame(pairs("abcd"), pairs("abcd")).everyone == ("a", "b", "c", "d")


def test_most_broken_pairs_at_one_host_are_that_hosts_fault() -> None:
    broken = [("a", "e"), ("e", "a"), ("b", "e"), ("e", "b"), ("c", "e")]
    found = blame(pairs("abcdef"), broken)
    assert [host.host for host in found.hosts] == ["e"]


def test_a_slow_host_does_not_set_what_is_usual() -> None:
    rates = {pair: (0.1 if "c" in pair else 10.0) for pair in pairs("abc")}
    assert usual(rates, max) == 10.0


def test_the_minority_is_named_first() -> None:
    values = {f"h{number}": "2.13.0" for number in range(13)} | {"h13": "2.12.1"}
    found = dissent(values)
    assert found.told("torch") == "h13 has torch 2.12.1, 13 of 14 hosts have 2.13.0"
    assert found.minority == ("h13",)


def test_a_tie_has_no_majority() -> None:
    found = dissent({"a": 1, "b": 2})
    assert found.majority is None
    assert found.minority == ("a", "b")


def test_agreement_is_no_dissent() -> None:
    assert dissent({"a": 1, "b": 1}) is None
    assert dissent({}) is None


def test_long_lists_of_hosts_are_cut() -> None:
    assert name_hosts([f"h{number}" for number in range(9)]) == "h0, h1, h2, h3, h4 and 4 more"


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16, 32])
def test_a_tournament_plays_each_pair_once_and_nobody_twice_a_round(size: int) -> None:
    names = [f"h{number}" for number in range(size)]
    rounds = rounds_of(names)
    met = [frozenset(pair) for pairs_ in rounds for pair in pairs_]
    assert len(met) == len(set(met)) == size * (size - 1) // 2
    for pairs_ in rounds:
        players = [name for pair in pairs_ for name in pair]
        assert len(players) == len(set(players))
    assert len(rounds) == (size - 1 if size % 2 == 0 else size)


def test_many_hosts_are_sampled() -> None:
    assert len(rounds_of([f"h{number}" for number in range(100)])) == MATCHINGS


def test_a_host_whose_pairs_fail_in_part_is_told_from_those_it_met() -> None:
    into = [(name, "c") for name in "abd"]
    out = [("c", "a"), ("c", "e")]
    assert cover([*into, *out]) == {"c": (*into, *out)}


def test_where_nobody_stands_out_the_target_has_the_fault() -> None:
    assert cover([("a", "b")]) == {"b": (("a", "b"),)}
    assert cover([("a", "b"), ("b", "a")]) == {"b": (("a", "b"),), "a": (("b", "a"),)}


def test_two_hosts_with_blocked_ports_are_two() -> None:
    broken = [("a", "x"), ("b", "x"), ("c", "x"), ("a", "y"), ("b", "y")]
    assert list(cover(broken)) == ["x", "y"]


class CountedName(str):
    """A host's name, of which it is counted how often any is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_a_dead_rack_is_found_without_a_look_at_every_pair_for_every_host() -> None:
    names = [CountedName(f"n{number}") for number in range(160)]
    tried = [(name, other) for place, name in enumerate(names) for other in partners(names, place)]
    rack = set(names[:16])
    CountedName.compared = 0
    found = blame(tried, [pair for pair in tried if rack & set(pair)])
    assert {host.host for host in found.hosts} == rack
    assert CountedName.compared < 20 * len(tried)


def test_few_hosts_try_all_others() -> None:
    assert partners("abcd", 1) == ["a", "c", "d"]
    assert len(partners(range(ALL_PAIRS_HOSTS), 5)) == ALL_PAIRS_HOSTS - 1


@pytest.mark.parametrize("count", [ALL_PAIRS_HOSTS + 1, 200, 1024, 1025, 4096])
def test_of_very_many_each_is_tried_by_those_that_it_tries(count: int) -> None:
    tries = {place: set(partners(range(count), place)) for place in range(count)}
    for place, others in tries.items():
        assert place not in others
        assert all(place in tries[other] for other in others)
    assert {len(others) for others in tries.values()} == {len(tries[0])}
    assert 14 <= len(tries[0]) <= 24
