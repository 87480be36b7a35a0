"""What ranks say of their start in, what is told of the world that they make out."""

from typing import Any

import pytest

from distconsole.model.run_events import RunFinding
from distconsole.rpc.frames import AttemptEntry, NodeLoad, PhaseEntry, SampleEntry, StateEntry
from distconsole.runs.detectors.worlds import GATHER_SECONDS, LONGER, SKEW_SECONDS, WAIT_SECONDS
from distconsole.runs.reduce import RunReducer


class Run:
    """Ranks of two hosts, one each unless said otherwise, with a clock of its own."""

    def __init__(self, world: int = 2) -> None:
        self.reducer = RunReducer("r", ("a", "b"))
        self.t = 1000.0
        self.world = world
        for rank in range(world):
            self.state(rank, "starting")

    def host(self, rank: int) -> str:
        return "ab"[rank % 2]

    def feed(self, host: str, entry: Any) -> list[RunFinding]:
        return [
            event
            for event in self.reducer.feed(host, entry, self.t)
            if isinstance(event, RunFinding)
        ]

    def state(self, rank: int, state: str) -> None:
        entry = StateEntry(seq=1, t=self.t, rank=rank, local_rank=0, pid=7 + rank, state=state)
        self.feed(self.host(rank), entry)

    def phase(self, rank: int, phase: str, **more: Any) -> None:
        entry = PhaseEntry(seq=1, t=self.t, rank=rank, phase=phase, seconds=1.0, **more)
        assert self.feed(self.host(rank), entry) == []

    def asks(self, rank: int, world: int | None = 2, place: int | None = None) -> None:
        place = rank if place is None else place
        self.phase(rank, "rendezvous", world=world, group_rank=place, planned=self.world)

    def joins(self, rank: int) -> None:
        self.phase(rank, "init_process_group", world=2, group_rank=rank, planned=self.world)

    def after(self, seconds: float, host: str = "a") -> list[str]:
        """Return what is told when so many seconds have passed."""
        self.t += seconds
        found = self.feed(host, SampleEntry(seq=1, t=self.t, node=NodeLoad(cpu=5.0)))
        return [f"{one.check}: {one.summary}" for one in found]


@pytest.fixture
def run() -> Run:
    return Run()


def test_ranks_that_meet_as_planned_are_left_alone(run: Run) -> None:
    for rank in (0, 1):
        run.asks(rank)
        run.joins(rank)
        run.phase(rank, "first_step")
    assert run.after(1000) == []


@pytest.mark.parametrize(
    ("world", "seconds"), [("1 rank", GATHER_SECONDS), ("4 ranks", WAIT_SECONDS)]
)
def test_a_world_of_another_size_is_told_once(run: Run, world: str, seconds: float) -> None:
    """Of a larger one, a script may start the other ranks itself, on the slowest host last."""
    for rank in (0, 1):
        run.asks(rank, int(world[0]))
    assert run.after(seconds - 1) == []
    assert run.after(1) == [f"run.world: ranks 0, 1 ask for a world of {world}, and the run has 2"]
    assert run.after(1000) == []


def test_a_world_of_another_size_is_told_of_a_run_that_ends_at_once(run: Run) -> None:
    run.asks(1, 1)
    (told, *_) = run.reducer.lost_for_good(run.t)
    assert isinstance(told, RunFinding)
    assert told.summary == "rank 1 asks for a world of 1 rank, and the run has 2"
    assert told.hint.endswith("WORLD_SIZE has the latter, unless --env sets it")


def test_a_world_whose_ranks_all_came_is_the_runs_though_it_ends_at_once(run: Run) -> None:
    run.state(2, "starting")
    for rank in range(3):
        run.asks(rank, 3)
        run.state(rank, "exited")
    assert not [one for one in run.reducer.lost_for_good(run.t) if isinstance(one, RunFinding)]


def test_a_rank_of_another_number_is_told(run: Run) -> None:
    run.asks(0, place=1)
    run.asks(1, place=0)
    assert run.after(GATHER_SECONDS) == ["run.world: rank 0 is rank 1 of its process group"]


def test_a_world_that_nobody_planned_is_no_fault(run: Run) -> None:
    for rank in (0, 1):
        run.phase(rank, "rendezvous", world=8, group_rank=5)
    assert run.after(GATHER_SECONDS) == []


def test_a_rank_that_does_not_come_is_named(run: Run) -> None:
    run.asks(0)
    assert run.after(WAIT_SECONDS - 1) == []
    (told,) = run.after(1)
    assert told == (
        "run.rendezvous: rank 0 has waited for the other ranks of a world of 2 for 30 s; "
        "rank 1 has not asked for the process group"
    )
    assert run.after(1000) == []


def test_ranks_that_all_came_and_do_not_find_each_other(run: Run) -> None:
    run.asks(0)
    run.t += WAIT_SECONDS
    run.asks(1)
    assert run.after(WAIT_SECONDS - 1, host="b") == []
    assert run.after(SKEW_SECONDS) == []  # of the other host nothing is heard
    (told,) = run.after(0, host="b")
    assert "ranks 0, 1 have waited for the other ranks" in told
    assert "for 69 s; every rank that lives has asked" in told


def test_a_meeting_that_took_long_before_may_take_long_again(run: Run) -> None:
    for rank in (0, 1):
        run.asks(rank)
    run.t += WAIT_SECONDS - 1
    for rank in (0, 1):
        run.joins(rank)
    for host in "ab":
        run.feed(host, AttemptEntry(seq=1, t=run.t, restart=1, of=3))
    for rank in (0, 1):
        run.asks(rank)
    assert run.after(WAIT_SECONDS) == []
    assert len(run.after((LONGER - 1) * WAIT_SECONDS)) == 1


def test_copies_that_make_steps_without_a_group_are_told_together(run: Run) -> None:
    for rank in (0, 1):
        run.phase(rank, "first_step", alone=True)
    (told,) = run.after(GATHER_SECONDS)
    assert told.startswith("run.alone: ranks 0, 1 made their first steps without")
    assert run.after(1000) == []


def test_copies_of_which_one_comes_later_are_told_together(run: Run) -> None:
    run.phase(0, "first_step", alone=True)
    assert run.after(SKEW_SECONDS - 1) == []
    run.phase(1, "first_step", alone=True)
    (told,) = run.after(GATHER_SECONDS)
    assert told.startswith("run.alone: ranks 0, 1 made")


def test_a_rank_that_asks_for_another_world_is_told_without_the_others(run: Run) -> None:
    run.asks(0, 1)
    assert run.after(SKEW_SECONDS - 1) == []
    assert run.after(1) == ["run.world: rank 0 asks for a world of 1 rank, and the run has 2"]


def test_a_run_of_one_rank_may_train_alone() -> None:
    run = Run(world=1)
    run.phase(0, "first_step", alone=True)
    assert run.after(1000) == []
    assert list(run.reducer.lost_for_good(run.t))[:-2] == []


def test_a_group_that_comes_after_the_first_step_is_one(run: Run) -> None:
    for rank in (0, 1):
        run.phase(rank, "first_step", alone=True)
    for rank in (0, 1):
        run.joins(rank)
    assert run.after(1000) == []


def test_a_world_whose_ranks_all_live_is_the_runs_whatever_was_planned(run: Run) -> None:
    for rank in range(2):
        run.asks(rank, 3)
    run.state(2, "starting")
    run.asks(2, 3)
    assert run.after(GATHER_SECONDS) == []
    assert run.after(SKEW_SECONDS) == []
