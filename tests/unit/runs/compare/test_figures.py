"""Runs side by side: what is said in words, the figures, and what is only comparable in part."""

import math
from collections.abc import Sequence

import pytest
from msgspec import structs

from distconsole.model.comparison import Comparison
from distconsole.model.run_events import Metric, RunEvents, RunRestarted, Window
from distconsole.model.run_summary import FirstFailure, RunSummary
from distconsole.runs.compare.figures import Compared, RunStatistics, compare, curves_of
from fakes import scenes
from fakes.blank import blank

START = scenes.START


def summary(run: str = "a-1", world: int = 2, **more: object) -> RunSummary:
    known = {
        "run": run, "name": run, "state": "succeeded", "started": START, "seconds": 60.0,
        "script": "train.py", "launcher": "torch", "world_size": world, "hosts": ("node1",),
        "samples_s": 1000.0, "steps": 600,
    }  # fmt: skip
    return RunSummary(**(known | more))  # type: ignore[arg-type]


def windows(
    world: int = 2, data: float = 3.0, rest: float = 47.0, slow: int | None = None
) -> list[RunEvents]:
    """Half a minute of a run, whose first second is slow as first seconds are."""
    found: list[RunEvents] = [scenes.plan(world)]
    for second in range(30):
        for rank in range(world):
            more = 30.0 if rank == slow else 0.0
            warm = 10.0 if second == 0 else 1.0
            found.append(
                blank(
                    Window,
                    t=START + 5 + second,
                    run=scenes.RUN,
                    rank=rank,
                    host=f"node{rank // 2 + 1}",
                    step=second * 20 + 19,
                    steps=20,
                    step_ms_mean=(data + rest + more) * warm,
                    step_ms_p95=60.0,
                    data_ms=data,
                    forward_ms=rest * 0.4,
                    backward_ms=rest * 0.5,
                    optimizer_ms=rest * 0.1,
                    samples_s=500.0,
                )
            )
        found.append(metric("loss", second * 20 + 19, 2.0 / (1 + second), START + 5 + second))
    return found


def metric(name: str, step: int, value: float, t: float = START + 9) -> Metric:
    return Metric(
        t=t, run=scenes.RUN, name=name, step=step, value=value, min=value, max=value, ranks=2, samples=None
    )  # fmt: skip


def compared(
    events: Sequence[RunEvents], settings: dict[str, str] | None = None, **more: object
) -> Compared:
    statistics = RunStatistics()
    for event in events:
        statistics.apply(event)
    statistics.close()
    return Compared(summary(**more), statistics, settings or {})  # type: ignore[arg-type]


def both(*runs: Compared) -> Comparison:
    return compare(runs)


def test_what_is_slower_and_why_is_said_first() -> None:
    torch = {"torch.version": "2.1", "launcher": "torch", "arg --lr": "0.1"}
    found = both(
        compared(windows(), torch),
        compared(windows(data=9.0), torch | {"torch.version": "2.3"}, run="b-1"),
    )
    assert found.words[0] == "B takes 12 % longer per step (50 → 56 ms): data wait 3 → 9 ms"
    assert found.words[-1] == "configuration: torch.version 2.1 → 2.3"
    assert found.same == ("launcher", "arg --lr")
    figures = {figure.name: figure for figure in found.figures}
    assert figures["step_ms"].values == pytest.approx((50.0, 56.0)), "the first window is left out"
    assert figures["step_ms"].ratios[1] == pytest.approx(1.12)
    assert figures["data_ms"].values == (3.0, 9.0)


def test_a_step_that_takes_half_the_time_is_not_said_to_be_half_as_fast_again() -> None:
    found = both(compared(windows(data=53.0)), compared(windows(), run="b-1"))
    assert found.words[0] == "B takes 50 % less time per step (100 → 50 ms): data wait 53 → 3 ms"
    found = both(compared(windows()), compared(windows(data=53.0), run="b-1"))
    assert found.words[0] == "B takes 2.0 x as long per step (50 → 100 ms): data wait 3 → 53 ms"


