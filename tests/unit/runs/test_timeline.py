"""The picture of a run, folded from its events."""

import math
from collections.abc import Sequence

import msgspec
import pytest

from distconsole.model.findings import Severity
from distconsole.model.run_events import (
    EndState,
    GpuSample,
    LinkChanged,
    PhaseReached,
    PlanMade,
    PlannedHost,
    RankState,
    RunEnded,
    RunFinding,
    Window,
)
from distconsole.model.run_summary import FirstFailure
from distconsole.rpc.frames import AttemptEntry
from distconsole.runs.detectors.conclusions import NODE_LOST
from distconsole.runs.health import health_line
from distconsole.runs.present import present
from distconsole.runs.reduce import RunReducer
from distconsole.runs.series import Series
from distconsole.runs.summary import decode_entry
from distconsole.runs.timeline import LAST_LINES, RunTimeline
from fakes.blank import blank
from fakes.journals import Journal
from fakes.run_events import RUN, T, log, metric, rank_is, timeline_of, window


def plan() -> PlanMade:
    hosts = tuple(
        PlannedHost(host=f"h{i}", ranks=(2 * i, 2 * i + 1), command="", env={}) for i in range(2)
    )
    return PlanMade(t=T, run=RUN, launcher="torch", why="", world_size=4, hosts=hosts, name="big")


def folded(*events: object) -> RunTimeline:
    return timeline_of(events)


def test_the_plan_places_the_ranks_before_any_has_spoken() -> None:
    timeline = folded(plan())
    assert [(v.rank, v.host, v.local_rank) for v in timeline.ranks.values()] == [
        *((0, "h0", 0), (1, "h0", 1)),
        *((2, "h1", 0), (3, "h1", 1)),
    ]
    assert (timeline.name, timeline.run, timeline.started) == ("big", RUN, T)


def test_the_throughput_is_the_sum_over_ranks_and_loses_those_that_ended() -> None:
    timeline = folded(window(0), window(1), window(0, T + 1), window(1, T + 1, samples_s=50.0))
    assert timeline.throughput.values == [200.0, 150.0]
    timeline.apply(rank_is(1, RankState.EXITED, exit_code=0))
    timeline.apply(window(0, T + 2))
    assert timeline.throughput.last == 100.0


def test_the_mean_throughput_counts_pauses_and_not_who_told_of_them_when() -> None:
    usual = {"steps": 10, "ms": 100.0, "samples_s": 100.0}
    pause = {"steps": 10, "ms": 900.0, "samples_s": 100.0 / 9}
    warm_up = window(0, T, samples_s=1.0), window(1, T, samples_s=1.0)
    told = [window(0, T + second, **usual) for second in (1, 2, 12)]
    told[1] = window(0, T + 11, **pause)
    late = {"steps": 30, "ms": 1100.0 / 3, "samples_s": 300.0 / 11}
    timeline = folded(*warm_up, *told, window(1, T + 20, **late))
    assert timeline.mean_samples_s == pytest.approx(600.0 / 11)
    assert folded(window(0)).mean_samples_s == 100.0
    assert folded().mean_samples_s is None


def test_a_rank_that_comes_back_from_silence_is_not_taken_off_twice() -> None:
    timeline = folded(*(window(rank, T + second) for second in (0, 30) for rank in (0, 1)))
    assert timeline.throughput.values == [200.0, 200.0]


def test_a_rank_that_fell_silent_does_not_count() -> None:
    timeline = folded(window(0), window(1), window(0, T + 6))
    assert timeline.throughput.last == present(timeline, T + 6).samples_s == 100.0


def test_ranks_count_between_their_windows_where_steps_are_long() -> None:
    slow = {"steps": 1, "ms": 12_000.0}
    timeline = folded(window(0, **slow), window(1, T + 1, **slow), window(0, T + 12, **slow))
    assert timeline.throughput.last == present(timeline, T + 12).samples_s == 200.0
    timeline.apply(window(0, T + 36, **slow))
    assert timeline.throughput.last == present(timeline, T + 36).samples_s == 100.0


