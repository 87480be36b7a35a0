"""Claims about what stands on the screen, at every size that matters."""

import re
from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from distconsole.config.paths import runs_dir
from distconsole.errors import UnreachableError
from distconsole.model import requests as ask
from distconsole.model.events import Event, RunListed
from distconsole.model.run_events import Metric, RankState, Window
from distconsole.runs.rank_view import RankView
from distconsole.runs.store.store import RunStore
from distconsole.tui.app import ConsoleApp
from distconsole.tui.chrome import Mode
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.keys import VIEWS
from distconsole.tui.view_models.rank_rows import RankRow, RankRows
from distconsole.tui.views.ranks import mark_of
from distconsole.tui.views.run import RunView
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.plots import PlotPanel
from fakes import scenes
from fakes.journals import Journal
from fakes.run_events import timeline_of
from fakes.stage import (
    ATTACH,
    LARGE,
    MIDDLE,
    SMALL,
    on_screen,
    on_stage,
    screen_text,
    staged,
    until,
)

SCENES = {
    ask.Attach: scenes.straggling,
    ask.Top: partial(scenes.hosts, lost="node2"),
    ask.Check: scenes.checked,
    ask.Runs: scenes.past_runs,
}
WORDS = {
    "cluster": ["node2 lost: connection refused", "1 of 2 hosts", "node1"],
    "check": ["NOT HEALTHY", "os.hostname_bindable", "correct /etc/hosts on node2"],
    "launch": ["script", "launcher", "Start", "[x] node1", "type a script"],
    "run": [
        "rank 3 on node2 is slow, 9.2 ms for its data",
        "ms/step",
        "loss",
        "more DataLoader workers there",
        "epoch 5",
    ],
    "logs": ["6 lines", "epoch 0"],
    "runs": ["2 running, 1 failed", "digits-1121-002", "✗ failed"],
    "compare": ["no runs are compared: mark two in the list"],
    "transcript": ["> check"],
    "jobs": ["1 running", "attach digits-1121"],
    "help": ["Keys act on the view", "In any view"],
}


@pytest.mark.parametrize(
    "size", [(40, 10), SMALL, pytest.param(MIDDLE, marks=pytest.mark.campaign), LARGE], ids=str
)
async def test_every_view_says_what_it_must_at_every_size(size: tuple[int, int]) -> None:
    async with on_stage(SCENES, size) as (app, stage, pilot):
        await stage.typed(f"attach {scenes.RUN}")
        await stage.typed("check")
        for view in sorted(
            VIEWS, key="launch".__eq__
        ):  # it has 260 widgets, and styles cost by widget
            await stage.typed(f"view {view}")
            words = WORDS[view] if size != (40, 10) else []
            await until(pilot, lambda words=words: all(word in screen_text(app) for word in words))
            assert len(screen_text(app).splitlines()) <= size[1], view


async def test_what_the_verdict_says_is_not_said_again_below_it() -> None:
    async with on_stage(SCENES, MIDDLE, request=ATTACH) as (app, _, _):
        verdict, below, *_ = screen_text(app).splitlines()[1:]
        assert "rank 3 on node2 is slow" in verdict
        assert below.strip() == "hint: its data come late: more DataLoader workers there"


async def test_every_theme_draws_the_run() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, _pilot):
        for theme in ("light", "nord"):
            await stage.typed(f"theme {theme}")
            assert "rank 3 on node2 is slow" in screen_text(app), theme


async def test_a_failed_run_shows_the_first_failure_and_its_traceback() -> None:
    app, stage = staged(SCENES | {ask.Attach: scenes.failing}, request=ATTACH)
    async with on_screen(app, stage):
        await stage.settled()
        text = screen_text(app)
        assert "✗1     2 node2" in text
        assert "rank 2 on node2 failed first" in text
        assert "loss.backward()" in text
        assert "last 1,714" not in text
        assert "Traceback of rank 2" in text
        await stage.typed("plots")
        assert "last 1,714" in screen_text(app)


async def test_the_end_of_a_traceback_stays_in_sight_when_its_room_changes() -> None:
    app, stage = staged(SCENES | {ask.Attach: scenes.failing}, request=ATTACH)
    async with on_screen(app, stage) as pilot:
        pane = app.query_one("#traceback")
        for lines in (24, 20, 24, 18):
            await pilot.resize_terminal(80, lines)
            await stage.settled()
            assert pane.scroll_y == pane.max_scroll_y
        await pilot.resize_terminal(80, 18)
        pane.scroll_home(animate=False)
        await stage.settled()
        assert pane.scroll_y == 0 < pane.max_scroll_y, "whoever reads its beginning is left there"


