"""The heat map: which one, since when, at every size; by shape where colours are few."""

import itertools
import math
import re
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.run_events import Window
from distconsole.runs.rank_history import UNKNOWN, RankHistory
from distconsole.tui.view_models.heat import Heat, group_ranks, heat_of
from distconsole.tui.views.run import RunView
from distconsole.tui.widgets.heat_map import HeatMap
from fakes import scenes
from fakes.stage import ATTACH, SMALL, on_screen, on_stage, screen_text, staged

HOSTS = {rank: f"gpu{rank // 8:03}" for rank in range(2048)}


def seen(world: int = 64, *, slow: int = 20, quantity: str = "step", width: int = 40) -> Heat:
    history = RankHistory()
    for event in scenes.large(world, slow=slow):
        if isinstance(event, Window):
            history.apply(event)
    heat = heat_of(history, quantity, range(world), whole=False, lines=20, width=width, listed=5)
    assert heat is not None
    return heat


def test_rows_are_ranks_where_they_fit_else_hosts_else_groups_of_hosts() -> None:
    assert [ranks for _, ranks in group_ranks(range(3), HOSTS, 10)] == [(0,), (1,), (2,)]
    by_host = group_ranks(range(64), HOSTS, 10)
    assert [label for label, _ in by_host] == [f"gpu{host:03}" for host in range(8)]
    groups = group_ranks(range(2048), HOSTS, 20)
    assert len(groups) <= 20
    assert groups[0][0] == "gpu000 +12"
    assert sorted(rank for _, ranks in groups for rank in ranks) == list(range(2048))
    alone = group_ranks(range(100), {}, 10)
    assert [label for label, _ in alone][:2] == ["ranks 0-9", "ranks 10-19"]


def test_the_worst_is_told_with_its_host_and_since_when() -> None:
    (worst,) = seen().worst
    assert (worst.rank, worst.host) == (20, "node3")
    assert worst.since == scenes.START + 35
    assert not worst.always
    assert worst.value > 1.4 * worst.usual


@pytest.mark.parametrize("whole", [False, True])
def test_the_map_ends_now_and_blames_nobody_for_what_was(*, whole: bool) -> None:
    history = RankHistory()
    for event in scenes.large(16, slow=5):
        if isinstance(event, Window):
            history.apply(event)
    show = {"whole": whole, "lines": 20, "width": 60, "listed": 5}
    then = heat_of(history, "step", range(16), **show)
    now = heat_of(history, "step", range(16), until=scenes.START + 89, **show)
    assert now is not None
    assert [worst.rank for worst in then.worst] == [5]
    assert now.worst == ()
    assert now.began + (now.first + now.count) * now.cell_seconds >= scenes.START + 89
    assert {row.cells[-10:] for row in now.rows} == {(UNKNOWN,) * 10}
    assert all(UNKNOWN not in row.cells[:-20] for row in now.rows)
    later = heat_of(history, "step", range(16), until=scenes.START + 3600, **show)
    assert (later.count <= 60, later.worst) == (True, ())


def test_nobody_is_blamed_for_one_slow_moment_or_where_all_are_even() -> None:
    history = RankHistory()
    for second in range(20):
        for rank in range(8):
            slow = 3.0 if (rank, second) == (5, 18) else 1.0
            event = scenes.window(rank, second, scenes.START + second, slow)
            history.apply(event)
    heat = heat_of(history, "step", range(8), whole=False, lines=9, width=40, listed=5)
    assert heat.worst == ()


def test_a_cell_of_many_shows_their_worst() -> None:
    heat = seen(width=15)
    assert heat.cell_seconds == 5.0
    row = next(row for row in heat.rows if 20 in row.ranks)
    assert [row.scale.level(value) > 10 for value in row.cells].index(True) == 7  # 35 s / 5 s


def test_cells_keep_their_number_while_time_goes_on() -> None:
    history = RankHistory()
    firsts = []
    for second in range(400):
        history.apply(scenes.window(0, second, scenes.START + second))
        heat = heat_of(history, "step", [0], whole=False, lines=5, width=40, listed=1)
        assert len(heat.rows[0].cells) <= 40
        assert len(heat.steps) == heat.count == len(heat.rows[0].cells)
        firsts.append((heat.cell_seconds, heat.first))
    assert sum(a != b for a, b in itertools.pairwise(firsts)) < 60


@pytest.mark.parametrize("value", [0.0, -5.0, 1e-300, 1e38])
def test_the_scale_stands_any_figure(value: float) -> None:
    history = RankHistory()
    for second, metric in enumerate((value, value, math.nan, value)):
        event = scenes.window(0, second, scenes.START + second)
        history.apply(msgspec.structs.replace(event, metrics={"odd": metric}))
    heat = heat_of(history, "metric odd", [0], whole=False, lines=5, width=40, listed=1)
    assert heat.rows[0].scale.high > heat.rows[0].scale.low
    assert [heat.rows[0].scale.level(badness) for badness in heat.rows[0].cells][2] == 24


@pytest.mark.usefixtures("colours")
async def test_512_ranks_on_a_small_screen_tell_which_one_and_since_when() -> None:
    app, stage = staged({ask.Attach: partial(scenes.large, 512, slow=457)}, request=ATTACH)
    async with on_screen(app, stage):
        await stage.pressed("h")
        text = screen_text(app)
        assert "step time of 512 ranks" in text
        assert "▲ 457 node58 29.0 ms, 25 s" in text
        assert re.search(r"◆ node\d+ \+\d+, worst of ranks 4\d+-4\d+: 29.0 ms, usual 18.8", text)
        await stage.pressed("enter", "enter", "enter")
        text = screen_text(app)
        assert "rank 457 on node58: each on its own scale" in text
        assert "◆ step time of rank 457: 29.0 ms, usual 18.8, step 590" in text
        assert re.search(
            r"▲ step time .*\n +usual .*\n +loss .*\n +usual .*\n ▲ wait for data", text
        )
        await stage.pressed("down", "enter")
        assert "◆ step time usual: 18.8 ms, step 590" in screen_text(app)
        await stage.pressed("backspace", "backspace", "backspace")
        assert "step time of 512 ranks" in screen_text(app)