def test_the_spread_is_over_the_whole_run_and_weighted_by_steps() -> None:
    timeline = folded(
        window(0, steps=10, ms=10.0), window(0, steps=30, ms=20.0), window(1, steps=40, ms=35.0)
    )
    assert timeline.ranks[0].step_ms_run == pytest.approx(17.5)
    assert timeline.spread == pytest.approx(2.0)
    assert timeline.step_times == [timeline.ranks[0].step_ms_run, timeline.ranks[1].step_ms_run]


def waiting(rank: int, steps: int, ms: float, waited: float | None) -> Window:
    told = None if waited is None else (waited, 0.0, 0.0, 0.0, 0.0)
    return window(rank, steps=steps, ms=ms, waited_ms=told)


def test_a_ranks_own_time_is_the_mean_of_all_windows_but_the_first() -> None:
    timeline = folded(
        waiting(0, 1000, 10.0, 0.0), waiting(0, 10, 100.0, 0.0), waiting(0, 10, 200.0, 0.0)
    )
    assert timeline.own_times == {0: pytest.approx(150.0)}


@pytest.mark.parametrize(("silent", "known"), [(range(10, 20), False), ((10,), True)])
def test_own_times_are_unknown_where_a_rank_says_how_long_it_waited_in_a_part_of_the_run(
    silent: Sequence[int], *, known: bool
) -> None:
    timeline = RunTimeline()
    for second in range(20):
        ms = 100.0 if second < 10 else 1000.0
        timeline.apply(waiting(0, 10, ms, None if second in silent else 0.0))
        timeline.apply(waiting(1, 10, ms, 0.0))
    assert timeline.spread == pytest.approx(1.0)
    assert set(timeline.own_times) == ({0, 1} if known else set())
    assert (timeline.own_spread is not None) == known


def test_nothing_known_is_none_and_not_zero() -> None:
    timeline = folded(plan(), window(0, ms=None, samples_s=None))
    assert (timeline.spread, timeline.step_times) == (None, [])
    assert present(timeline, T).samples_s is present(timeline, T).step_ms is None


def test_a_gpu_is_shown_at_its_rank() -> None:
    sample = blank(GpuSample, t=T, run=RUN, host="h0", gpu=3, rank=1, util=90.0, power_w=300.0)
    view = folded(plan(), sample).ranks[1]
    assert (view.gpu, view.gpu_util, view.sample and view.sample.power_w) == (3, 90.0, 300.0)


def test_mig_instances_of_one_gpu_are_told_apart() -> None:
    whole = blank(GpuSample, t=T, run="r", host="h", util=90.0, mem_used=1, mem_total=2)
    parts = [
        msgspec.structs.replace(whole, mig=f"{number}g.10gb", rank=number) for number in (0, 1)
    ]
    timeline = folded(*parts, msgspec.structs.replace(parts[1], util=10.0))
    assert [each.util for each in timeline.gpus.values()] == [90.0, 10.0]


def test_the_furthest_phase_is_the_ranks_phase() -> None:
    phases = [
        PhaseReached(t=T, run=RUN, rank=0, host="h0", phase=name, seconds=float(i))
        for i, name in enumerate(("import_torch", "interpreter", "unheard_of"))
    ]
    assert folded(*phases).ranks[0].phase == "import_torch"


def test_the_last_lines_are_kept() -> None:
    timeline = folded(*(log(str(number)) for number in range(LAST_LINES + 10)))
    assert len(timeline.logs) == LAST_LINES
    assert next(iter(timeline.logs)).line == "10"


def test_a_progress_bar_stands_at_its_rank_until_a_line_follows() -> None:
    timeline = folded(log("10%", transient=True), log("5%", transient=True, rank=1))
    assert (len(timeline.logs), len(timeline.progress)) == (0, 2)
    timeline.apply(log("done"))
    assert [each.line for each in timeline.progress.values()] == ["5%"]


@pytest.mark.parametrize(("fall", "trend"), [(0.125, "↓"), (0.0, "→")])
def test_the_health_line_says_where_the_loss_goes(fall: float, trend: str) -> None:
    losses = [metric("loss", 1 + fall * (8 - step), step) for step in range(9)]
    assert f"loss 1 {trend}" in health_line(folded(window(0), *losses), T)