async def test_ranks_that_are_started_anew_are_followed() -> None:
    app, stage = staged(SCENES | {ask.Attach: scenes.restarting}, request=ATTACH)
    async with on_screen(app, stage, MIDDLE):
        await stage.settled()
        text = screen_text(app)
        assert "HEALTHY  4 ranks, restart 1 of 3" in text
        assert "restart 1 of 3" in text
        assert "failed first" in text
        assert "with the checkpoint /c/step-4.pt" in text


async def test_a_run_that_went_well_shows_its_results() -> None:
    async with on_stage(SCENES | {ask.Attach: scenes.succeeded}, request=ATTACH) as (app, _, _):
        assert "test_accuracy 0.9739" in screen_text(app)
        assert "✓ SUCCEEDED  after 1 min 0 s" in screen_text(app)


async def test_ranks_on_a_lost_host_are_marked() -> None:
    app, stage = staged(SCENES | {ask.Attach: scenes.host_lost}, request=ATTACH)
    async with on_screen(app, stage, MIDDLE):
        text = screen_text(app)
        assert "no connection to node2" in text
        assert "?      2 node2" in text


async def test_a_stalled_rank_is_marked_by_its_shape() -> None:
    app, stage = staged(SCENES | {ask.Attach: scenes.stalled}, request=ATTACH)
    async with on_screen(app, stage, MIDDLE):
        assert "‖      1 node1" in screen_text(app)


async def test_a_silent_rank_is_first_with_its_age() -> None:
    def hanging() -> Iterator[Event]:
        for event in scenes.training(4):
            if not (isinstance(event, Window) and event.rank == 2 and event.step > 200):
                yield event

    async with on_stage(SCENES | {ask.Attach: hanging}, request=ATTACH) as (app, stage, _pilot):
        await stage.settled()
        assert "… PAUSING  rank 2 on node2 has not finished a step for 40 s" in screen_text(app)
        assert "‖      2 node2" in table_text(app).splitlines()[1]
        assert table_text(app).splitlines()[1].endswith("no step 40 s")


async def test_the_start_of_each_rank_is_shown_and_who_is_behind_is_first() -> None:
    app, stage = staged(SCENES | {ask.Attach: scenes.starting}, request=ATTACH)
    async with on_screen(app, stage):
        await stage.settled()
        text = screen_text(app)
        assert "STARTING  rank 3 on node2 imports torch" in text
        first, second = table_text(app).splitlines()[1:3]
        assert "3 node2" in first
        assert "importing torch 57 s" in first
        assert "waiting for the group 51 s" in second
        assert "ms/step" not in text


async def test_curves_are_chosen_by_a_key_or_by_name_and_stay_chosen() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, _pilot):
        assert shown_plots(app) == ["loss", "samples/s"]
        await stage.pressed("c")
        assert shown_plots(app) == ["step time", "accuracy"]
        await stage.typed("plots step GPU")
        assert shown_plots(app) == ["step time", "GPU %"]
        assert "70.5" in screen_text(app)
        await stage.typed(f"attach {scenes.RUN}")
        assert shown_plots(app) == ["step time", "GPU %"]


async def test_a_curve_has_a_gap_and_a_mark_where_values_are_no_numbers() -> None:
    def broken() -> Iterator[Event]:
        for event in scenes.training():
            lost = isinstance(event, Metric) and event.name == "loss" and event.step >= 300
            yield replace(event, value=float("nan")) if lost else event  # type: ignore[type-var]

    app, stage = staged(SCENES | {ask.Attach: broken}, request=ATTACH)
    async with on_screen(app, stage, MIDDLE):
        await stage.settled()
        text = screen_text(app)
        assert "loss is nan, not finite since step 300" in text
        assert " nan ─╮" in text
        assert "!!!!" in text


async def test_a_silent_host_greys_out_with_its_age() -> None:
    async with on_stage({ask.Top: scenes.hosts}, age_seconds=12.0) as (app, _, _):
        assert "silent for 12 s" in screen_text(app)


