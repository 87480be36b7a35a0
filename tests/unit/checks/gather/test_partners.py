"""Which others a host tries: all of few, and of very many some in both directions."""

from __future__ import annotations

import pytest

from distconsole.checks.gather.partners import ALL_PAIRS_HOSTS, partners


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
