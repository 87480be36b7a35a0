"""The line on how a run goes, and on how long it will take; which value of a metric is its best."""

import math

import msgspec
import pytest

from distconsole.model.diagnosis.calls import Call, Place, Thread
from distconsole.model.diagnosis.diagnosis import Diagnosis, Hang, Sure
from distconsole.model.findings import Severity
from distconsole.model.run_events import (
    EndState,
    LinkChanged,
    NodeSample,
    PhaseReached,
    RankCalled,
    RankState,
    RunEnded,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.operations.why import Lately
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.runs.figures import best_word, more_is_better, take_best
from distconsole.runs.health import health_line
from distconsole.runs.logs.printed import EtaEstimator
from distconsole.runs.summary import seen_in
from fakes import run_events, scenes
from fakes.blank import blank
from fakes.run_events import RUN, T, log, metric, rank_is, timeline_of


def window(rank: int, t: float = T, step: int = 99, ms: float = 10.0, steps: int = 100) -> Window:
    return run_events.window(rank, t, ms, step=step, steps=steps)


def sample(rank: int, t: float = T) -> NodeSample:
    return blank(NodeSample, t=t, run=RUN, host=f"h{rank}")


def reached(rank: int, phase: str) -> PhaseReached:
    return PhaseReached(t=T, run=RUN, rank=rank, host=f"h{rank}", phase=phase, seconds=1.0)


def called_at(rank: int, function: str, line: int, t: float = T + 9) -> RankCalled:
    place = Place(function=function, file="/home/u/train.py", line=line)
    call = Call(rank=rank, threads=(Thread(main=True, frames=(place,)),))
    return RankCalled(t=t, run=RUN, rank=rank, host=f"h{rank}", why="asked", call=call)


def said(*events: object, now: float = T) -> str:
    return health_line(timeline_of(events), now)


def test_the_silent_rank_that_is_least_far_is_named_with_its_host_and_since_when() -> None:
    line = said(window(0), window(1), window(5, T - 42, step=41))
    assert line.startswith("rank 5 on h5 has not finished a step for 42 s: 3 ranks")
    line = said(window(0), window(1, T - 30), window(5, T - 42, step=41))
    assert line.startswith("rank 5 on h5 has not finished a step for 42 s (and 1 more):")


def test_a_run_whose_ranks_have_ended_is_neither_healthy_nor_slow() -> None:
    ended = [rank_is(rank, RankState.EXITED) for rank in (0, 1)]
    line = said(window(0), window(1), *ended, now=T + 9)
    assert line.startswith("all ranks have ended, and the run goes on: 2 ranks")
    assert "0 samples/s" not in line
    failed = [rank_is(rank, RankState.FAILED) for rank in (1, 2)]
    assert said(window(0), *failed, now=T + 9).startswith("ranks 1-2 failed: ")


def test_where_all_are_silent_the_one_that_is_behind_is_named() -> None:
    line = said(window(0, T - 20), window(1, T - 21, step=96), sample(0), sample(1))
    assert line.startswith("no step for 20 s, rank 1 on h1 is behind (step 96 of 99):")


def test_a_window_without_a_step_is_no_sign_of_a_step() -> None:
    line = said(window(0, T - 60), window(0, T, step=-1, steps=0))
    assert line.startswith("no step for 60 s")


def test_slow_steps_are_not_silence() -> None:
    assert said(window(0, T - 35, ms=20_000)).startswith("healthy")


def test_a_stalled_rank_is_told_with_its_age() -> None:
    line = said(window(0), window(1, T - 120), rank_is(1, RankState.STALLED))
    assert line.startswith("rank 1 on h1 has not finished a step for 2 min:")


def behind(rank: int, seconds: int = 12) -> list[Window]:
    """Windows of four ranks, of which one makes fewer steps than the others."""
    return [
        window(each, T - seconds + second, 100 * second, ms=10.0)
        if each != rank
        else window(each, T - seconds + second, 70 * second, ms=14.0, steps=70)
        for second in range(1, seconds + 1)
        for each in range(4)
    ]


def test_a_slow_rank_is_told_beside_what_is_usual() -> None:
    line = said(*behind(2))
    assert line.startswith("rank 2 on h2 is slow, 14 ms a step where 10 ms is usual:")


def test_a_longer_step_alone_makes_no_rank_slow() -> None:
    ranks = [(second, rank) for second in range(1, 13) for rank in range(4)]
    even = [window(r, T - 12 + s, 100 * s, ms=14.0 if r == 2 else 10.0) for s, r in ranks]
    assert said(*even).startswith("healthy"), "it makes as many steps as the others"


def test_who_tells_first_of_a_pause_in_which_all_waited_is_not_slow() -> None:
    before = [window(rank, T - 9) for rank in range(4)]
    after = [window(rank, ms=4710.0, steps=3) for rank in (1, 3)]
    assert "slow" not in said(*before, *after)


def test_what_hosts_said_long_ago_is_not_taken_for_now() -> None:
    then = [window(0, T - 60), window(1, T - 58, step=98), sample(0, T - 57), sample(1, T - 57)]
    assert said(*then).startswith("the newest word of the hosts is 57 s old: 2 ranks")
    assert said(*then, window(0), sample(0)).startswith("no word from h1 for 57 s: 2 ranks")
    now = [window(0), window(1), sample(0), sample(1)]
    assert said(*then, *now).startswith("healthy")
    assert said(*then, sample(0), sample(1)).startswith("no step for 58 s, rank 1 on h1 is behind")
    assert said(*then, window(0), sample(0), rank_is(1, RankState.EXITED)).startswith("healthy")


def test_a_first_step_that_takes_long_is_not_slow() -> None:
    assert said(*(window(r, ms=90.0 if r else 10, steps=2) for r in range(4))).startswith(
        "healthy"
    )


@pytest.mark.parametrize(
    ("name", "value"), [("loss", math.nan), ("loss", math.inf), ("val_loss", math.nan)]
)
def test_a_metric_that_is_no_number_is_not_healthy(name: str, value: float) -> None:
    line = said(window(0), metric("loss", 1.0, 6), metric(name, value))
    assert line.startswith(f"{name} is {value}, not finite since step 7: 1 rank")
    assert line.endswith(f"loss {value if name == 'loss' else 1}")


def test_the_start_says_who_is_behind_and_in_what() -> None:
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(4)]
    told = [reached(rank, "interpreter") for rank in range(4)]
    line = said(*ranks, *told, reached(0, "import_torch"), reached(1, "import_torch"))
    assert line == "starting, rank 2 on h2 (and 1 more) imports torch: 4 ranks"
    does = "starting, rank 1 on h1 (and 2 more) starts, imports or prepares"
    assert said(*ranks, reached(0, "interpreter")).startswith(does)