async def test_keys_change_what_is_shown_and_lead_to_the_ranks_log() -> None:
    app, stage = staged({ask.Attach: partial(scenes.large, 16, slow=5)}, request=ATTACH)
    async with on_screen(app, stage):
        told = app.session.transcript.text()
        await stage.pressed("h", "v")
        assert "wait for data of 16 ranks" in screen_text(app)
        await stage.pressed("t")
        assert "the whole run" in screen_text(app)
        assert app.session.transcript.text() == told, "its title says what it shows"
        await stage.typed("heat loss")
        assert "loss of 16 ranks" in screen_text(app)
        await stage.typed("heat nonsense")
        assert "nothing called 'nonsense' is known; there is: step, data, rate" in screen_text(app)
        await stage.typed("heat step")
        assert app.query_one("#heat", HeatMap).rank == 5
        await stage.typed("heat")
        assert "ms/step" in screen_text(app)


async def test_the_keys_of_the_plots_lead_from_the_heat_map_to_them() -> None:
    app, stage = staged({ask.Attach: partial(scenes.large, 16)}, request=ATTACH)
    async with on_screen(app, stage, SMALL):
        for key in ("p", "c"):
            app.main.run_command("clear", quiet=True)
            await stage.pressed("h")
            assert app.main.query_one(RunView).shows_heat
            assert "no rank 10 % worse than usual" in screen_text(app)
            await stage.pressed(key)
            assert "samples/s" in screen_text(app), key
            assert "h is the heat map again" in screen_text(app)
            assert not app.main.query_one(RunView).shows_heat


@pytest.mark.usefixtures("colours")
async def test_without_colours_the_shades_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    app, stage = staged({ask.Attach: partial(scenes.large, 16, slow=5)}, request=ATTACH)
    async with on_screen(app, stage):
        await stage.typed("heat")
        assert "▀" in screen_text(app)
        monkeypatch.setenv("NO_COLOR", "1")
        await stage.settled()
        (line,) = (line for line in screen_text(app).splitlines() if line.startswith(" ▲ node1"))
        assert "·····█████" in line


def lockstep() -> Iterator[Event]:
    for event in scenes.large(16, slow=-1):
        if isinstance(event, Window):
            waited = 1.0 if event.rank == 5 else 9.0
            event = msgspec.structs.replace(
                event, step_ms_mean=18.0, waited_ms=(waited, 0, 0, waited, 0)
            )
        yield event


async def test_the_heat_map_begins_with_own_time_where_the_others_wait_for_a_rank() -> None:
    async with on_stage({ask.Attach: lockstep}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("heat")
        text = screen_text(app)
        assert "own time of 16 ranks" in text
        assert re.search(r"▲ 5 node1 +17\.0", text)
        await stage.typed("heat step")
        assert "step time of 16 ranks" in screen_text(app), "what was asked for stays"


@pytest.mark.parametrize(("asked", "shown"), [("view run", "step time"), ("heat loss", "loss")])
async def test_the_heat_map_of_another_run_is_of_what_is_known_of_it(
    asked: str, shown: str
) -> None:
    runs = iter((lockstep, partial(scenes.large, 16, slow=5)))
    async with on_stage({ask.Attach: lambda: next(runs)()}, request=ATTACH) as (
        app,
        stage,
        _pilot,
    ):
        await stage.typed("heat")
        assert "own time of 16 ranks" in screen_text(app)
        await stage.typed(asked)
        await stage.typed("attach another-run")
        assert app.main.query_one(RunView).shows_heat
        assert f"{shown} of 16 ranks" in screen_text(app)


async def test_silent_ranks_come_before_slow_ones() -> None:
    def hanging() -> Iterator[Event]:
        for event in scenes.large(16, slow=5):
            if not (isinstance(event, Window) and event.rank == 9 and event.step > 200):
                yield event

    async with on_stage({ask.Attach: hanging}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("heat")
        text = screen_text(app)
        assert "rank 9 on node2 has not finished a step for 40 s" in text
        assert text.index("‖ 9 node2 no step 40 s") < text.index("▲ 5 node1 29.")


async def test_hostile_names_and_figures_are_shown_as_they_are() -> None:
    odd = "[bold]漢字[/red]\u202e\u0301"

    def hostile() -> Iterator[Event]:
        values = (math.nan, math.inf, -math.inf, 1e308, -0.0)
        for event in scenes.large(8, slow=5):
            if isinstance(event, Window):
                metrics = {odd: values[event.step // 10 % 5], "loss": math.nan}
                event = msgspec.structs.replace(event, host=odd, metrics=metrics)
            yield event

    async with on_stage({ask.Attach: hostile}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("heat")
        for _ in range(6):
            await stage.typed("heat next")
            lines = screen_text(app).splitlines()
            assert len(lines) <= SMALL[1]
            assert "\u202e" not in "".join(lines)
        await stage.typed("heat loss")
        text = screen_text(app)
        assert "!!!!!" in text
        assert "no number, step" in text  # and no usual one
        assert " 1.00" not in text  # no scale without a figure
