"""Who is blamed, from windows of real ranks: ``recorded_windows.json`` is what 2 and 4 ranks on two busy cores told.

A key is ENGINE-RANKS-PLACE-SLOW: where in its steps which rank slept 20 ms and more, or ``healthy``. A row is
rank, time, step, steps, then milliseconds of step, data, forward, backward, optimizer, and the five of waits.
"""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from distconsole.model.run_events import RunFinding, Window
from distconsole.runs import pace
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.detectors.stragglers import StragglerWatch, past_text, straggler_finding

RECORDED: dict[str, list[Any]] = json.loads(
    Path(__file__).with_name("recorded_windows.json").read_text()
)
PART_OF = {"between": "rest"}
T0 = 1000.0


def window(row: list[Any], *, ranks: int, waits: bool = True) -> Window:
    rank, t, step, steps, step_ms, data, forward, backward, optimizer, waited = row
    return Window(
        t=T0 + t,
        run="r",
        rank=rank,
        step=step,
        steps=steps,
        step_ms_mean=step_ms,
        step_ms_p95=step_ms,
        data_ms=data,
        forward_ms=forward,
        backward_ms=backward,
        optimizer_ms=optimizer,
        samples_s=None,
        metrics={},
        dropped=0,
        host=f"h{rank // 2 if ranks > 2 else rank}",
        waited_ms=tuple(waited) if waits else None,
    )


def test_a_ranks_last_windows_are_kept_in_little_room_with_what_is_compared() -> None:
    rows = recorded("ddp-2-forward-1")[:2]
    watch, told = StragglerWatch(), rows[1]
    for step in range(-pace.WARM_UP_WINDOWS, 100):
        first = step <= 0
        watch.add(
            structs.replace(
                told, step=step, **({"waited_ms": None, "data_ms": None} if first else {})
            )
        )
        if step < 0:
            continue
        known = watch._recent[told.rank]
        kept = [int(record[1]) for record in known.last()]
        assert kept == list(range(max(0, step + 1 - pace.KNOWN_WINDOWS), step + 1))
        if step == 5:
            first = known.last()[0]
            assert sum(map(math.isnan, first)) == 1 + 5 + 2, "data, waits, and no load was told"
    t, step, *times = known.last(2)[0]
    assert told.waited_ms is not None
    parts = (told.data_ms, told.forward_ms, told.backward_ms, told.optimizer_ms)
    assert (t, step, told.step_ms_mean, *parts) == (told.t, 98, *times[:5])
    assert tuple(times[7:]) == told.waited_ms
    assert sys.getsizeof(known.figures) < 150 * pace.KNOWN_WINDOWS


def blamed(windows: list[Window]) -> list[Straggler]:
    watch = StragglerWatch()
    return [found for each in windows for found in watch.add(each)]


def recorded(name: str, *, waits: bool = True) -> list[Window]:
    ranks = int(name.split("-")[1])
    return [window(row, ranks=ranks, waits=waits) for row in RECORDED[name]]


@pytest.mark.parametrize("name", [name for name in RECORDED if "healthy" not in name])
def test_the_slow_rank_or_host_is_named_with_its_part(name: str) -> None:
    engine, _, place, slow = name.split("-")
    culprits = tuple(map(int, slow.split(".")))
    (found,) = blamed(recorded(name))
    assert found.ranks == culprits
    assert found.hosts == (("h1",) if len(culprits) > 1 else ())
    # Without a DataLoader all that comes before backward is forward.
    place = "forward" if engine == "fsdp2" and place in ("data", "between") else place
    assert found.part == PART_OF.get(place, place)


@pytest.mark.parametrize("name", [name for name in RECORDED if "healthy" in name])
def test_nobody_is_blamed_where_nobody_is_slow(name: str) -> None:
    assert blamed(recorded(name)) == []
    assert blamed(recorded(name, waits=False)) == []


@pytest.mark.parametrize("name", [name for name in RECORDED if "-2-" in name])
def test_of_two_ranks_that_do_not_say_how_they_wait_the_wrong_one_is_never_named(
    name: str,
) -> None:
    for found in blamed(recorded(name, waits=False)):
        assert (found.rank, found.part) == (1, "data")


def steady(seconds: int, own: list[float]) -> list[Window]:
    """Ranks that all wait in backward for the one whose own time is the longest."""
    step = max(own) + 1.0
    return [
        window(
            [
                r,
                t + r / 50,
                20 * t,
                20,
                step,
                1.0,
                5.0,
                step - 9.0,
                2.0,
                [step - o, 0, 0, step - o, 0],
            ],
            ranks=len(own),
        )
        for t in range(seconds)
        for r, o in enumerate(own)
    ]


def test_the_price_is_what_the_step_would_be_shorter_by() -> None:
    (found,) = blamed(steady(20, [40.0, 44.0, 40.0, 60.0]))
    assert (found.rank, found.step_ms, found.cost_ms) == (3, 61.0, 16.0)
    said = straggler_finding(RanksSeen("r"), found, T0)
    assert said.summary.endswith("; costs 26 % of each step")
    assert said.costs == 26.23


def test_what_is_said_of_it_later_is_the_mean_of_the_time_that_it_lasted() -> None:
    watch = StragglerWatch()
    dear, cheap, even = ([40.0, 60.0], [40.0, 50.0], [40.0, 40.0])
    for each in [*steady(20, dear), *later(20, steady(20, cheap)), *later(40, steady(9, even))]:
        watch.add(each)
    (told,) = watch.told
    assert 10.0 < told.cost_ms < 20.0
    assert (
        past_text(told, {1: "h1"})
        == "rank 1 on h1 cost 25 % of each step on average from step 60 to 860"
    )


