"""The number that a process group gives the one process of a node, and what the shim calls it.
Which world a spec plans, and what a rank's own words about its world become.

A rank's life as states: each once, in order, and only what was seen.
"""

from typing import Any

import pytest

from distconsole_agent.journal.rank_states import MAX_RANK, RankStates, world_of
from distconsole_agent.journal.rings import Header
from distconsole_agent.supervisor.runlog import ShimEvent
from distconsole_training.records import ALONE, MAGIC, PHASE, PHASES
from fakes.specs import run_spec


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


def test_a_second_group_gives_another_number_but_no_impossible_one_and_none_of_a_launchers() -> (
    None
):
    ranks = one_a_node()
    ranks.renumber(1, 6, 9.0)
    assert said(ranks.renumber(6, 1, 9.0)) == [(1, "starting")]
    assert ranks.renumber(1, MAX_RANK + 1, 9.0) == []
    assert ranks.number_of(1) == 1
    numbered = one_a_node(own_numbers=False)
    assert numbered.renumber(1, 6, 9.0) == []
    assert numbered.number_of(1) == 1


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


NAN = float("nan")
UNKNOWN = {"world": None, "group_rank": None, "planned": 2}


@pytest.mark.parametrize(
    ("spec", "planned"),
    [
        ({"launcher": "torch", "world_size": 4, "env": {"WORLD_SIZE": "4"}}, 4),
        ({"launcher": "torchrun", "world_size": 4, "env": {}}, 4),
        ({"launcher": "mpi", "world_size": 4}, 4),
        ({"launcher": "slurm", "world_size": 4, "env": {"WORLD_SIZE": "4"}}, 4),
        ({"launcher": "slurm", "world_size": 2, "env": {"NODE_RANK": "0"}}, None),
        ({"launcher": "single", "world_size": 2, "env": {"NODE_RANK": "0"}}, None),
        ({"launcher": "torchrun", "world_size": 4, "min_nodes": 1}, None),
        ({}, None),
    ],
)
def test_a_world_is_planned_or_made_by_others(spec: dict[str, Any], planned: int | None) -> None:
    assert run_spec(**spec).planned_world == planned


def record(phase: str, samples: int = 0, value: float = NAN, flags: int = 0) -> Any:
    return (1, 0, 5, PHASE, flags, PHASES.index(phase), samples, *[NAN] * 5, value)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (record("rendezvous", 4, 3.0), {"world": 4, "group_rank": 3, "planned": 2}),
        (record("init_process_group"), UNKNOWN),
        (record("rendezvous", 2**32 - 1, 1e300), UNKNOWN),
        (record("rendezvous", 2, -5.0), {"world": 2, "group_rank": None, "planned": 2}),
        (record("first_step", flags=ALONE), {"alone": True}),
        (record("first_step"), {}),
        (record("import_torch", 4, 1.0, ALONE), {}),
    ],
)
def test_a_ranks_words_about_its_world_stay_within_bounds(said: Any, meant: Any) -> None:
    assert world_of(said, 2) == meant


SECOND = 10**9


def begun(rank: int = 0, pid: int = 0, t: int = 1, **how: Any) -> RankStates:
    """Return the states of the one rank of a plan, which has started."""
    ranks = RankStates([rank], **{"engine_ranks": True, **how})
    ranks.started(started(rank, pid, t))
    return ranks


def header(rank: int, pid: int, local_rank: int = 0) -> Header:
    numbers = (0, 0, 0, pid, rank, local_rank, 1, 0, 0, 0, SECOND, SECOND, 0, 0, 0)
    return Header(MAGIC, *numbers, b"")


def started(rank: int, pid: int = 0, t: int = 1) -> ShimEvent:
    return ShimEvent("started", t * SECOND, None, rank, rank, pid or 100 + rank)


def exited(rank: int, code: int, signal: int | None = None, pid: int = 0) -> ShimEvent:
    of = (rank, rank, pid or 100 + rank)
    return ShimEvent("exited", 9 * SECOND, None, *of, exit_code=code, signal=signal)


def test_a_rank_starts_runs_and_exits() -> None:
    ranks = RankStates([0, 1], engine_ranks=True)
    assert said(ranks.started(started(1))) == [(1, "starting")]
    assert said(ranks.trains(1, 2.0)) == [(1, "running")]
    assert ranks.trains(1, 3.0) == []
    (entry,) = ranks.exited(exited(1, 0))
    assert (entry["state"], entry["exit_code"], entry["signal"]) == ("exited", 0, None)
    assert (entry["pid"], entry["local_rank"], entry["t_ns"]) == (101, 1, 9 * SECOND)


