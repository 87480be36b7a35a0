"""What the screen shows of a run in a stall, behind a cut and after its end: nothing as if it were of now."""

import re
from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace
from textual.pilot import Pilot

from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.run_events import (
    EndState,
    LinkChanged,
    Metric,
    NodeSample,
    RankState,
    RunEnded,
    RunFinding,
    Window,
)
from distconsole.model.time_text import clock_text
from distconsole.tui.app import ConsoleApp
from distconsole.tui.views.run import RunView
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.plots import Plot, PlotPanel
from distconsole.tui.widgets.tiles import Tile, TileData, Tiles
from fakes import scenes
from fakes.stage import ATTACH, LARGE, Stage, on_screen, on_stage, screen_text, staged

CUT = scenes.START + 30.0


def until(t: float) -> Iterator[Event]:
    """A run whose ranks tell of no step after ``t``."""
    for event in scenes.training(gpus=False):
        if not (isinstance(event, Window | Metric) and event.t > t):
            yield event


def beats(first: int, last: int = 60) -> Iterator[NodeSample]:
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


async def be_behind(app: ConsoleApp, stage: Stage, pilot: Pilot[int], *, behind: bool) -> None:
    """Have the console redraw, with entries of the run still to read (``behind``) or with none."""
    (control,) = (each for each in stage.controls if each.timeline is not None)
    control.behind = behind
    app.screen.redraw()
    await stage.settled()


def titles(app: ConsoleApp) -> list[str]:
    """What stands above the curves."""
    panels = [panel for panel in app.query_one(RunView).query(PlotPanel) if panel.display]
    return [re.sub("[ ─]+", " ", panel.title_text) for panel in panels]


def tiles(app: ConsoleApp) -> dict[str, str]:
    """The figures of the run, by name."""
    return {tile.data.title: tile.data.value for tile in app.query(Tile) if tile.data is not None}


def ends(app: ConsoleApp) -> list[float | None]:
    """Where the axes of time end, in seconds of the run."""
    shown = [plot.data for plot in app.query(Plot) if plot.data is not None]
    return [data.until for data in shown if not data.x_label]


async def test_in_a_stall_the_screen_has_no_figure_of_before_as_if_it_were_of_now() -> None:
    async with on_stage({ask.Attach: stalled}, LARGE, request=ATTACH) as (app, _, _):
        text = screen_text(app)
        assert "PAUSING  no rank has finished a step for 30 s" in text
        assert tiles(app) | {"steps": ""} == {
            "samples/s": "0",
            "step time": "–",
            "loss": "0.483",
            "steps": "",
            "waiting": "–",
        }
        assert "0.483  30 s ago" in text
        assert titles(app)[:3] == ["loss 0.483 30 s ago", "samples/s 0", "step time –"]
        assert ends(app) == [60.0, 60.0], "the axes of time end now"


async def test_while_more_is_to_be_read_the_run_is_shown_as_it_was_and_no_host_is_called_silent() -> (
    None
):
    def read_so_far() -> Iterator[Event]:
        yield from until(CUT)
        yield from beats(0, 30)

    async with on_stage({ask.Attach: read_so_far}, LARGE, request=ATTACH) as (app, stage, pilot):
        assert "SILENT  the newest word of the hosts is 30 s old" in screen_text(app)
        await be_behind(app, stage, pilot, behind=True)
        text = screen_text(app)
        assert "HEALTHY, 30 s ago  4 ranks, more is still to be read" in text
        assert tiles(app)["samples/s"] == "1,714"
        assert "no word" not in text
        await be_behind(app, stage, pilot, behind=False)
        assert "SILENT  the newest word of the hosts is 30 s old" in screen_text(app)


async def test_a_console_that_is_a_little_behind_calls_no_host_silent_whose_newest_word_waits() -> (
    None
):
    def read_so_far() -> Iterator[Event]:
        yield from until(scenes.START + 56)
        for beat in beats(0, 56):
            if not (beat.host == "node2" and beat.t > scenes.START + 54):
                yield beat

    async with on_stage({ask.Attach: read_so_far}, LARGE, request=ATTACH) as (app, stage, pilot):
        assert "SILENT  no word from node2 for 6 s" in screen_text(app)
        await be_behind(app, stage, pilot, behind=True)
        assert "HEALTHY  4 ranks" in screen_text(app)


async def test_behind_a_cut_nothing_is_known() -> None:
    async with on_stage({ask.Attach: cut_off}, LARGE, request=ATTACH) as (app, _, _):
        text = screen_text(app)
        assert "LOST  no connection to node1, node2 for 29 s" in text
        assert tiles(app)["samples/s"] == tiles(app)["step time"] == "–"
        assert titles(app)[:3] == ["loss 0.483 30 s ago", "samples/s –", "step time –"]
        assert "1,714" not in text
        assert text.count("lost 29 s") == 4