def test_runs_that_are_alike_are_said_to_be() -> None:
    found = both(compared(windows()), compared(windows(rest=47.5), run="b-1"))
    assert found.words[0] == "B is as fast per step as A (50 and 50.5 ms)"
    assert found.words[1] == "at step 599, which both reached, loss is alike: 0.06667 and 0.06667"
    assert found.words[-1] == "nothing that is known of their configuration differs"
    assert not found.notes


def test_curves_over_time_have_a_gap_where_nothing_was_measured() -> None:
    whole = windows()
    paused = [each for each in whole if not START + 15 <= each.t < START + 29]
    rare = [metric("val", s, 1.0, START + 5 + s) for s in range(0, 29, 7)]
    curves = curves_of([compared([*paused, *rare]), compared(whole, run="b-1")])
    by_time = {each.title: each.curves for each in curves if each.axis == "seconds"}
    for title in ("loss", "step ms", "samples/s"):
        one, other = by_time[title]
        assert len(one.gaps) == 1, title
        begin, end = one.gaps[0]
        assert end - begin == pytest.approx(15.0), title
        assert other.gaps == (), title
    assert by_time["val"][0].gaps == (), "told as seldom as ever"


def test_a_rank_that_is_slow_in_one_run_alone_is_named() -> None:
    def waiting(*, late: int | None) -> list[RunEvents]:
        """All steps take 50 ms; a rank that is ``late`` is waited for 30 of them."""
        return [
            each
            if not isinstance(each, Window)
            else structs.replace(each, waited_ms=(2.0 + 30 * (each.rank != late), 0, 0, 0, 0))
            for each in windows()
        ]

    found = both(compared(waiting(late=None)), compared(waiting(late=1), run="b-1"))
    assert (
        "in B rank 1 on node1 cost 60 % of each step on average since step 79; in A no rank was slow"
        in found.words
    )
    unwatched = compared([scenes.plan(2)])
    (told,) = (
        words
        for words in both(unwatched, compared(waiting(late=1), run="b-1")).words
        if "slow" in words or "cost" in words
    )
    assert told == "in B rank 1 on node1 cost 60 % of each step on average since step 79"
    by_name = {figure.name: figure for figure in found.figures}
    assert by_name["own_spread"].values == (pytest.approx(1.0), pytest.approx(2.5))


def test_more_ranks_are_judged_by_how_they_scale() -> None:
    found = both(
        compared(windows()), compared(windows(world=4), run="b-1", world=4, samples_s=1800.0)
    )
    assert (
        "B does 1.80 x the samples/s of A; with 4 ranks for 2 that is 90 % of linear"
        in found.words
    )
    assert found.notes[0].startswith("numbers of ranks differ (A 2, B 4)")


def test_the_outcome_comes_before_all() -> None:
    first = FirstFailure(rank=3, host="node2", exit_code=1, error="ValueError: boom")
    found = both(
        compared(windows()), compared(windows(), run="b-1", state="failed", first_failure=first)
    )
    assert found.words[:2] == (
        "A succeeded, B failed",
        "B: rank 3 on node2 failed first: ValueError: boom",
    )


def test_what_is_comparable_in_part_only_is_said() -> None:
    one = [*windows(), metric("accuracy", 500, 0.9)]
    other = [*windows()[:40], metric("loss", 9999, math.nan)]
    found = both(
        compared(one), compared(other, run="b-1", state="unknown"), compared([], run="c-1")
    )
    said = "\n".join(found.notes)
    assert "B and C did not report accuracy" in said
    assert "C did not report loss" in said
    assert "steps differ (A 19-599, B 19-9999)" in said
    assert "loss of B was no number from step 9,999 on" in said
    assert "C has no step times" in said
    assert "B has no end" in said


