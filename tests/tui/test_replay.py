"""A past run on the screen at any moment: every view shows that moment, and says which it is."""

from pathlib import Path

import pytest

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.runs.store.store import RunStore
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.replaying import ReplayTask
from distconsole.tui.view_models.hosts import Clocks
from fakes import scenes
from fakes.journals import START, Journal
from fakes.stage import LARGE, on_screen, on_stage, screen_text, staged

RUN = "digits-1121-a3f9"
REPLAY = ask.Replay(run=RUN)

pytestmark = pytest.mark.usefixtures("utc", "home")


@pytest.fixture(autouse=True)
def kept(home: Path) -> None:
    Journal(run=RUN, seconds=120, slow=3, fails=1).write(RunStore(runs_dir()))


class Clock:
    t = 1000.0

    def __call__(self) -> float:
        return self.t


def shown(app: ConsoleApp) -> ReplayTask:
    task = app.session.shown_run()
    assert isinstance(task, ReplayTask)
    return task


async def test_every_view_is_of_the_moment_that_is_chosen() -> None:
    async with on_stage({}, LARGE, request=REPLAY) as (app, stage, _pilot):
        assert "✗ FAILED  after" in screen_text(app)
        await stage.typed("at 60s")
        text = screen_text(app)
        assert "‖ past  04:41:00 1 min 0 s of 2 min" in text
        assert "failed" not in text.partition("\n")[2].splitlines()[0]
        steps = {view.step for view in shown(app).run.ranks.values()}
        assert steps == {53 * 20 + 19}
        assert "CUDA out of memory" not in text
        assert "stop run" not in text
        await stage.typed("view logs")
        text = screen_text(app)
        assert "epoch 5" in text
        assert "epoch 6" not in text
        assert "6 of 16 rows by then" in text
        await stage.typed("view cluster")
        assert "GPUs at 8" in screen_text(app)
        await stage.typed("at end")
        await stage.typed("view logs")
        assert "CUDA out of memory" in screen_text(app)


async def test_keys_move_by_seconds_and_marks_and_play() -> None:
    clock = Clock()
    app, stage = staged({}, request=REPLAY)
    app.session.clocks = Clocks(unix=lambda: START, monotonic=clock)
    async with on_screen(app, stage) as pilot:
        await stage.pressed("left_square_bracket", "left_square_bracket")
        mark = shown(app).moment_t
        assert mark in {each.t for each in shown(app).marks()}
        await stage.pressed("full_stop", "full_stop", "comma")
        assert shown(app).moment_t == mark + 1
        await pilot.press("0", "space")
        clock.t += 10
        await stage.settled()
        assert shown(app).moment_t == START + 20
        assert "▶ play x2" in screen_text(app)
        await stage.pressed("space", "dollar_sign")
        assert not shown(app).travelling


async def test_a_click_on_the_axis_goes_there() -> None:
    async with on_stage({}, request=REPLAY) as (app, stage, pilot):
        await pilot.click("#time", offset=(40, 1))
        await stage.settled()
        t = shown(app).moment_t
        assert t == pytest.approx(START + 64, abs=2)


async def test_a_replay_can_begin_at_a_moment() -> None:
    async with on_stage({}, request=ask.Replay(run=RUN, at="step 399")) as (app, stage, _pilot):
        await stage.settled()
        assert shown(app).moment_t == START + 7 + 19


async def test_the_cluster_is_the_live_one_where_the_past_is_at_its_end() -> None:
    async with on_stage({ask.Top: lambda: scenes.hosts(lost="node2")}) as (app, stage, _pilot):
        await stage.typed(f"replay {RUN}")
        await stage.typed("view cluster")
        assert "no answer" in screen_text(app) or "lost" in screen_text(app)
        assert "past" not in screen_text(app)
        await stage.typed("at 50s")
        assert "‖ past  04:40:50" in screen_text(app)
        assert "2 of 2 hosts connected" in screen_text(app)


async def test_what_means_nothing_is_said() -> None:
    async with on_stage({}, LARGE, request=REPLAY) as (app, stage, _pilot):
        for line, said in (
            ("at noon", "'noon' is no time of the run"),
            ("play 9000", "'9000' is not known of play"),
            ("at step 10000000", "no rank has done"),
        ):
            await stage.typed(line)
            assert said in screen_text(app)


async def test_where_no_past_run_is_shown_nothing_moves() -> None:
    app, stage = staged({ask.Attach: scenes.training}, request=ask.Attach(run=scenes.RUN))
    async with on_screen(app, stage, LARGE) as pilot:
        await stage.typed("at 10s")
        assert "replay RUN shows one" in screen_text(app)
        await pilot.press("space")
        assert app.query_one(Prompt).value == ""
