"""The list of runs is sorted, filtered, grouped and marked; what is marked is compared."""

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from textual import events

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.model.events import Event, RunListed
from distconsole.model.run_summary import FirstFailure
from distconsole.runs.store.store import RunStore
from distconsole.tui.app import ConsoleApp
from distconsole.tui.views.compare import CompareView
from distconsole.tui.views.runs import RunsView
from distconsole.tui.widgets.plots import PlotPanel
from fakes import scenes
from fakes.journals import Journal
from fakes.stage import LARGE, SMALL, on_stage, screen_text, until

pytestmark = pytest.mark.usefixtures("utc")


def runs() -> Iterator[Event]:
    """The four runs of every state, each with another loss and script."""
    for number, event in enumerate(scenes.past_runs()):
        loss = {"loss": (0.3, 0.1, 0.2, 0.4)[number]}
        script = "train.py" if number % 2 else "other.py"
        yield RunListed(summary=replace(event.summary, metrics=loss, script=script))


SCENES = {ask.Runs: runs, ask.Compare: scenes.compared}


def order(app: ConsoleApp) -> list[str]:
    return [row.head or row.run.run[-3:] for row in app.query_one(RunsView).table.rows]


async def test_runs_that_go_on_come_first_and_others_as_they_are_asked_for() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, _pilot):
        await stage.typed("view runs")
        assert order(app) == ["000", "003", "002", "001"], (
            "the newest first, but for the one that runs"
        )
        await stage.typed("sort loss up")
        assert order(app) == ["001", "002", "000", "003"]
        await stage.typed("filter state=failed or state=stopped")
        assert order(app) == ["002", "003"]
        text = screen_text(app)
        assert "Runs 2 of 4 ─" in text
        assert "filter state=failed or state=stopped  by loss ▴" in text
        await stage.typed("filter")
        await stage.typed("group script")
        assert order(app) == ["train.py (2)", "001", "003", "other.py (2)", "002", "000"]
        await stage.typed("sort nothing")
        assert "runs have no field 'nothing'" in screen_text(app)


def shared_hosts() -> Iterator[Event]:
    """Two runs of one's own, and two newer ones of others, of which the hosts alone know."""
    for number, event in enumerate(scenes.past_runs()):
        bare = {"seconds": None, "steps": None, "samples_s": None, "metrics": {}}
        others = {"origin": "elsewhere", "first_failure": None, **bare}
        more = others if number > 1 else {"origin": "here"}
        yield RunListed(summary=replace(event.summary, **more))


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.campaign)], ids=str)
async def test_runs_of_others_are_told_from_ones_own_and_a_key_leaves_them_out(
    size: tuple[int, int],
) -> None:
    async with on_stage({ask.Runs: shared_hosts}, size) as (app, stage, _pilot):
        await stage.typed("view runs")
        assert order(app) == ["000", "003", "002", "001"]
        text = screen_text(app)
        assert text.count("elsewhere") >= 2
        assert "RUNNING  digits-1121-000: 600 steps" in text  # of the run under the cursor
        await stage.pressed("down")
        text = screen_text(app)
        assert "STOPPED  digits-1121-003: launched elsewhere" in text
        assert "from     launched elsewhere; Enter reads its figures" in text
        await stage.pressed("o")
        assert order(app) == ["000", "001"]
        assert "Runs 2 of 4 ─" in screen_text(app)
        assert "filter from=here" in screen_text(app)
        await stage.pressed("o")
        assert order(app) == ["000", "003", "002", "001"]
        await stage.pressed("down", "enter")
        assert (
            ask.Attach(run="digits-1121-003") in stage.asked
        )  # no replay: nothing of it is stored


async def test_where_all_runs_are_ones_own_no_column_says_so() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, _pilot):
        await stage.typed("view runs")
        assert " from " not in screen_text(app)