async def test_after_the_end_the_last_figures_are_said_to_be_the_last_and_axes_end_there() -> None:
    async with on_stage({ask.Attach: over}, LARGE, request=ATTACH) as (app, stage, _pilot):
        assert titles(app)[:3] == [
            "loss last 0.483",
            "samples/s last 1,714",
            "step time last 18.1",
        ]
        assert ends(app) == [31.0, 31.0]
        assert tiles(app) | {"steps": ""} == {
            "samples/s": "1,700",
            "step time": "18.1 ms",
            "loss": "0.483",
            "steps": "",
        }
        text = screen_text(app)
        (headings,) = (line for line in text.splitlines() if "vs med" in line)
        assert "samples/s" not in headings
        assert text.count("mean of the run") == 2
        keys = text.splitlines()[-1]
        assert " W why " in keys  # which tells of an ended run what was kept
        assert not any(key in keys for key in ("T trace", "stop run"))
        await stage.typed("plots next")
        assert "there are no other plots" in screen_text(app)


async def test_a_title_and_the_tile_say_the_same() -> None:
    def uneven() -> Iterator[Event]:
        for event in scenes.training(gpus=False):
            if isinstance(event, Window):
                event = replace(event, step_ms_mean=31.8 + 4.6667 * event.rank)
            yield event

    async with on_stage({ask.Attach: uneven}, LARGE, request=ATTACH) as (app, _, _):
        assert tiles(app)["step time"] == "38.8 ms"
        assert "step time 38.8 ms" in titles(app)
        assert tiles(app)["samples/s"] in titles(app)[1]
        text = screen_text(app)
        assert re.search(r"0\.103  falls  best 0\.103", text), "not from the one to the other"
        assert re.search(r" parts, 0 to 45\.8 ms ", text)
        assert text.count("forward") == 1, "which shade is which is said once"
        printed = app.query_one("#tail", LogTail).count
        assert f" the last {printed} lines " in text


async def test_a_gap_is_no_decline() -> None:
    def interrupted() -> Iterator[Event]:
        for event in scenes.training(gpus=False):
            inside = isinstance(event, Window) and CUT - 10 < event.t < CUT + 10
            if not inside:
                slow = isinstance(event, Window) and event.t > CUT
                yield replace(event, samples_s=15.0) if slow else event  # type: ignore[type-var]

    async with on_stage({ask.Attach: interrupted}, LARGE, request=ATTACH) as (app, _, _):
        panel = app.query_one(RunView).query(PlotPanel)[1]
        text = [panel.plot.render_line(y).text for y in range(panel.plot.size.height)]
    assert panel.title_text.startswith("samples/s")
    left = text[-2].index("┼") + 1
    width = text[-2].rindex("┬") - left
    third = [line[left:][width * 22 // 60 : width * 38 // 60].strip(" ┈") for line in text[:-2]]
    assert not any(third), "nothing is drawn where nothing was measured"
    assert any(line[left : left + width // 4].strip(" ┈") for line in text[:-2])


async def test_one_long_window_is_cut_off_with_a_mark_and_its_value() -> None:
    def hiccup() -> Iterator[Event]:
        for event in scenes.training(gpus=False):
            if isinstance(event, Window) and event.step == 300:
                event = replace(event, step_ms_mean=4000.0)
            yield event

    async with on_stage({ask.Attach: hiccup}, LARGE, request=ATTACH) as (app, _, _):
        assert "▲ 4,000" in titles(app)[2]
        assert "4,000 ┤" not in screen_text(app), "the scale is of the others"


async def test_the_heat_map_ends_now() -> None:
    async with on_stage({ask.Attach: stalled}, LARGE, request=ATTACH) as (app, stage, _pilot):
        for words in ("heat", "heat span"):
            await stage.typed(words)
            text = screen_text(app)
            assert "▲" not in text, "nobody is blamed for what was"
            assert clock_text(scenes.START + 61) in text, words


async def test_a_finding_that_is_not_of_now_has_its_age() -> None:
    def found(t: float) -> Iterator[Event]:
        for event in scenes.straggling():
            # Of the rank that is slow now the verdict says it already.
            other = {"t": t, "rank": 2, "summary": "rank 2 is slow in the data part of its steps"}
            yield replace(event, **other) if isinstance(event, RunFinding) else event

    for age, said in ((0, "data part of its steps\n"), (42, "data part of its steps, 42 s ago\n")):
        app, stage = staged(
            {ask.Attach: partial(found, scenes.MINUTE_LATER - age)}, request=ATTACH
        )
        async with on_screen(app, stage, LARGE):
            shown = "\n".join(line.rstrip() for line in screen_text(app).splitlines())
            assert f"is slow in the {said}" in shown


async def test_a_figure_that_changes_while_it_waits_for_its_room_gets_the_room_of_the_new_one() -> (
    None
):
    async with on_stage({ask.Attach: partial(until, CUT)}, request=ATTACH) as (app, _stage, pilot):
        tile = next(iter(app.query(Tile)))
        for value in ("–", "27,394 samples"):
            tile.show(TileData("rate", value))
            app.query_one(Tiles)._clear_arrangement_cache()  # as by the request of another tile
            app.screen._refresh_layout()
        await pilot.pause()
        assert tile.size.width == tile.least_cells == len("27,394 samples rate")