def later(seconds: int, windows: list[Window]) -> list[Window]:
    """The same, so much later."""
    return [
        structs.replace(each, t=each.t + seconds, step=each.step + 20 * seconds)
        for each in windows
    ]


def test_a_rank_for_which_nobody_waits_costs_nothing() -> None:
    (found,) = blamed([
        window([r, t, (20 - 5 * r) * t, 20, 50.0 + 20 * r, 5.0 + 20 * r, 10, 20, 5, []], ranks=2, waits=False)
        for t in range(20)
        for r in (0, 1)
    ])  # fmt: skip
    assert (found.rank, found.part, found.cost_ms) == (1, "data", 0.0)
    assert "costs" not in straggler_finding(RanksSeen("r"), found, T0).summary


def varying(own: list[float], by: float) -> list[Window]:
    """Ranks whose own times differ from second to second, each in another way."""
    return [
        each
        for t in range(30)
        for each in later(
            t, steady(1, [o + by * ((t * (3 + 2 * r)) % 7 - 3) / 3 for r, o in enumerate(own)])
        )
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_milliseconds_of_fifty_are_named_where_own_times_are_steady(ranks: int) -> None:
    late = [48.0] * (ranks - 1) + [50.0]
    (found,) = blamed(varying(late, 0.3))
    assert found.ranks == (ranks - 1,)
    assert found.cost_ms == pytest.approx(2.0, rel=0.2)
    assert blamed(varying([48.0] * ranks, 0.3)) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_milliseconds_are_nobodys_where_own_times_differ_by_as_much_by_themselves(
    ranks: int,
) -> None:
    assert blamed(varying([48.0] * (ranks - 1) + [50.0], 3.0)) == []


def test_of_two_slow_ranks_on_different_hosts_both_are_named() -> None:
    (found,) = blamed(steady(20, [40.0, 60.0, 40.0, 61.0, 41.0, 40.0]))
    said = straggler_finding(RanksSeen("r"), found, T0)
    assert said.summary.startswith("ranks 1, 3 are slow since about step ")


def test_two_slow_hosts_are_named_as_hosts() -> None:
    (found,) = blamed(steady(20, [40.0, 40.0, 60.0, 61.0, 60.0, 61.0, 41.0, 40.0]))
    said = straggler_finding(RanksSeen("r"), found, T0)
    assert said.summary.startswith("h1, h2 (ranks 2, 3, 4, 5) are slow since about step ")
    assert isinstance(said, RunFinding)
    assert "all ranks of the host" in said.hint


def test_where_most_are_slow_nobody_is() -> None:
    assert blamed(steady(20, [60.0, 60.0, 60.0, 40.0])) == []


def seconds_to_name(windows: list[Window], fault_s: int) -> list[float]:
    watch = StragglerWatch()
    return [each.t - T0 - fault_s for each in windows for _ in watch.add(each)]


@pytest.mark.parametrize(("late_ms", "patience_s"), [(5.0, 6.0), (1.5, 10.0)])
def test_the_larger_the_difference_is_against_the_noise_the_sooner_it_is_named(
    late_ms: float, patience_s: float
) -> None:
    fault = later(30, varying([48.0, 48.0, 48.0, 48.0 + late_ms], 0.3))
    (seconds,) = seconds_to_name([*varying([48.0] * 4, 0.3), *fault], 30)
    assert seconds < patience_s
    assert late_ms > 2.0 or seconds > 6.0


def test_four_seconds_of_another_process_are_nobodys_fault_however_slow_they_are() -> None:
    burst = later(20, steady(4, [48.0, 48.0, 48.0, 90.0]))
    calm = [*steady(20, [48.0] * 4), *burst, *later(24, steady(20, [48.0] * 4))]
    assert seconds_to_name(calm, 20) == []


def paused(seconds: int, pauses: set[int]) -> list[Window]:
    """Four ranks, of which the last one pauses in some of the seconds."""
    return [
        each
        for t in range(seconds)
        for each in later(t, steady(1, [48.0, 48.0, 48.0, 90.0 if t in pauses else 48.0]))
    ]


def test_a_few_pauses_that_fall_on_one_rank_are_not_its_fault() -> None:
    assert seconds_to_name(paused(40, {20, 22, 24, 25, 27, 29}), 20) == []


def test_a_rank_that_pauses_in_most_seconds_for_long_is_named() -> None:
    (seconds,) = seconds_to_name(paused(60, {t for t in range(20, 60) if t % 5 in (0, 2, 4)}), 20)
    assert 15 < seconds < 30


def test_a_slow_rank_for_which_nobody_waits_is_looked_at_as_cheaply_as_any() -> None:
    def lone(slow_ms: float) -> list[Window]:
        """Eight ranks with equally many steps, of which the last one takes longer over its data."""
        return [
            window(
                [r, t, 20 * t, 20, 50.0 + late, 5.0 + late, 10, 20, 5, []], ranks=8, waits=False
            )
            for t in range(60)
            for r in range(8)
            for late in (slow_ms if r == 7 else 0.0,)
        ]

    def calls(windows: list[Window]) -> int:
        counted: Counter[str] = Counter()
        sys.setprofile(lambda _frame, event, _of: counted.update([event]))
        try:
            assert blamed(windows) == []
        finally:
            sys.setprofile(None)
        return counted.total()

    assert calls(lone(20.0)) < 6 * calls(lone(0.0))