def test_a_rank_that_starts_and_was_asked_is_at_its_line() -> None:
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(2)]
    others = [reached(0, "interpreter"), reached(0, "import_torch")]
    line = said(*ranks, *others, called_at(1, "prepare", 5), now=T + 41)
    does = "starting, rank 1 on h1 starts, imports or prepares"
    assert line.startswith(f"{does} for 41 s and is in prepare at train.py:5 (asked 32 s ago),")
    assert said(*ranks, *others, called_at(1, "prepare", 5, T - 9)).startswith(f"{does}:")


def test_a_rank_without_a_step_is_named_once_others_have_made_them_for_ten_seconds() -> None:
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(3)]
    begun = [*ranks, *(reached(rank, "first_step") for rank in range(2)), called_at(2, "wait", 5)]

    def line_at(seconds: float) -> str:
        now = T + seconds
        heard = [sample(rank, now) for rank in range(3)]
        return said(*begun, window(0, now), window(1, now), *heard, now=now)

    assert line_at(9.0).startswith("healthy: 3 ranks")
    has, where = "rank 2 on h2 has made no step, 2 others make them", "it is in wait at train.py:5"
    assert line_at(12.0).startswith(f"{has} for 11 s: {where}: 3 ranks")
    assert line_at(40.0).startswith(f"{has} for 39 s: {where} (asked 31 s ago): 3 ranks")


