"""A run whose ranks are started anew: one line of steps, one story, nothing of one attempt in the next."""

import math
from typing import Any

import msgspec
import pytest

from distconsole.model.findings import Severity
from distconsole.model.run_events import (
    LogLine,
    Metric,
    PhaseReached,
    RankChanged,
    RankState,
    RunEnded,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.runs.health import health_line
from distconsole.runs.reduce import RunReducer
from distconsole.runs.series import Series
from distconsole.runs.timeline import RunTimeline
from fakes.run_events import entry

BLAMED = {"rank": 1, "host": "b", "exit_code": 1, "error": "ValueError: boom", "traceback": "T\nB"}


class Run:
    """Two hosts with a rank each; entries in, events out and into a picture."""

    def __init__(self) -> None:
        self.reducer = RunReducer("run-1", ("a", "b"))
        self.timeline = RunTimeline()
        self.t = 1000.0
        self.windows: list[int] = []
        self._seq = 0
        for rank in (0, 1):
            self.state(rank, "running")

    def feed(self, host: str, kind: str, **body: Any) -> list[Any]:
        self._seq += 1
        self.t += 1
        told = entry(kind, self._seq, self.t, **body)
        events = list(self.reducer.feed(host, told, self.t))
        for event in events:
            self.timeline.apply(event)
        return events

    def state(self, rank: int, state: str, **more: Any) -> list[Any]:
        return self.feed("ab"[rank], "state", rank=rank, local_rank=0, pid=1, state=state, **more)

    def loss(
        self,
        rank: int,
        *steps: int,
        name: str = "loss",
        value: float | None = None,
        at: int | None = None,
    ) -> list[tuple[int, int]]:
        """Have a rank tell its loss at these steps (the hook is ``at``); return step and ranks of the metrics made."""
        points = {name: [[step, float(step) if value is None else value, None] for step in steps]}
        step = steps[-1] if at is None else at
        body = {"rank": rank, "step": step, "steps": len(steps), "points": points}
        events = self.feed("ab"[rank], "window", **body)
        self.windows += [event.step for event in events if isinstance(event, Window)]
        return [(event.step, event.ranks) for event in events if isinstance(event, Metric)]

    def fail(self) -> None:
        for rank in (0, 1):
            self.state(rank, "failed", exit_code=1)

    def begin(self, number: int, hosts: str = "ab") -> list[Any]:
        told = []
        for host in hosts:
            told += self.feed(host, "attempt", restart=number, of=3, checkpoint="/c/9.pt")
        for rank in range(2):
            if "ab"[rank] in hosts:
                told += self.state(rank, "starting")
        return told


@pytest.fixture
def run() -> Run:
    return Run()


def both(run: Run, *steps: int, **more: Any) -> list[int]:
    return [step for rank in (0, 1) for step, _ in run.loss(rank, *steps, **more)]


def test_a_failed_attempt_is_a_warning_that_tells_what_follows(run: Run) -> None:
    body = {"restart": 1, "of": 3, "checkpoint": "/c/9.pt", "pause": 0.5, "first_failure": BLAMED}
    (finding,) = run.feed("a", "restart", **body)
    assert isinstance(finding, RunFinding)
    assert (finding.check, finding.severity) == ("run.restart", Severity.WARN)
    assert (finding.rank, finding.hosts, finding.seen) == (1, ("b",), "T\nB")
    assert finding.summary == (
        "rank 1 on b failed first: ValueError: boom; "
        "restart 1 of 3 in 0.5 s, with the checkpoint /c/9.pt"
    )
    (other,) = run.feed("a", "restart", **{**body, "pause": 0, "checkpoint": None})
    assert other.summary.endswith("boom; restart 1 of 3, with no checkpoint")


def test_a_restart_is_told_once_though_every_host_tells_it(run: Run) -> None:
    told = [event for event in run.begin(1) if isinstance(event, RunRestarted)]
    assert [(event.restart, event.of, event.checkpoint) for event in told] == [(1, 3, "/c/9.pt")]
    for host in "ab":
        run.feed(host, "verdict", state="succeeded", exit_code=0)
    run.feed("a", "end", state="succeeded", exit_code=0, seconds=5.0)
    (end,) = run.feed("b", "end", state="succeeded", exit_code=0, seconds=5.0)
    assert isinstance(end, RunEnded)
    assert (end.restarts, end.exit_code) == (1, 0)


def test_steps_that_begin_at_0_go_on_at_one_place_for_all_ranks(run: Run) -> None:
    run.loss(0, *range(10))
    run.loss(1, *range(9))  # it failed a step earlier
    run.fail()
    run.begin(1)
    assert run.loss(1, 0, 1) == []
    assert run.loss(0, 0, 1) == [(10, 2), (11, 2)]
    run.fail()
    run.begin(2)
    run.loss(0, 0)
    assert run.loss(1, 0) == [(12, 2)]
    run.loss(0, *range(1, 4))  # its host tells last how it ended
    assert [event.step for event in run.begin(3) if isinstance(event, Metric)] == [13, 14, 15]
    run.loss(0, 0)
    assert run.loss(1, 0) == [(16, 2)]
    assert run.timeline.metrics["loss"].xs == [*range(17)]
    assert run.windows == [9, 8, 11, 11, 12, 12, 15, 16, 16]


def test_rare_metrics_go_on_where_the_loss_does_and_epochs_behind_themselves(run: Run) -> None:
    """Validation every 7 steps; each attempt begins at 0, but for the third, whose script counts on."""
    rare, epochs = "val", "epoch loss"
    both(run, *range(21))
    assert both(run, 7, 14, name=rare, at=20) == [7, 14]
    assert both(run, 0, 1, name=epochs, at=20) == [0, 1]
    run.fail()
    run.begin(1)
    assert both(run, *range(7)) == [*range(21, 28)]
    run.fail()  # before the validation
    run.begin(2)
    assert both(run, 0, name=epochs, at=7) == [2]
    assert both(run, *range(8)) == [*range(28, 36)]
    assert (both(run, 7, name=rare), both(run, 1, name=epochs, at=7)) == ([35], [3])
    run.fail()
    run.begin(3)
    assert both(run, 6, 7, at=1) == [34, 35]
    assert (both(run, 7, name=rare, at=1), both(run, 7, name="new", at=1)) == ([35], [35])


def test_steps_that_the_script_counts_on_after_a_restart_are_its_own(run: Run) -> None:
    """The hook counts from 0 in each attempt; the script reports the epoch, and each 10th step since the very first."""
    both(run, *range(21))
    assert (both(run, 10, 20, name="val", at=20), both(run, 0, 1, name="epoch", at=20)) == (
        [10, 20],
        [0, 1],
    )
    for attempt in (1, 2):
        run.fail()
        run.begin(attempt)
        first = 11 * attempt + 10
        assert both(run, *range(11)) == [*range(first, first + 11)]
        assert both(run, 20 + 10 * attempt, name="val", at=10) == [20 + 10 * attempt]
        assert both(run, 1 + attempt, name="epoch", at=10) == [1 + attempt]
    assert run.windows[-2:] == [42, 42]


def test_since_when_a_loss_is_no_number_is_said_of_this_attempt(run: Run) -> None:
    for rank in (0, 1):
        run.loss(rank, 1, 2, value=math.nan)
    run.fail()
    run.begin(1)
    for rank in (0, 1):
        run.loss(rank, 0, 1, value=math.nan)
    assert run.timeline.not_finite_since == {"loss": 3}


def test_steps_that_resume_take_the_place_of_those_that_were_done_before(run: Run) -> None:
    for rank in (0, 1):
        run.loss(rank, *range(10))
    run.fail()
    run.begin(1)
    run.loss(0, 7, 8, at=1)
    assert run.loss(1, 7, 8, at=1) == [(7, 2), (8, 2)]
    assert run.timeline.metrics["loss"].xs == [*range(9)]


def test_what_a_host_that_is_behind_tells_of_the_attempt_before_is_not_mixed_in(run: Run) -> None:
    run.loss(0, 0, 1)
    run.loss(1, 0)
    run.fail()
    run.begin(1, "a")
    run.loss(0, 0)
    assert run.loss(1, 1) == []  # its host has not come to the attempt
    run.begin(1, "b")
    assert run.loss(1, 0) == [(2, 2)]
    assert run.windows == [1, 0, 2, 1, 2]


def test_checks_of_two_attempts_are_never_compared(run: Run) -> None:
    def check(rank: int, step: int, parameters: str) -> list[Any]:
        body = {"rank": rank, "step": step, "parameters": parameters, "place": [rank, 2]}
        return run.feed("ab"[rank], "check", **body)

    check(0, 5, "aa")
    check(1, 5, "aa")
    check(0, 6, "bb")
    run.fail()
    run.begin(1)
    assert check(1, 6, "other") == []
    assert check(0, 6, "other") == []
    (found,) = [*check(0, 7, "x"), *check(1, 7, "y")]
    assert found.check == "run.desync"


def test_a_line_that_a_rank_could_not_end_is_not_joined_to_the_next_attempts_first(
    run: Run,
) -> None:
    run.feed("a", "log", rank=0, stream="out", offset=0, text="half")
    told = run.begin(1)
    told += run.feed("a", "log", rank=0, stream="out", offset=4, text="whole\n")
    assert [each.line for each in told if isinstance(each, LogLine)] == ["half", "whole"]


def test_the_picture_follows_the_ranks_into_the_next_attempt(run: Run) -> None:
    run.feed("a", "phase", rank=0, phase="first_step", seconds=2.0)
    run.loss(0, 0, 1)
    run.fail()
    assert health_line(run.timeline, run.t).startswith("ranks 0-1 failed: 2 ranks")
    told = run.begin(1)
    assert [each.state for each in told if isinstance(each, RankChanged)] == [
        RankState.STARTING,
        RankState.STARTING,
    ]
    view = run.timeline.ranks[0]
    assert (view.state, view.exit_code, view.step, view.phases) == ("starting", None, None, {})
    assert health_line(run.timeline, run.t) == "starting: 2 ranks, loss 1, restart 1 of 3"
    assert not [each for each in told if isinstance(each, PhaseReached)]


def test_a_failure_of_an_earlier_attempt_is_not_blamed_where_no_verdict_is_known(run: Run) -> None:
    body = {"rank": 1, "t_ns": 1, "exit_code": 3, "error": "old"}
    run.feed("b", "failure", **body)
    run.begin(1)
    run.feed("a", "end", state="lost", exit_code=1, seconds=5.0)
    (end,) = run.feed("b", "end", state="lost", exit_code=1, seconds=5.0)
    assert (end.exit_code, end.first_failure) == (1, msgspec.UNSET)


def test_a_curve_that_is_cut_goes_on_at_its_new_end() -> None:
    series = Series(limit=4)
    for x in range(9):
        series.put(x, float(x))
    series.cut(4)
    assert (series.last_x, series.last) == (3, series.values[-1])
    series.put(4, 40.0)
    assert (series.last_x, series.last) == (4, 40.0)
    series.cut(0)
    assert (len(series), series.last) == (0, None)
