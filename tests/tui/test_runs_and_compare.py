"""The list of runs is sorted, filtered, grouped and marked; what is marked is compared."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from distconsole.model import requests as ask
from distconsole.model.events import Event, RunListed
from distconsole.tui.app import ConsoleApp
from distconsole.tui.views.compare import CompareView
from distconsole.tui.views.runs import RunsView
from fakes import scenes
from fakes.stage import LARGE, SMALL, on_screen, screen_text, settled, staged, typed

pytestmark = pytest.mark.usefixtures("utc")


def runs() -> Iterator[Event]:
    """The four runs of every state, each with another loss and script."""
    for number, event in enumerate(scenes.past_runs()):
        assert isinstance(event, RunListed)
        loss = {"loss": (0.3, 0.1, 0.2, 0.4)[number]}
        script = "train.py" if number % 2 else "other.py"
        yield RunListed(summary=replace(event.summary, metrics=loss, script=script))


SCENES = {ask.Runs: runs, ask.Compare: scenes.compared}


def order(app: ConsoleApp) -> list[str]:
    return [row.head or row.run.run[-3:] for row in app.query_one(RunsView).table.rows]


async def test_runs_that_go_on_come_first_and_others_as_they_are_asked_for() -> None:
    app, stage = staged(SCENES)
    async with on_screen(app, stage, LARGE) as pilot:
        await typed(app, stage, pilot, "view runs")
        assert order(app) == ["000", "003", "002", "001"], (
            "the newest first, but for the one that runs"
        )
        await typed(app, stage, pilot, "sort loss up")
        assert order(app) == ["001", "002", "000", "003"]
        await typed(app, stage, pilot, "filter state=failed or state=stopped")
        assert order(app) == ["002", "003"]
        assert "4 runs, 1 going on, 1 failed; filter state=failed or state=stopped" in screen_text(
            app
        )
        await typed(app, stage, pilot, "filter")
        await typed(app, stage, pilot, "group script")
        assert order(app) == ["train.py (2)", "001", "003", "other.py (2)", "002", "000"]
        await typed(app, stage, pilot, "sort nothing")
        assert "runs have no field 'nothing'" in screen_text(app)


async def test_a_heading_that_is_clicked_sorts_and_turns_round() -> None:
    app, stage = staged(SCENES)
    async with on_screen(app, stage, LARGE) as pilot:
        await typed(app, stage, pilot, "view runs")
        heading = screen_text(app).splitlines()[2]
        at = heading.index("loss")
        await pilot.click("#runs-table", offset=(at, 0))
        assert order(app) == ["003", "000", "002", "001"]
        await pilot.click("#runs-table", offset=(at, 0))
        await settled(app, stage, pilot)
        assert order(app) == ["001", "002", "000", "003"]
        assert "loss▾" in screen_text(app)
        for words in ("sort loss", "sort loss"):
            await typed(app, stage, pilot, words)
        assert order(app) == ["001", "002", "000", "003"], "typed it does what a click does"


async def test_runs_are_marked_and_compared_by_two_keys() -> None:
    app, stage = staged(SCENES)
    async with on_screen(app, stage, SMALL) as pilot:
        await pilot.press("f6")
        await settled(app, stage, pilot)
        await pilot.press("down", "m", "down", "m", "m", "c")
        await settled(app, stage, pilot)
        asked = next(each for each in stage.asked if isinstance(each, ask.Compare))
        assert asked.runs == ("digits-1121-003", "digits-1121-002"), "the mark, and the cursor"
        assert app.main.view == "compare"
        text = screen_text(app)
        assert re.search(
            r"B is 30 % slower per step \(18.* → 23.* ms\): data wait 2 → 7.4 ms", text
        ), text
        assert re.search(r"── loss ─+ ━ A 0.1", text)


async def test_curves_turn_to_another_axis_and_to_others() -> None:
    app, stage = staged(SCENES)
    async with on_screen(app, stage, LARGE) as pilot:
        await typed(app, stage, pilot, "compare digits-1121-000 last")
        text = screen_text(app)
        assert "step 590" in text
        assert "samples/s" in text
        assert "torch.version" in text
        assert "2.3.0" in text
        await pilot.press("a")
        await settled(app, stage, pilot)
        assert app.query_one(CompareView).axis == "seconds"
        assert re.search(r"0:30 +0:45", screen_text(app))
        await typed(app, stage, pilot, "axis samples")
        assert re.search(r"10K +15K +20K +samples", screen_text(app))
        await typed(app, stage, pilot, "axis sideways")
        assert "there is no axis 'sideways'" in screen_text(app)
        await typed(app, stage, pilot, "plots GPU")
        assert "GPU %" in screen_text(app)
