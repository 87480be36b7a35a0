"""The number that a process group gives the one process of a node, and what the shim calls it."""

from __future__ import annotations

from typing import Any

from distconsole_agent.journal.rank_states import MAX_RANK, RankStates
from distconsole_agent.supervisor.runlog import ShimEvent


def event(name: str, **more: Any) -> ShimEvent:
    return ShimEvent(name, 5 * 10**9, None, 1, 0, 70)._replace(**more)


def one_a_node(*, own_numbers: bool = True) -> RankStates:
    ranks = RankStates([1], engine_ranks=True, own_numbers=own_numbers)
    ranks.started(event("started"))
    return ranks


def said(entries: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(entry["rank"], entry["state"]) for entry in entries]


def test_a_process_has_the_number_of_its_group_to_its_end() -> None:
    ranks = one_a_node()
    assert said(ranks.renumber(1, 6, 9.0)) == [(6, "starting")]
    assert ranks.of_process(70, 1, 6) == ranks.number_of(1) == 6
    assert said(ranks.trains(6, 9.0)) == [(6, "running")]
    assert said(ranks.exited(event("exited", exit_code=0))) == [(6, "exited")]


def test_a_number_is_the_plans_until_the_group_has_given_one() -> None:
    ranks = one_a_node()
    assert ranks.trains(1, 8.0)[0]["planned"]
    assert "planned" not in ranks.renumber(1, 6, 9.0)[0]
    kept = one_a_node()
    assert kept.renumber(1, 1, 9.0) == []
    assert "planned" not in kept.trains(1, 9.0)[0]


def test_a_second_group_may_number_it_anew() -> None:
    ranks = one_a_node()
    ranks.renumber(1, 6, 9.0)
    assert said(ranks.renumber(6, 1, 9.0)) == [(1, "starting")]
    assert ranks.number_of(1) == 1


def test_the_plans_number_stays_where_the_launcher_numbers_the_ranks() -> None:
    ranks = one_a_node(own_numbers=False)
    assert ranks.renumber(1, 6, 9.0) == []
    assert ranks.number_of(1) == 1


def test_a_number_that_no_rank_has_is_not_taken() -> None:
    assert one_a_node().renumber(1, MAX_RANK + 1, 9.0) == []


def test_an_attempt_begins_with_the_plans_number() -> None:
    ranks = one_a_node()
    ranks.renumber(1, 6, 9.0)
    ranks.begin_again()
    assert said(ranks.started(event("started", pid=71))) == [(1, "starting")]
    assert said(ranks.renumber(1, 6, 9.0)) == [(6, "starting")]


def test_an_agent_that_comes_back_knows_the_number() -> None:
    ranks = one_a_node()
    ranks.renumber(1, 6, 9.0)
    ranks.trains(6, 9.0)
    again = one_a_node()
    again.restore({"1": ["starting", 70, 0], **ranks.states()})
    assert again.number_of(1) == 6
    assert [(rank.rank, rank.state) for rank in again] == [(6, "running")]


def test_a_number_is_awaited_until_the_rank_trains() -> None:
    ranks = one_a_node()
    assert ranks.await_numbers
    ranks.renumber(1, 6, 9.0)
    ranks.trains(6, 9.0)
    assert not ranks.await_numbers
    assert not one_a_node(own_numbers=False).await_numbers


def test_only_a_sigterm_of_the_stop_is_that_of_the_stop() -> None:
    def ended(signal: int, *, terminated: bool) -> bool:
        ranks = one_a_node()
        how = {"exit_code": 128 + signal, "signal": signal, "terminated": terminated}
        (entry,) = ranks.exited(event("exited", **how))
        return "stopped" in entry

    assert ended(15, terminated=True)
    assert not ended(15, terminated=False)
    assert not ended(9, terminated=True)