def test_of_ranks_that_start_the_fewest_at_one_line_are_named() -> None:
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(4)]
    met = [reached(rank, "init_process_group") for rank in range(4)]
    asked = [called_at(rank, "load" if rank == 3 else "wait", 5) for rank in range(4)]
    fewest, every = (
        "rank 3 on h3 is in load at train.py:5: 4 ranks",
        "all are before their first step",
    )
    assert said(*ranks, *met, *asked, now=T + 12).startswith(f"starting, {fewest}")
    assert said(*ranks, *met, *asked[:3], now=T + 12).startswith(f"starting, {every}")


def test_a_rank_that_starts_more_slowly_than_the_others_is_compared_with_them() -> None:
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(4)]
    after = msgspec.structs.replace
    begun = [after(reached(rank, "interpreter"), seconds=0.5) for rank in range(4)]
    there = [after(reached(rank, "import_torch"), seconds=6.5) for rank in range(3)]
    slow = "starting, rank 3 on h3 imports torch"
    assert said(*ranks, *begun, *there, now=T + 8).startswith(f"{slow}: ")
    late = f"{slow} for 41 s, the others took 6 s: "
    assert said(*ranks, *begun, *there, now=T + 41.5).startswith(late)


def test_a_start_that_takes_long_says_for_how_long_all_do_the_same() -> None:
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(4)]
    assert said(*ranks) == "starting: 4 ranks"
    assert said(*ranks, now=T + 60).startswith("starting, all start, import or prepare for 60 s:")
    met = [reached(rank, "import_torch") for rank in range(4)]
    assert said(*ranks, *met) == "starting, all wait for the group: 4 ranks"
    assert said(*ranks, *met, now=T + 43) == "starting, all wait for the group for 42 s: 4 ranks"
    cut = RanksSeen(RUN).finding(T + 9, "run.connection_lost", "h1 not heard of for 6 s", (1,))
    told = "starting for 13 s: h1 not heard of for 6 s: 4 ranks"
    assert said(*ranks, *met, cut, now=T + 13) == told
    lately = Lately()
    for event in (*ranks, *met, cut):
        lately.apply(event)
    wait = Diagnosis(
        kind=Hang.ALL_WAIT, sure=Sure.UNKNOWN, hang=True, summary="all wait", hint="?"
    )
    assert lately.explained(wait).summary == "all wait: h1 not heard of for 6 s"


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["epoch 1/10", "epoch 2/10"], "80 s left"),
        (["Epoch [1/10] loss 3", "Epoch [4/10] loss 2"], "20 s left"),
        (["step 100 of 2000", "step 200 of 2000"], "3 min left"),
        (["epoch 1/3", "step 1/9", "step 9/9", "epoch 2/3", "step 1/9"], "20 s left"),
    ],
)
def test_what_a_script_prints_tells_how_long_it_will_take(lines: list[str], left: str) -> None:
    times = [T - 10 * (len(lines) - 1 - place) for place in range(len(lines))]
    events = [log(line, t) for line, t in zip(lines, times, strict=True)]
    assert said(window(0), *events).endswith(f", {left}")


@pytest.mark.parametrize(
    "lines",
    [
        ["epoch 1/10"],
        ["loss 1/10", "loss 2/10"],
        ["step 1/9", "step 9/9", "step 1/9", "step 2/9"],
        ["epoch 9/3", "epoch 12/3"],
        ["epoch 1/99999999999999999999", "epoch 2/99999999999999999999"],
    ],
)
def test_what_does_not_tell_it_is_not_guessed_from(lines: list[str]) -> None:
    events = [log(line, T - 1 + place / 10) for place, line in enumerate(lines)]
    assert "left" not in said(window(0), *events)


def test_a_script_may_report_how_many_steps_it_makes() -> None:
    assert said(window(0), metric("total_steps", 6100.0)).endswith(", 60 s left")
    assert "left" not in said(window(0), metric("total_steps", math.nan))


def test_time_passes_between_two_words_and_never_below_nothing() -> None:
    outlook = EtaEstimator()
    outlook.read("epoch 1/3", 0.0)
    outlook.read("epoch 2/3", 10.0)
    assert outlook.seconds_left(14.0, None, None, {}) == 6.0
    assert outlook.seconds_left(99.0, None, None, {}) == 0.0


