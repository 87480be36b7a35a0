"""Checks of ranks in, what they disagree on out."""

from typing import Any

import pytest
from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.run_events import RunFinding
from distconsole.rpc.frames import CheckEntry, StateEntry
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.runs.detectors.verify import MAX_PENDING_CHECKS, SyncWatch
from distconsole.runs.reduce import RunReducer

NAMES = ("a.weight", "a.bias", "b.weight")
WORLD = 2


def details(*words: int) -> str:
    return "".join(f"{word:08x}" for word in words)


def check(rank: int, step: int = 0, **more: Any) -> CheckEntry:
    said: dict[str, Any] = {
        "parameters": "p",
        "state": "s",
        "batch": f"of {rank} at {step}",
        "layout": 1,
        "place": (rank, WORLD),
        "details": details(1, 2, 3),
        "names": NAMES,
        **more,
    }
    return CheckEntry(seq=1, t=1.0, rank=rank, step=step, **said)


class Run:
    """A watch of ranks that live, with a clock of its own."""

    def __init__(self, world: int = WORLD) -> None:
        self.watch = SyncWatch(RanksSeen("r"))
        self.t = 100.0
        for rank in range(world):
            assert list(self.watch.rank_is(rank, self.t, alive=True)) == []

    def __call__(self, *checks: CheckEntry) -> list[RunFinding]:
        self.t += 1
        return [found for one in checks for found in self.watch.add(one, self.t)]


def test_ranks_that_agree_are_left_alone() -> None:
    run = Run()
    assert [run(check(0, step), check(1, step)) for step in range(0, 50, 10)] == [[]] * 5
    assert list(run.watch.flush(200.0)) == []


def test_the_first_parameter_that_differs_is_named_and_told_once() -> None:
    run = Run()
    odd = {"parameters": "q", "state": "t", "details": details(1, 9, 9)}
    (found,) = run(check(0), check(1, **odd))
    assert found.summary == (
        "rank 1 and rank 0 have different parameters after step 0; first in a.bias"
    )
    assert (found.rank, found.seen, found.severity) == (1, "2 of 3 differ", Severity.WARN)
    assert run(check(0, 10), check(1, 10, **odd)) == []


def test_the_few_differ_from_the_many() -> None:
    run = Run(world=4)
    places = [{"place": (rank, 4)} for rank in range(4)]
    found = run(
        check(0, parameters="q", **places[0]), *(check(rank, **places[rank]) for rank in (1, 2, 3))
    )
    assert [one.summary.partition(" have")[0] for one in found] == ["rank 0 and ranks 1, 2, 3"]


def test_a_wrapper_that_promises_equal_replicas_makes_it_certain() -> None:
    (found,) = Run()(check(0, wrapped=True), check(1, wrapped=True, parameters="q"))
    assert found.severity is Severity.FAIL


def test_state_alone_is_told_as_such() -> None:
    (found,) = Run()(check(0), check(1, state="t"))
    assert "the optimizer of rank 1 is in another state" in found.summary


def test_other_layouts_are_never_compared() -> None:
    assert Run()(check(0), check(1, layout=2, parameters="q", state="t")) == []
    assert Run()(check(0, parameters=None), check(1, parameters=None, state="t")) == []


def test_ranks_without_a_process_group_train_by_themselves() -> None:
    (found,) = Run()(check(0, place=None), check(1, place=None, parameters="q"))
    assert "ranks 0, 1 train each by themselves" in found.summary


@pytest.mark.parametrize(("place", "wrong"), [((0, 1), True), ((1, 2), False), ((0, 2), True)])
def test_a_world_of_another_shape_is_told(place: tuple[int, int], wrong: bool) -> None:
    found = Run()(check(0), check(1, place=place))
    assert [one.check for one in found] == ["run.world"] * wrong


def test_a_world_that_is_not_all_known_yet_is_no_fault() -> None:
    assert Run(world=1)(check(0, place=(0, 8))) == []


def test_two_batches_that_both_read_are_no_coincidence() -> None:
    run = Run()
    assert run(check(0, 0, batch="x"), check(1, 0, batch="x")) == []
    assert run(check(0, 10, batch="x"), check(1, 10, batch="x")) == []  # data that never change
    (found,) = run(check(0, 20, batch="y"), check(1, 20, batch="y"))
    assert found.summary == "ranks 0, 1 read the same batches (seen until step 20)"


