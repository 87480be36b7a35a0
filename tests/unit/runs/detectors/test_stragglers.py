"""Who is blamed, from windows of real ranks: ``recorded_windows.json`` is what 2 and 4 ranks on two busy cores told.

A key is ENGINE-RANKS-PLACE-SLOW: where in its steps which rank slept 20 ms and more, or ``healthy``. A row is
rank, time, step, steps, then milliseconds of step, data, forward, backward, optimizer, and the five of waits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distconsole.model.run_events import RunFinding, Window
from distconsole.runs.detectors.ranks import Ranks
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.detectors.stragglers import StragglerWatch, straggler_finding

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
    said = straggler_finding(Ranks("r"), found, T0)
    assert said.summary.endswith("; costs 26 %")


def test_of_two_slow_ranks_on_different_hosts_both_are_named() -> None:
    (found,) = blamed(steady(20, [40.0, 60.0, 40.0, 61.0, 41.0, 40.0]))
    said = straggler_finding(Ranks("r"), found, T0)
    assert said.summary.startswith("ranks 1, 3 are slow since about step ")


def test_two_slow_hosts_are_named_as_hosts() -> None:
    (found,) = blamed(steady(20, [40.0, 40.0, 60.0, 61.0, 60.0, 61.0, 41.0, 40.0]))
    said = straggler_finding(Ranks("r"), found, T0)
    assert said.summary.startswith("h1, h2 (ranks 2, 3, 4, 5) are slow since about step ")
    assert isinstance(said, RunFinding)
    assert "all ranks of the host" in said.hint


def test_where_most_are_slow_nobody_is() -> None:
    assert blamed(steady(20, [60.0, 60.0, 60.0, 40.0])) == []