def test_a_loss_that_is_no_number_is_told_since_its_first_such_step() -> None:
    steps = (window(0), metric("loss", 0.3, 6), *(metric("loss", math.nan, s) for s in (7, 8)))
    assert said(*steps).startswith("loss is nan, not finite since step 7: ")
    assert said(*steps, metric("loss", 0.2, 9)).startswith("healthy: ")
    again = (metric("loss", 0.2, 9), metric("loss", math.inf, 10), metric("loss", math.nan, 11))
    assert said(*steps, *again).startswith("loss is nan, not finite since step 10: ")


def test_who_holds_up_the_others_is_named_while_it_does_though_all_steps_take_as_long() -> None:
    def at_work(rank: int, second: int, forward_ms: float) -> Window:
        backward_ms = 152.0 - forward_ms
        waited = (backward_ms, 0.0, 0.0, backward_ms, 0.0)
        parts = {"forward_ms": forward_ms, "backward_ms": backward_ms, "waited_ms": waited}
        return msgspec.structs.replace(window(rank, T - 12 + second, ms=155.0), **parts)

    seconds = range(1, 13)
    slow = [at_work(rank, s, 151.0 if rank else 21.0) for s in seconds for rank in (0, 1)]
    assert said(*slow).startswith(
        "rank 1 on h1 is slow, 151 ms for the forward part where 21 ms is usual, "
        "costs 84 % of each step since step 99: 2 ranks"
    )
    even = [at_work(rank, s, 21.0) for s in (13, 14, 15, 16) for rank in (0, 1)]
    assert said(*slow, *even, now=T + 4).startswith("healthy")


def going(rank: int, t: float = T) -> list[object]:
    return [window(rank, t), sample(rank, t)]


def link(rank: int, t: float, connected: bool = False) -> LinkChanged:
    return LinkChanged(t=t, run=RUN, host=f"h{rank}", connected=connected, reason="timed out")


def test_in_a_stall_nothing_is_made_and_no_step_has_a_time() -> None:
    line = said(*going(0, T - 30), *going(1, T - 30), sample(0), sample(1))
    assert line == "no rank has finished a step for 30 s: 2 ranks, 0 samples/s, step –"


def test_before_a_stall_is_told_of_its_figures_are_not_of_now_either() -> None:
    line = said(*going(0, T - 7), metric("loss", 0.5), sample(0))
    assert line == "no step for 7 s: 1 rank, 0 samples/s, step –, loss 0.5"
    later = said(*going(0), metric("loss", 0.5), sample(0, T + 6), now=T + 6)
    assert later == "no step for 6 s: 1 rank, 0 samples/s, step –, loss 0.5 6 s ago"


def test_behind_a_cut_the_figures_are_not_known() -> None:
    lost = said(*going(0), *going(1), link(0, T + 1), link(1, T + 1), now=T + 2)
    assert lost == "no connection to h0, h1 for 1 s: 2 ranks, – samples/s, step –"
    half = said(*going(0), *going(1), link(1, T), now=T)
    assert half.endswith(": 2 ranks, 100 samples/s of 1 rank, step 10 ms")
    silent = said(*going(0, T - 20), *going(1, T - 20))
    assert silent.endswith(" 20 s old: 2 ranks, – samples/s, step –")


def test_what_is_read_after_the_console_was_away_is_not_of_now_until_it_has_caught_up() -> None:
    old = [*going(0, T - 3600), *going(1, T - 3600)]
    assert "– samples/s, step –" in said(*old)
    assert "200 samples/s, step 10 ms" in said(*old, *going(0), *going(1))


def test_a_rank_without_a_window_makes_no_samples_and_has_no_step_time() -> None:
    line = said(*going(0), rank_is(1, RankState.RUNNING), sample(1))
    assert line == "healthy: 2 ranks, 100 samples/s, step 10 ms"


def test_ranks_that_start_anew_have_no_figures_of_the_attempt_before() -> None:
    again = RunRestarted(t=T, run=RUN, restart=1, of=2)
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(2)]
    line = said(*going(0, T - 1), *going(1, T - 1), again, *ranks)
    assert line == "starting: 2 ranks, 0 samples/s, step –, restart 1 of 2"


def test_ranks_that_are_gone_make_nothing() -> None:
    line = said(*going(0), *going(1), rank_is(0, RankState.FAILED), rank_is(1, RankState.KILLED))
    assert line == "rank 0 failed: 2 ranks, – samples/s, step –"