def test_an_order_that_repeats_is_told_at_once_and_a_gradient_once_the_others_have_told() -> None:
    run = Run()
    (epoch,) = run(check(1, 30, same_epoch=True))
    assert epoch.check == "run.same_epoch"
    assert run(check(0, 30), check(1, 40, bad_gradient=2)) == []
    (gradient,) = run(check(0, 40))
    assert (gradient.check, gradient.rank) == ("run.not_finite", 1)
    assert "the gradient of b.weight is not finite at step 40 on rank 1" in gradient.summary


def test_a_step_waits_for_a_rank_that_is_behind_and_not_for_ever() -> None:
    run = Run()
    for step in range(MAX_PENDING_CHECKS // WORLD):
        assert run(check(0, step)) == []
        run.t -= 1
    assert [one.check for one in run(check(1, 0, parameters="q"))] == ["run.desync"]
    full = Run()
    for step in range(MAX_PENDING_CHECKS // WORLD + 1):
        assert full(check(0, step)) == []
        full.t -= 1
    assert full(check(1, 0, parameters="q")) == []  # it could not wait for longer
    late = Run()
    late(check(0))
    late.t += 60
    late(check(0, 10))
    assert late(check(1, parameters="q")) == []  # that step is judged


def test_a_step_waits_for_a_host_that_has_told_of_no_rank_yet() -> None:
    watch = SyncWatch(RanksSeen("r"), ("a", "b"))
    watch.heard_of("a")
    assert list(watch.rank_is(0, 100.0, alive=True)) == []
    assert list(watch.add(check(0), 100.0)) == []
    watch.heard_of("b")
    assert list(watch.rank_is(1, 101.0, alive=True)) == []
    (found,) = watch.add(check(1, parameters="q", details=details(9, 2, 3)), 101.0)
    assert "different parameters after step 0" in found.summary


def test_a_rank_that_ended_is_not_awaited() -> None:
    run = Run(world=3)
    places = [{"place": (rank, 3)} for rank in range(3)]
    assert run(check(0, **places[0]), check(1, parameters="q", **places[1])) == []
    assert [one.check for one in run.watch.rank_is(2, run.t, alive=False)] == ["run.desync"]


def test_what_is_left_at_the_end_is_judged() -> None:
    run = Run(world=3)
    run(check(0, place=(0, 3)), check(1, parameters="q", place=(1, 3)))
    assert [one.check for one in run.watch.flush(200.0)] == ["run.desync"]


def test_hostile_details_are_no_crash() -> None:
    odd = {"parameters": "q", "details": "zz" * 77, "names": ()}
    found = Run()(check(0, details=None, bad_gradient=900_000), check(1, **odd))
    assert [one.check for one in found] == ["run.not_finite", "run.desync"]


@pytest.mark.parametrize(
    ("odd", "named", "words"),
    [
        ({"parameters": "q", "details": details(1, 9, 3)}, "run.desync", "first in a.bias"),
        ({"state": "t"}, "run.desync", "the optimizer of rank 1"),
        ({"place": (0, 1)}, "run.world", "rank 1 is in a process group of another shape"),
        ({"same_epoch": True}, "run.same_epoch", "in the same order"),
        ({"bad_gradient": 0}, "run.not_finite", "the gradient of a.weight is not finite"),
    ],
)
def test_a_finding_says_who_and_where(odd: dict[str, Any], named: str, words: str) -> None:
    reducer = RunReducer("run-1", ("a", "b"))
    for host, rank in (("a", 0), ("b", 1)):
        state = StateEntry(seq=1, t=1.0, rank=rank, local_rank=0, pid=7, state="running")
        assert len(list(reducer.feed(host, state, 9.0))) == 1
    events = []
    for number, (host, one) in enumerate((("a", check(0)), ("b", check(1, **odd)))):
        events += list(reducer.feed(host, one, 10.0 + number))
    (finding,) = events
    assert finding.check == named
    assert words in finding.summary
    assert finding.hint


def test_a_gradient_that_is_not_finite_on_all_ranks_is_nobodys() -> None:
    (found,) = Run()(check(0, bad_gradient=0), check(1, bad_gradient=0))
    assert found.rank is UNSET
    assert "on all 2 ranks" in found.summary
