"""What the screen shows of a run in a stall, behind a cut and after its end: nothing as if it were of now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.run_events import (
    EndState,
    LinkChanged,
    Metric,
    RankState,
    RunEnded,
    RunFinding,
    Window,
)
from distconsole.model.time_text import clock_text
from distconsole.tui.widgets.plot import Plot
from fakes import scenes
from fakes.stage import ATTACH, LARGE, on_screen, screen_text, staged, typed

CUT = scenes.START + 30.0


def until(t: float) -> Iterator[Event]:
    """A run whose ranks tell of no step after ``t``."""
    for event in scenes.training(gpus=False):
        if not (isinstance(event, Window | Metric) and event.t > t):
            yield event


def beats(first: int, last: int = 60) -> Iterator[Event]:
    for second in range(first, last + 1):
        for host in ("node1", "node2"):
            yield replace(scenes.node(host, scenes.START + second), run=scenes.RUN)


def stalled() -> Iterator[Event]:
    yield from until(CUT)
    yield from beats(0)


def cut_off() -> Iterator[Event]:
    yield from until(CUT)
    yield from beats(0, 30)
    for host in ("node1", "node2"):
        yield LinkChanged(
            t=CUT + 1, run=scenes.RUN, host=host, connected=False, reason="timed out"
        )


def over() -> Iterator[Event]:
    yield from until(CUT)
    for number in range(4):
        yield scenes.rank(number, RankState.EXITED, CUT + 1)
    yield RunEnded(t=CUT + 1, run=scenes.RUN, state=EndState.SUCCEEDED, exit_code=0, seconds=31.0)


def footing(text: str) -> str:
    """The line below the curves."""
    (line,) = (line for line in text.splitlines() if "seconds" in line)
    return line


def titles(text: str) -> str:
    """The line above them."""
    (line,) = (line for line in text.splitlines() if "step ms" in line)
    return re.sub(r" +", " ", line)


async def test_in_a_stall_the_screen_has_no_figure_of_before_as_if_it_were_of_now() -> None:
    app, stage = staged({ask.Attach: stalled}, request=ATTACH)
    async with on_screen(app, stage, LARGE):
        text = screen_text(app)
        assert "no rank has finished a step for 30 s: 4 ranks, 0 samples/s, step –" in text
        assert "step –, loss 0.483 30 s ago" in text
        assert titles(text) == "loss 0.483 30 s ago samples/s 0 accuracy 0.882 30 s ago step ms –"
        assert footing(text).count("seconds 60") == 2, "the axes of time end now"


async def test_behind_a_cut_nothing_is_known() -> None:
    app, stage = staged({ask.Attach: cut_off}, request=ATTACH)
    async with on_screen(app, stage, LARGE):
        text = screen_text(app)
        assert "no connection to node1, node2 for 29 s: 4 ranks, – samples/s, step –" in text
        assert titles(text) == "loss 0.483 30 s ago samples/s – accuracy 0.882 30 s ago step ms –"
        assert "1714" not in text
        assert text.count("lost 29 s") == 4


async def test_after_the_end_the_last_figures_are_said_to_be_the_last_and_axes_end_there() -> None:
    app, stage = staged({ask.Attach: over}, request=ATTACH)
    async with on_screen(app, stage, LARGE):
        text = screen_text(app)
        assert titles(text) == (
            "loss last 0.483 samples/s last 1714 accuracy last 0.882 step ms last 18.15"
        )
        assert footing(text).count("seconds 31") == 2


async def test_a_title_and_the_line_about_the_run_say_the_same() -> None:
    def uneven() -> Iterator[Event]:
        for event in scenes.training(gpus=False):
            if isinstance(event, Window):
                event = replace(event, step_ms_mean=31.8 + 4.6667 * event.rank)
            yield event

    app, stage = staged({ask.Attach: uneven}, request=ATTACH)
    async with on_screen(app, stage, LARGE):
        text = screen_text(app)
        assert "step 38.8 ms" in text
        assert "step ms 38.8" in titles(text)


async def test_a_gap_is_no_decline() -> None:
    def interrupted() -> Iterator[Event]:
        for event in scenes.training(gpus=False):
            inside = isinstance(event, Window) and CUT - 10 < event.t < CUT + 10
            if not inside:
                slow = isinstance(event, Window) and event.t > CUT
                yield replace(event, samples_s=15.0) if slow else event  # type: ignore[type-var]

    app, stage = staged({ask.Attach: interrupted}, request=ATTACH)
    async with on_screen(app, stage, LARGE):
        plot = app.query_one("#plots-1", Plot)
        text = [plot.render_line(y).text for y in range(plot.size.height)]
    assert text[0].startswith("samples/s 60")
    width = text[-1].index("60") + 2 - 8
    third = [line[8:][width * 22 // 60 : width * 38 // 60].strip() for line in text[1:-1]]
    assert not any(third), "nothing is drawn where nothing was measured"
    assert text[1][8 : 8 + width // 4].strip()


async def test_one_long_window_is_cut_off_with_a_mark_and_its_value() -> None:
    def hiccup() -> Iterator[Event]:
        for event in scenes.training(gpus=False):
            if isinstance(event, Window) and event.step == 300:
                event = replace(event, step_ms_mean=4000.0)
            yield event

    app, stage = staged({ask.Attach: hiccup}, request=ATTACH)
    async with on_screen(app, stage, LARGE):
        text = screen_text(app)
        assert "▲ 4000" in titles(text)
        assert not re.search(r"^ .* 4000 +[▲⠀-⣿]", text, re.MULTILINE), (
            "the scale is of the others"
        )


@pytest.mark.parametrize("words", ["heat", "heat span"])
async def test_the_heat_map_ends_now(words: str) -> None:
    app, stage = staged({ask.Attach: stalled}, request=ATTACH)
    async with on_screen(app, stage, LARGE) as pilot:
        await typed(app, stage, pilot, words)
        text = screen_text(app)
        assert "▲" not in text, "nobody is blamed for what was"
        assert clock_text(scenes.START + 61) in text


async def test_a_finding_that_is_not_of_now_has_its_age() -> None:
    def found(t: float) -> Iterator[Event]:
        for event in scenes.straggling():
            yield replace(event, t=t) if isinstance(event, RunFinding) else event

    for age, said in ((0, "data part of its steps\n"), (42, "data part of its steps, 42 s ago\n")):
        app, stage = staged(
            {ask.Attach: partial(found, scenes.MINUTE_LATER - age)}, request=ATTACH
        )
        async with on_screen(app, stage, LARGE):
            shown = "\n".join(line.rstrip() for line in screen_text(app).splitlines())
            assert f"is slow in the {said}" in shown