def test_a_run_that_goes_on_without_a_rank_is_healthy_and_smaller() -> None:
    events = [window(0), window(1), window(2), rank_is(1, RankState.FAILED)]
    assert health_line(folded(*events), T).startswith("rank 1 failed: 3 ranks")
    about = {"check": "run.rank_lost", "severity": Severity.WARN, "summary": "s", "rank": 1}
    events.append(RunFinding(t=T, run=RUN, **about))
    assert health_line(folded(*events), T).startswith("healthy: 2 ranks")


def test_the_health_line_of_an_ended_run_blames() -> None:
    end = RunEnded(
        t=T,
        run=RUN,
        state=EndState.FAILED,
        exit_code=3,
        seconds=2.0,
        first_failure=FirstFailure(rank=1, host="h1", exit_code=3, error="boom"),
    )
    line = health_line(folded(window(0), end), T)
    assert line == "failed after 2.0 s, exit code 3; rank 1 on h1 failed first: boom"


def test_a_host_that_came_back_is_not_lost() -> None:
    lost = LinkChanged(t=T, run=RUN, host="h0", connected=False)
    back = LinkChanged(t=T, run=RUN, host="h0", connected=True)
    assert folded(lost).lost_hosts == ["h0"]
    assert folded(lost, back).lost_hosts == []


def test_findings_are_bounded() -> None:
    finding = RunFinding(t=T, run=RUN, check="x", severity=Severity.WARN, summary="s")
    assert len(folded(*[finding] * 2000).findings) == 500


def test_a_series_is_bounded_and_keeps_its_shape() -> None:
    series = Series(limit=64)
    for x in range(100_000):
        series.put(x, math.sin(x / 8000), 50.0 if x == 33_333 else None, None)
    assert len(series) <= 64
    assert series.last_x == 99_999
    assert series.last == math.sin(99_999 / 8000)
    assert all(abs(v - math.sin(x / 8000)) < 0.4 for x, v, _, _ in series.points()[:-1])
    assert series.xs == sorted(series.xs)


def test_a_spike_stays_in_the_envelope() -> None:
    series = Series(limit=8)
    for x in range(10_000):
        series.put(x, 1.0, high=99.0 if x == 1234 else 1.0)
    assert max(series.highs) == 99.0
    assert min(series.lows) == 1.0


def test_a_series_takes_the_newest_of_equal_and_leaves_out_the_past_and_nan() -> None:
    series = Series()
    for x, value in ((1, 5.0), (1, 6.0), (0, 9.0), (2, math.nan)):
        series.put(x, value)
    assert series.points() == [(1, 6.0, 6.0, 6.0)]


def lost(host: str) -> RunFinding:
    return RunFinding(
        t=T, run=RUN, check=NODE_LOST, severity=Severity.WARN, summary="", hosts=(host,)
    )


def test_a_run_that_outlived_a_host_has_the_ranks_that_are_left() -> None:
    gone = [rank_is(rank, RankState.FAILED) for rank in range(4)]
    view = folded(plan(), *gone, lost("h1"))
    assert view.world == 2
    assert health_line(view, T).startswith("beginning again without h1: 2 ranks")
    for rank in range(2):
        view.apply(rank_is(rank, RankState.RUNNING))
    view.apply(LinkChanged(t=T, run=RUN, host="h1", connected=False))
    assert not view.lost_hosts
    assert health_line(view, T).startswith("starting: 2 ranks")


@pytest.mark.parametrize("restarted", [False, True])
def test_who_is_slow_is_judged_once_for_the_reducer_and_the_timeline(restarted: bool) -> None:
    journal = Journal(hosts=2, seconds=40, slow=2, lockstep=True)
    reducer = RunReducer(journal.run, journal.names)
    own, shared = RunTimeline(), RunTimeline(reducer.stragglers)
    middle = journal.plan().t + journal.seconds / 2
    for entry in journal.entries():
        if restarted and entry.t > middle:
            restarted = False
            attempt = AttemptEntry(seq=1, t=middle, restart=1, of=2)
            for host in journal.names:
                for event in reducer.feed(host, attempt, middle):
                    own.apply(event)
                    shared.apply(event)
        for event in reducer.feed(entry.host, decode_entry(entry.body), entry.t):
            own.apply(event)
            shared.apply(event)
    assert shared.stragglers is reducer.stragglers
    assert shared.stragglers.told == own.stragglers.told != []
    assert shared.stragglers.slow == own.stragglers.slow