def test_the_step_of_the_line_is_the_mean_of_the_ranks() -> None:
    line = said(window(0, ms=31.8), window(1, ms=45.8))
    assert line == "healthy: 2 ranks, 200 samples/s, step 38.8 ms"


@pytest.mark.parametrize(
    "check", ["run.desync", "run.alone", "run.world", "run.same_batch", "run.not_finite"]
)
def test_ranks_that_disagree_are_not_healthy(check: str) -> None:
    told = RanksSeen(RUN).finding(T, check, "what is wrong; and more", (1,))
    assert said(window(0), window(1), told).startswith("what is wrong: 2 ranks")


def test_a_disagreement_is_of_its_attempt() -> None:
    told = RanksSeen(RUN).finding(T, "run.desync", "different parameters", (1,))
    again = RunRestarted(t=T, run=RUN, restart=1, of=2)
    assert said(window(0), window(1), told, again, window(0), window(1)).startswith("healthy")


def test_what_could_not_be_started_says_why() -> None:
    end = RunEnded(
        t=T, run=RUN, state=EndState.FAILED, exit_code=2, seconds=0.0, error="no script"
    )
    assert said(end) == "not started: no script"


def test_a_stop_says_in_what_the_run_hung_unless_it_made_steps_again() -> None:
    hang = RunFinding(
        t=T + 40,
        run=RUN,
        check="run.stall",
        severity=Severity.WARN,
        summary="rank 1 is at ddp.py:29",
        kind="elsewhere",
    )
    end = RunEnded(t=T + 208.5, run=RUN, state=EndState.STOPPED, exit_code=143, seconds=208.5)
    stopped = "stopped after 3 min 28 s, exit code 143"
    assert said(window(0), hang, end) == f"{stopped}; it hung: rank 1 is at ddp.py:29"
    assert said(window(0), hang, window(0, T + 60), end) == stopped
    saves = msgspec.structs.replace(hang, severity=Severity.INFO)
    assert said(window(0), saves, end) == stopped
    again = RunRestarted(t=T + 50, run=RUN, restart=1, of=3)
    assert said(window(0), hang, again, end) == stopped
    failed = msgspec.structs.replace(end, state=EndState.FAILED)
    assert said(window(0), hang, failed) == "failed after 3 min 28 s, exit code 143"


def test_a_rank_that_is_still_to_be_found_is_not_late_by_those_that_began_later() -> None:
    ranks = [rank_is(rank, RankState.RUNNING) for rank in range(4)]
    later = [
        msgspec.structs.replace(reached(rank, "interpreter"), seconds=0.5, t=T + 20.5)
        for rank in (1, 2, 3)
    ]
    assert said(*ranks, *later, now=T + 21).startswith(
        "starting, rank 0 on h0 starts, imports or prepares: "
    )
    found = msgspec.structs.replace(reached(0, "interpreter"), seconds=0.5, t=T + 20.5)
    assert said(*ranks, *later, found, now=T + 21).startswith("starting, all import torch: ")


@pytest.mark.parametrize(
    ("names", "more", "kept"),
    [
        ("acc test_accuracy val/f1 mIoU top-5 AUC r2", True, "best"),
        ("loss val_loss top1_error perplexity accuracy_loss", False, "best"),
        ("lr mapped step grad_norm", False, "lowest"),
        ("", False, "lowest"),
    ],
)
def test_accuracies_and_scores_are_better_when_they_are_more(
    names: str, more: bool, kept: str
) -> None:
    for name in names.split(" "):
        assert (more_is_better(name), best_word(name)) == (more, kept), name


def test_the_best_is_kept_and_what_is_no_number_is_not() -> None:
    best: dict[str, float] = {}
    for value in (2.0, math.nan, 1.0, -math.inf, 3.0):
        take_best(best, "loss", value)
        take_best(best, "acc", value)
    assert best == {"loss": 1.0, "acc": 3.0}


def test_a_summary_says_what_was_best() -> None:
    timeline = timeline_of(scenes.training())
    (summary,) = [event.summary for event in list(scenes.past_runs())[:1]]  # type: ignore[union-attr]
    lowest = min(timeline.metrics["loss"].values)
    assert seen_in(summary, timeline).best["loss"] == pytest.approx(lowest)