def long_runs() -> Iterator[Event]:
    """Three runs whose ids differ in their ends alone; the oldest was faster, the newest failed."""
    for number, event in enumerate(list(scenes.past_runs())[:3]):
        failed = FirstFailure(
            rank=1,
            host="node1",
            exit_code=7,
            error="ValueError: boom",
            traceback="Traceback (most recent call last):\n  File train.py\nValueError: boom",
        )
        yield RunListed(
            summary=replace(
                event.summary,
                run=f"pretraining-of-a-large-model-1121-00{number}",
                state="failed" if number == 2 else "succeeded",
                exit_code=7,
                samples_s=1000.0 if number == 2 else 2000.0,
                first_failure=failed if number == 2 else None,
            )
        )


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=str)
async def test_a_run_is_told_from_others_and_says_how_it_ended_and_of_what(
    size: tuple[int, int],
) -> None:
    async with on_stage({ask.Runs: long_runs}, size) as (app, stage, pilot):
        await stage.typed("view runs")
        text = screen_text(app)
        for number in range(3):
            assert f"1121-00{number}" in text
        assert "✗ FAILED  pretraining-of-a-large-model-1121-002: rank 1 on node1: " in text
        assert "cause    rank 1 on node1: ValueError: boom" in text
        assert "failed after 1 min 1 s, exit code 7" in text
        assert ("File train.py" in text) == (size == LARGE)
        assert "1,000 samples/s (-50 % against" in text
        await pilot.press("down")
        assert "cause" not in screen_text(app)


async def test_the_course_of_a_run_that_is_stored_stands_beside_the_list() -> None:
    journal = Journal()
    journal.write(RunStore(runs_dir()))
    (first, second, *_) = [each for each in scenes.past_runs() if isinstance(each, RunListed)]
    kept = RunListed(summary=replace(second.summary, run=journal.run))
    async with on_stage({ask.Runs: lambda: [first, kept]}, LARGE) as (app, stage, pilot):
        await stage.typed("view runs")
        panel = app.query_one("#run-plot", PlotPanel)
        view = app.query_one(RunsView)
        if view.run_under_cursor() != journal.run:
            await pilot.press("down")
        await until(pilot, lambda: bool(panel.display))
        assert panel.title_text.startswith("loss")
        await pilot.press("up" if view.table.cursor else "down")
        await until(pilot, lambda: not panel.display)


async def test_no_runs_say_what_to_type() -> None:
    async with on_stage({}) as (app, stage, _pilot):
        await stage.typed("view runs")
        assert "NO RUNS YET" in screen_text(app)
        assert "type 'run SCRIPT', or 'demo'" in screen_text(app)


async def test_a_heading_that_is_clicked_sorts_and_turns_round() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, pilot):
        await stage.typed("view runs")
        heading = screen_text(app).splitlines()[3]
        at = heading.index("loss") - app.query_one("#runs-table").region.x
        await pilot.click("#runs-table", offset=(at, 0))
        assert order(app) == ["003", "000", "002", "001"]
        await pilot.click("#runs-table", offset=(at, 0))
        await stage.settled()
        assert order(app) == ["001", "002", "000", "003"]
        assert "loss▾" in screen_text(app)
        for words in ("sort loss", "sort loss"):
            await stage.typed(words)
        assert order(app) == ["001", "002", "000", "003"], "typed it does what a click does"


async def test_runs_are_marked_and_compared_by_two_keys() -> None:
    async with on_stage(SCENES, SMALL) as (app, stage, pilot):
        await stage.pressed("f6")
        for key in "jmjmmc":  # all at once: each acts where the one before it led
            app.post_message(events.Key(key, key))
        await until(pilot, lambda: app.main.view == "compare")
        await stage.settled()
        asked = next(each for each in stage.asked if isinstance(each, ask.Compare))
        assert asked.runs == ("digits-1121-003", "digits-1121-002"), "the mark, and the cursor"
        text = screen_text(app)
        assert re.search(
            r"B takes 30 % longer per step \(18.* → 23.* ms\): data wait 2 → 7.4 ms", text
        ), text
        assert re.search(r"── loss ─+ ━ A 0.1", text)
        await stage.typed("mark nope")
        assert "no run nope is in the list" in screen_text(app)
        await stage.typed("mark digits-1121")
        assert "digits-1121 begins the ids of 4 runs" in screen_text(app)
        assert app.main.views.runs.marked == ["digits-1121-003"]
        await stage.typed("mark digits-1121-000")
        assert app.main.views.runs.marked == ["digits-1121-003", "digits-1121-000"]


async def test_curves_turn_to_another_axis_and_to_others() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, _pilot):
        await stage.typed("compare digits-1121-000 last")
        text = screen_text(app)
        assert "step 590" in text
        assert "samples/s" in text
        assert "torch.version" in text
        assert "2.3.0" in text
        await stage.pressed("a")
        assert app.query_one(CompareView).axis == "seconds"
        assert re.search(r"0:30 +0:45", screen_text(app))
        await stage.typed("axis samples")
        assert re.search(r"10K +12K", screen_text(app))
        await stage.typed("axis sideways")
        assert "there is no axis 'sideways'" in screen_text(app)
        await stage.typed("plots GPU")
        assert "GPU %" in screen_text(app)