@pytest.mark.parametrize("world", [64, pytest.param(512, marks=pytest.mark.campaign)])
async def test_the_worst_of_many_ranks_is_the_first_line_unless_asked_otherwise(
    world: int,
) -> None:
    app, stage = staged(SCENES | {ask.Attach: partial(scenes.straggling, world)}, request=ATTACH)
    async with on_screen(app, stage):
        assert f"▲  {world - 1:>5} node" in table_text(app)
        await stage.typed("sort rank")
        assert f" {world - 1} node" not in table_text(app)


def shown_plots(app: ConsoleApp) -> list[str]:
    """What the plots that are shown are of."""
    shown = [panel.plot.data for panel in app.query_one(RunView).query(PlotPanel) if panel.display]
    return [data.title for data in shown if data is not None]


def table_text(app: object) -> str:
    text = screen_text(app)  # type: ignore[arg-type]
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if "host  " in line)
    return "\n".join(lines[start : start + 3])


def test_the_first_to_fail_comes_before_all_others() -> None:

    timeline = timeline_of(scenes.failing())
    order = [
        (row.view.rank, row.trouble)
        for row in RankRows(timeline, scenes.MINUTE_LATER, order="worst")
    ]
    assert order[0] == (2, 0)
    assert {trouble for _, trouble in order[1:]} == {2}


@pytest.mark.parametrize(("exit_code", "mark"), [(0, "✓"), (1, "✗")])
def test_a_rank_that_exited_is_marked_by_how_it_did(exit_code: int, mark: str) -> None:
    view = RankView(0, "node1", state=RankState.EXITED, exit_code=exit_code)
    assert mark_of(RankRow(view))[0] == mark


async def test_the_rank_that_was_found_to_hold_up_the_others_is_first_though_all_steps_are_equal() -> (
    None
):
    def held_up() -> Iterator[Event]:
        for event in scenes.straggling(4):
            if isinstance(event, Window):
                waits = event.rank == 3
                event = replace(
                    event, step_ms_mean=25.0, data_ms=9.0 if waits else 2.0, forward_ms=5.0
                )
            yield event

    async with on_stage(SCENES | {ask.Attach: held_up}, request=ATTACH) as (app, stage, _pilot):
        text = screen_text(app)
        assert "▲ SLOW  rank 3 on node2 is slow, 9 ms for its data where 2 ms is usual" in text
        assert "▲      3 node2" in table_text(app).splitlines()[1]
        assert table_text(app).splitlines()[1].rstrip().endswith("slow data +7 ms")
        assert "the fastest" not in text
        assert "F8 stop run" in text
        stage.scenes[ask.Attach] = scenes.succeeded
        await stage.typed(f"attach {scenes.RUN}")
        assert "✓ SUCCEEDED" in screen_text(app)
        assert "stop run" not in screen_text(app), "it is over"


async def test_the_cursor_stays_on_its_rank_when_the_order_changes() -> None:
    async with on_stage(SCENES, MIDDLE, request=ATTACH) as (app, _, pilot):
        await pilot.press("down", "down")
        table: LineTable[RankRow] = app.query_one("#ranks", LineTable)
        table.show(list(reversed(table.rows)))
        row = table.row_under_cursor()
        assert row.view.rank == 1


async def test_the_view_has_the_keys_first_and_escape_goes_back_to_it_and_to_views_before() -> (
    None
):
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        assert app.focused is app.query_one("#ranks")
        await stage.pressed("l")
        assert app.main.view == "logs"
        assert "filter 3 ·" in screen_text(app)
        await pilot.press(*":half", "space", "a")
        assert isinstance(app.focused, Prompt)
        assert app.focused.value == "half a"
        await pilot.press("escape")
        assert app.main.mode is Mode.VIEW
        await pilot.press(":", "tab")
        assert app.query_one(Prompt).value == "half a"
        await pilot.press("escape", "escape")
        assert app.main.view == "logs"
        assert "filter 3 ·" not in screen_text(app)
        await pilot.press("escape")
        assert app.main.view == "run"
        await pilot.press("escape")
        assert app.main.view == "run", "Escape never leaves the console"


async def test_a_click_chooses_a_rank_and_a_heading_sorts() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        await pilot.click("#ranks", offset=(10, 3))
        assert app.query_one("#ranks", LineTable).cursor == 2
        await pilot.click("#ranks", offset=(37, 0))
        await stage.settled()
        assert "ms/step▾" in screen_text(app)


async def test_a_tab_of_the_title_can_be_clicked() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await pilot.click(
            "#title", offset=(screen_text(app).splitlines()[0].index("6 runs") + 1, 0)
        )
        await stage.settled()
        assert app.main.view == "runs"