def test_an_end_is_judged_by_code_and_signal() -> None:
    ranks = RankStates([0, 1, 2, 3], engine_ranks=True)
    for rank in range(4):
        ranks.started(started(rank))
    assert said(ranks.exited(exited(0, 3))) == [(0, "failed")]
    assert said(ranks.exited(exited(1, 139, 11))) == [(1, "killed")]
    ranks.stopping = True
    assert said(ranks.exited(exited(2, 143, 15))) == [(2, "killed")]
    assert said(ranks.exited(exited(3, 1))) == [(3, "exited")]


def test_a_rank_that_lives_on_counts_as_running_unless_an_engine_has_yet_to_start_it() -> None:
    ranks = begun()
    assert ranks.old_enough(9 * SECOND) == []
    assert said(ranks.old_enough(12 * SECOND)) == [(0, "running")]
    assert begun(pid=50, engine_ranks=False).old_enough(60 * SECOND) == []
    unwatched = begun(pid=50, engine_ranks=False, watched=False)
    assert said(unwatched.old_enough(60 * SECOND)) == [(0, "running")]


def test_a_rank_that_lives_and_makes_no_step_has_stalled_until_it_makes_one() -> None:
    ranks = begun()
    ranks.trains(0, 2.0)
    assert said(ranks.stalled(0, 40.0)) == [(0, "stalled")]
    assert ranks.stalled(0, 41.0) == []
    assert said(ranks.trains(0, 42.0)) == [(0, "running")]
    ranks.exited(exited(0, 0))
    assert ranks.stalled(0, 200.0) == []


def test_ranks_of_an_engine_are_found_by_their_recorders() -> None:
    ranks = RankStates([2, 3], engine_ranks=False)
    assert said(ranks.started(started(1, pid=50))) == [(2, "starting"), (3, "starting")]
    assert ranks.get(2) is not None
    (entry,) = ranks.found(2, header(2, 61, local_rank=0), 2.0)
    assert (entry["pid"], entry["state"]) == (61, "starting")
    assert ranks.found(2, header(2, 61, local_rank=0), 3.0) == []
    ranks.trains(2, 3.0)
    assert said(ranks.vanished(2, 61, "failed", 4.0)) == [(2, "failed")]
    # The engine starts it again.
    assert said(ranks.found(2, header(2, 71, local_rank=0), 5.0)) == [(2, "starting")]
    ended = ranks.exited(exited(1, 0, pid=50))
    assert [(e["rank"], e["state"], e["exit_code"]) for e in ended] == [
        (2, "exited", 0),
        (3, "exited", 0),
    ]


def test_a_number_that_no_spawned_rank_took_does_not_end() -> None:
    ranks = begun(1, pid=50, engine_ranks=False)
    for number in (2, 3):
        ranks.found(number, header(number, 60 + number, local_rank=-1), 2.0)
    assert said(ranks.exited(exited(1, 0, pid=50))) == [(2, "exited"), (3, "exited")]
    assert ranks.lose(3.0) == []


def test_the_engines_exit_code_is_not_its_ranks() -> None:
    ranks = begun(pid=50, engine_ranks=False)
    ranks.found(0, header(0, 61), 2.0)
    (entry,) = ranks.exited(exited(0, 1, pid=50))
    assert entry["state"] == "failed"
    assert "exit_code" not in entry


def test_a_process_belongs_to_the_rank_it_was_started_as() -> None:
    ranks = RankStates([4, 5], engine_ranks=True)
    ranks.started(started(4, pid=50))
    known = [ranks.of_process(*of) for of in ((50, 1, 0), (60, 50, -1), (60, 50, 5), (70, 1, -1))]
    assert known == [4, 4, 5, -1]
    alone = begun(1, pid=50, engine_ranks=False)
    assert [alone.of_process(*of) for of in ((50, 1, -1), (60, 50, -1), (60, 50, 7))] == [1, 1, 7]


def test_states_survive_the_agent() -> None:
    ranks = RankStates([0, 1], engine_ranks=False)
    ranks.started(started(0, pid=50))
    ranks.found(0, header(0, 61, local_rank=0), 2.0)
    ranks.trains(0, 3.0)
    again = RankStates([0, 1], engine_ranks=False)
    again.started(started(0, pid=50))
    again.restore(ranks.states())
    assert again.states() == ranks.states()
    assert again.found(0, header(0, 61, local_rank=0), 4.0) == []
    assert again.trains(0, 4.0) == []


def test_what_had_not_ended_is_killed_with_its_shim() -> None:
    ranks = RankStates([0, 1], engine_ranks=True)
    ranks.started(started(0))
    ranks.started(started(1))
    ranks.exited(exited(0, 0))
    assert said(ranks.lose(9.0)) == [(1, "killed")]


def test_events_that_mean_nothing_change_nothing() -> None:
    ranks = RankStates([0], engine_ranks=True)
    assert ranks.started(ShimEvent("started", 1, rank=0)) == []
    assert ranks.exited(ShimEvent("exited", 1, rank=0)) == []
    assert ranks.states() == {}