def test_curves_lie_along_steps_time_and_samples() -> None:
    runs = [
        compared(windows()),
        compared([*windows(data=9.0), metric("loss", 700, math.nan)], run="b-1"),
    ]
    found = {(each.title, each.axis): each for each in curves_of(runs)}
    assert [curve.letter for curve in found["loss", "step"].curves] == ["A", "B"]
    assert found["loss", "step"].curves[0].xs[-1] == 599
    assert found["loss", "step"].curves[1].broken == (700,)
    assert found["loss", "seconds"].curves[0].xs[0] == 5.0
    assert found["samples/s", "seconds"].curves[0].xs[0] == 5.0
    samples = found["loss", "samples"].curves[0].xs
    # 30 windows of 20 steps of 50 ms at 500 samples/s on 2 ranks, the first of them ten times as slow
    assert samples[-1] == pytest.approx(39 * 1000, rel=0.01)
    assert list(samples) == sorted(samples)


@pytest.mark.parametrize("events", [[], windows()])
def test_nothing_known_is_no_error(events: list[RunEvents]) -> None:
    nothing = {"samples_s": None, "steps": None, "seconds": None}
    found = both(compared([], **nothing), compared(events, run="b-1", **nothing))
    assert found.words[-1] == "nothing that is known of their configuration differs"


def losses(*points: tuple[int, float]) -> list[RunEvents]:
    told = [metric("loss", step, value, START + 5 + step / 100) for step, value in points]
    return [scenes.plan(2), *told]


def quality(one: Sequence[RunEvents], other: Sequence[RunEvents]) -> str:
    words = both(compared(one), compared(other, run="b-1")).words
    return next(line for line in words if "loss" in line)


def test_a_loss_is_one_that_was_measured_at_the_step_that_is_named() -> None:
    """Both had 0.6198 at step 430; a line between its neighbours says 0.9575 for 435 in the longer run."""
    shared = [(400, 1.5), (430, 0.6198)]
    said = quality(losses(*shared, (435, 0.6)), losses(*shared, (470, 3.0), (900, 0.1)))
    assert said == "at step 430, which both reached, loss is alike: 0.6198 and 0.6198"


def test_losses_that_were_never_measured_at_one_step_are_told_each_with_its_own() -> None:
    said = quality(losses((100, 2.0), (435, 0.6198)), losses((101, 2.0), (431, 0.7), (470, 3.0)))
    assert said == (
        "at step 435 of A and 431 of B, the nearest with a value, loss is 0.6198 in A and 0.7 in B"
    )
    alike = quality(losses((435, 0.62)), losses((431, 0.62), (470, 3.0)))
    assert alike == (
        "at step 435 of A and 431 of B, the nearest with a value, loss is alike: 0.62 and 0.62"
    )


def test_a_loss_of_a_long_run_is_no_mean_of_its_neighbours() -> None:
    """A curve merges its points; what is stated does not."""

    def loss(step: int) -> float:
        return 1.0 if step % 2 else 3.0

    short = losses(*((step, loss(step)) for step in range(6_000)))
    long = losses(*((step, loss(step)) for step in range(40_000)))
    said = quality(short, long)
    at = int(said.split()[2].rstrip(",").replace(",", ""))
    assert 5_400 <= at <= 5_999
    assert said.endswith(f"loss is alike: {loss(at):.4g} and {loss(at):.4g}")


def test_a_loss_that_was_measured_again_after_a_restart_is_the_later_one() -> None:
    again = RunRestarted(t=START + 6, run=scenes.RUN, restart=1, of=3)
    one = [*losses((10, 5.0), (20, 4.0), (30, 3.0)), again, *losses((20, 1.0))[1:]]
    assert quality(one, losses((20, 4.0), (30, 2.0))).endswith("1 in A and 4 in B")
    one += losses((25, 0.5))[1:]
    assert quality(one, losses((20, 4.0), (25, 2.0))).endswith("0.5 in A and 2 in B")


def test_a_step_whose_loss_was_no_number_is_none_to_compare_at() -> None:
    said = quality(losses((10, 5.0), (20, math.nan)), losses((10, 5.0), (20, 4.0)))
    assert said == "at step 10, which both reached, loss is alike: 5 and 5"