@pytest.mark.usefixtures("home")
async def test_enter_on_a_past_run_replays_it() -> None:
    Journal(run="digits-1121-003").write(RunStore(runs_dir()))
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.pressed("f6")
        await stage.pressed("down", "enter")
        assert app.main.view == "run"
        assert app.session.tasks[-1].request == ask.Replay(run="digits-1121-003")
        assert "✓ SUCCEEDED" in screen_text(app)


async def test_a_run_that_is_followed_is_listed_as_it_is_now() -> None:
    def listed() -> Iterator[Event]:
        event = next(iter(scenes.past_runs()))
        nothing = {"samples_s": None, "metrics": {}, "steps": None}
        yield RunListed(summary=replace(event.summary, run=scenes.RUN, state="unknown", **nothing))

    async with on_stage(SCENES | {ask.Runs: listed}, LARGE, request=ATTACH) as (
        app,
        stage,
        _pilot,
    ):
        await stage.typed("view runs")
        line = screen_text(app).splitlines()[app.query_one("#runs-table").region.y + 1]
        assert f"{scenes.RUN} " in line
        assert "● running" in line
        assert re.search(r" [\d,]{3,} +[\d,]{3,} +[\d.]+ .*loss \d", line), line


async def test_moving_through_past_runs_opens_none() -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.pressed("f6")
        await stage.pressed("down", "down", "up")
        assert app.main.view == "runs"
        assert not any(isinstance(request, ask.Replay | ask.Attach) for request in stage.asked)


async def test_logs_stay_where_they_are_read_and_follow_again_at_the_end() -> None:
    def many() -> list[Event]:
        return [*scenes.training(), *(scenes.log(0, f"line {n}") for n in range(200))]

    async with on_stage(SCENES | {ask.Attach: many}, request=ATTACH) as (app, stage, pilot):
        await stage.typed("view logs")
        assert "line 199" in screen_text(app)
        await stage.pressed("pageup")
        shown = screen_text(app)
        assert "line 199" not in shown
        task = app.session.shown_run()
        task.fold(scenes.log(0, "line 200"))
        app.main.redraw()
        await pilot.pause()
        before, after = shown.splitlines()[2:10], screen_text(app).splitlines()[2:10]
        assert before == after
        app.query_one("#log-lines", LogTail).action_follow()
        await stage.settled()
        assert "line 200" in screen_text(app)


async def test_long_log_lines_can_be_read_to_their_end() -> None:
    long = "a" * 90 + "THE END"
    scene = partial(list, [scenes.plan(2), scenes.log(0, long)])
    async with on_stage(SCENES | {ask.Attach: scene}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("view logs")
        assert "THE END" not in screen_text(app)
        await stage.pressed("right", "right")
        assert "THE END" in screen_text(app)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            UnreachableError("gpu01 refuses", "ssh gpu01 says why"),
            ["✗ gpu01 refuses", "hint: ssh gpu01 says why"],
        ),
        (ZeroDivisionError("a fault"), ["ZeroDivisionError: a fault"]),
    ],
)
async def test_a_task_that_errors_shows_its_error_and_leaves_the_screen_standing(
    error: Exception, shown: list[str]
) -> None:
    def broken() -> list[Event]:
        raise error

    app, _ = staged({ask.Top: scenes.hosts, ask.Attach: broken})
    app.session.begin()
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.main.stands)
        await pilot.press(*":attach", "space", "x", "enter")
        await app.workers.wait_for_complete()
        app.session.tasks[-1].join(5)
        app.main.redraw()
        await pilot.pause()
        assert [words for words in shown if words not in screen_text(app)] == []
    app.session.end()


async def test_the_view_keeps_its_room_while_much_is_said() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, _pilot):
        for number in range(50):
            app.session.transcript.say(f"news {number}")
        await stage.settled()
        assert app.query_one("#views").size.height >= 19
        assert "news 49" in screen_text(app)


async def test_a_screen_that_is_resized_draws_what_fits() -> None:
    async with on_stage(SCENES, LARGE, request=ATTACH) as (app, stage, pilot):
        assert "data ms" in screen_text(app)
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: app.screen._compositor.size == app.size)
        await pilot.pause()
        text = screen_text(app)
        await stage.settled()
        assert text == screen_text(app), "it has settled at once"
        assert "data ms" not in text
        assert "ms/step" in text
        assert max(len(line) for line in text.splitlines()) <= 80
