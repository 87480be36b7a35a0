"""``filter``, ``sort``, ``group`` and ``watch`` on the screens of the cluster and of a run."""

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.run_events import BusyProcess, GpuSample, NodeSample, Window
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.keys import SORTS
from distconsole.tui.views.cluster.host import Process
from distconsole.tui.views.cluster.view import HostCells
from distconsole.tui.views.ranks import ORDERS
from distconsole.tui.widgets.line_table import LineTable
from fakes import scenes
from fakes.stage import ATTACH, LARGE, SMALL, on_screen, on_stage, screen_text, staged


def shared_hosts() -> Iterator[Event]:
    """Two hosts of four GPUs; on the second one somebody works, and one GPU idles."""
    for event in scenes.hosts(2, 4):
        if isinstance(event, GpuSample) and event.host == "node2":
            strangers = ("812 mallory python steal.py",) if event.gpu == 1 else ()
            event = replace(
                event,
                util=2.0 if event.gpu == 2 else event.util,
                name="NVIDIA A100" if event.gpu > 1 else event.name,
                rank=UNSET,
                strangers=strangers,
            )
        yield event


SIZES = [SMALL, pytest.param(LARGE, marks=pytest.mark.campaign)]
SCENES = {ask.Top: shared_hosts, ask.Attach: scenes.straggling}


def gpus(app: object) -> list[tuple[str, int]]:
    table: LineTable[object] = app.query_one("#gpus", LineTable)  # type: ignore[attr-defined]
    return [(row.sample.host, row.sample.gpu) for row in table.rows]  # type: ignore[attr-defined]


def ranks(app: object) -> list[int]:
    table: LineTable[object] = app.query_one("#ranks", LineTable)  # type: ignore[attr-defined]
    return [row.view.rank for row in table.rows]  # type: ignore[attr-defined]


MATCHING: dict[str, list[tuple[str, int]]] = {
    "filter util<10": [("node2", 2)],
    "filter host~de2 and name~A100": [("node2", 2), ("node2", 3)],
    "filter user!=me": [("node2", 1)],
    "filter util<0": [],
    "filter util < 0.1 * median(util)": [("node2", 2)],
}


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_cluster_shows_what_matches(size: tuple[int, int]) -> None:
    async with on_stage(SCENES, size) as (app, stage, _pilot):
        for line, expected in MATCHING.items():
            await stage.typed(line)
            assert gpus(app) == expected, line
            assert f"{line}  {len(expected)} of 8" in screen_text(app)
            hosts = [row.name for row in app.query_one("#hosts", LineTable).rows]
            assert hosts == (["node2"] if expected else []), line
            assert ("Esc shows all" in screen_text(app)) == (not expected), line
            await stage.typed("filter")
            assert len(gpus(app)) == 8, line


async def test_a_stranger_on_our_gpu_is_marked_on_a_small_screen() -> None:
    async with on_stage(SCENES, SMALL) as (app, _, _):
        text = screen_text(app)
        assert "1 GPU used by others" in text
        assert "   !1" in text.split("util%")[1]


async def test_hosts_and_gpus_are_sorted_by_any_field() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, _pilot):
        await stage.typed("sort util up")
        assert gpus(app)[0] == ("node2", 2)
        assert [row.name for row in app.query_one("#hosts", LineTable).rows] == ["node2", "node1"]
        await stage.typed("sort util")
        assert gpus(app)[-1] == ("node2", 2)
        await stage.typed("sort hsot")
        assert "did you mean host?" in screen_text(app)
        await stage.typed("sort host")
        assert gpus(app)[0] == ("node1", 0)


async def test_gpus_are_grouped_with_a_line_for_each_group() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, _pilot):
        await stage.typed("group name")
        heads = [row for row in app.query_one("#gpus", LineTable).rows if row.head]
        assert [(row.sample.host, row.sample.gpu) for row in heads] == [
            ("NVIDIA H100 80GB HBM3", 6),
            ("NVIDIA A100", 2),
        ]
        a100 = heads[1].sample
        assert (a100.util, a100.power_w) == (pytest.approx((2 + 69) / 2), 620.0)
        assert "grouped by name" in screen_text(app)
        await stage.typed("group none")
        assert len(gpus(app)) == 8


FOUND: dict[str, tuple[list[str], list[str]]] = {
    "filter outcome=fail": (["os.hostname_bindable"], ["os.hostname_bindable"]),
    "filter node2 hostname": (["os.hostname_bindable"], ["os.hostname_bindable"]),
    "filter 127.0.1.1": (["os.hostname_bindable"], ["os.hostname_bindable"]),
    "filter host=node1 and check~python": (["python.version"], ["python.version"]),
    "filter outcome=skipped": ([], ["torch.version"]),
    "filter finding~infiniband": ([], []),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_a_check_shows_the_findings_and_cells_that_match(size: tuple[int, int]) -> None:
    async with on_stage({ask.Check: scenes.checked}, size) as (app, stage, _pilot):
        await stage.typed("check")
        for line, (found, checks) in FOUND.items():
            await stage.typed(line)
            assert app.main.view == "check"
            assert [each.check for each in app.query_one("#findings", LineTable).rows] == found
            grid = app.query_one("#grid", LineTable).rows
            assert [row.check for row in grid] == checks, line
            text = screen_text(app)
            for words in (line, f"Findings {len(found)} of 2", f"Checks {len(checks)} of 5"):
                assert words in text
            assert ("Esc shows all" in text) == (not found), line
            if "hostname" in line:
                assert grid[0].cells == {"node2": ("fail",)}, "the other host is not asked for"
            await stage.typed("filter")
            assert len(app.query_one("#findings", LineTable).rows) == 2, line
            whole = 10 if size == LARGE else 5  # on a large screen with the checks of each group
            assert len(app.query_one("#grid", LineTable).rows) == whole, line


async def test_a_filter_of_a_check_that_means_nothing_is_answered_and_changes_nothing() -> None:
    async with on_stage({ask.Check: scenes.checked}) as (app, stage, pilot):
        await stage.typed("check")
        await stage.typed("filter hots=node1")
        assert "checks have no field 'hots', at character 1" in screen_text(app)
        assert len(app.query_one("#findings", LineTable).rows) == 2
        await pilot.press("escape", "f")
        assert app.query_one(Prompt).value == "filter "


async def test_a_run_shows_the_ranks_that_match() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("filter step > 1.1 * median(step_ms)")
        assert ranks(app) == [3]
        assert "1 of 4 ranks" in screen_text(app)
        await stage.typed("filter hots=node1")
        text = screen_text(app)
        assert ranks(app) == [3]
        assert "ranks have no field 'hots', at character 1" in text
        assert "did you mean host?  in: ▸hots=node1" in text
        await stage.typed("filter")
        assert sorted(ranks(app)) == [0, 1, 2, 3]


async def test_the_log_of_a_rank_is_still_a_key_away() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, _pilot):
        await stage.pressed("l")
        assert app.main.view == "logs"
        assert "─ filter 3 · " in screen_text(app)


async def test_a_watch_says_once_when_it_comes_true_and_once_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rung: list[str] = []
    app, stage = staged(SCENES, request=ATTACH)
    monkeypatch.setattr(app, "bell", lambda: rung.append("bell"))
    async with on_screen(app, stage, LARGE):
        await stage.typed("watch step_ms > 90ms")
        await stage.typed("watch util < 1%")
        task = app.session.shown_run()
        assert task is not None
        before = len(rung)
        slow = scenes.window(2, 99, scenes.MINUTE_LATER, slow=50.0)
        for _ in range(3):
            task.fold(slow)
            await stage.settled()
        assert len(rung) == before + 1
        lines = [line for line in screen_text(app).splitlines() if "▲" in line and "watch" in line]
        assert lines[-1].strip().startswith("▲ watch 1 'step_ms > 90ms': rank 2 on node2")
        task.fold(scenes.window(2, 100, scenes.MINUTE_LATER))
        await stage.settled()
        assert len(rung) == before + 2
        assert "▽ watch 1 'step_ms > 90ms' has ended after" in screen_text(app)
        await stage.typed("unwatch 1")
        task.fold(slow)
        await stage.settled()
        assert len(rung) == before + 2
        assert [watch.number for watch in app.main.watches.kept] == [2]


async def test_a_watch_of_hosts_goes_on_while_a_run_is_shown() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, _pilot):
        await stage.typed("watch user!=me")
        assert "▲ watch 1 'user!=me': GPU 1 of node2" in screen_text(app)
        await stage.typed("watch nothing>3")
        assert "have no field 'nothing'" in screen_text(app)
        await stage.typed("watch")
        assert "watch 1 'user!=me': true" in screen_text(app)
        await stage.typed("unwatch all")
        assert app.main.watches.kept == []


async def test_enter_on_a_host_shows_all_of_it_alone_and_q_leads_back() -> None:
    async with on_stage(SCENES | {ask.Check: scenes.checked}, LARGE) as (app, stage, _pilot):
        await stage.typed(f"attach {scenes.RUN}")
        await stage.typed("check")
        await stage.typed("view cluster")
        await stage.pressed("down", "enter")
        text = screen_text(app)
        assert {host for host, _ in gpus(app)} == {"node2"}
        for told in ("digits rank 2", "steal.py", "os.hostname_bindable", "correct /etc/hosts"):
            assert told in text, told
        await stage.pressed("q")
        assert {host for host, _ in gpus(app)} == {"node1", "node2"}


def busy_hosts() -> Iterator[Event]:
    """The hosts of ``shared_hosts``, of which the second says what takes its processors."""
    busy = (
        BusyProcess(pid=66, user="eve", command="tar cz /data", cpu=187.4, memory=3 << 30),
        BusyProcess(pid=4002, user="me", command="python train.py", cpu=99.0, memory=2 << 30),
    )
    for event in shared_hosts():
        told = isinstance(event, NodeSample) and event.host == "node2"
        yield replace(event, processes=busy) if told else event  # type: ignore[type-var]


async def test_the_page_of_a_host_lists_what_takes_it_as_long_as_that_is_of_now() -> None:
    async with on_stage(SCENES | {ask.Top: busy_hosts}, LARGE) as (app, stage, _pilot):
        await stage.typed(f"attach {scenes.RUN}")
        await stage.typed("view cluster")
        await stage.pressed("down", "enter")
        text = screen_text(app)
        assert "node2 connected, 4 GPUs at 64 %" in text.splitlines()[1]
        table: LineTable[Process] = app.query_one("#processes", LineTable)
        shown = [(row.pid, row.whose, row.gpu, row.cpu) for row in table.rows]
        assert shown == [
            ("66", "eve", "", 187.4),
            ("4002", "digits rank 2", "0", 99.0),
            ("812", "mallory", "1", None),
            ("4003", "digits rank 3", "1", None),
        ]
        for words in (r"66 +eve +187 +3.0G +tar cz /data", r"4002 +digits rank 2 +99 +2.0G"):
            assert re.search(words, text), text
        load = app.session.load_task
        read_at, busy = load.load.busy["node2"]
        load.load.busy["node2"] = read_at - 60, busy
        app.screen.redraw()
        await stage.settled()
        assert [row.cpu for row in table.rows] == [None] * 3


async def test_many_hosts_have_a_cell_each_and_a_click_on_one_goes_to_its_row() -> None:
    app, stage = staged({ask.Top: partial(scenes.hosts, 60, 0, lost="node21")})
    async with on_screen(app, stage, LARGE) as pilot:
        await stage.settled()
        cells = app.query_one(HostCells)
        assert cells.render_line(0).text.startswith("▒" * 10 + " " + "▒" * 10 + " ✗▒▒")
        await pilot.click(HostCells, offset=(22, 0))
        await stage.settled()
        row = app.query_one("#hosts", LineTable).row_under_cursor()
        assert row.name == "node21"


async def test_ranks_are_sorted_and_filtered_by_the_headings_on_the_screen() -> None:
    def uneven() -> Iterator[Event]:
        for event in scenes.training():
            if isinstance(event, Window):
                number = event.rank
                waited = (1.0, 9.0, 5.0, 7.0)[number]
                event = replace(
                    event,
                    step_ms_mean=18.0,
                    step_ms_p95=(20.0, 22.0, 24.0, 21.0)[number],
                    samples_s=(430.0, 410.0, 440.0, 420.0)[number],
                    waited_ms=(waited, 0, 0, waited, 0),
                    metrics={"loss": (0.3, 0.1, math.nan, 0.2)[number]},
                )
            yield event

    async with on_stage({ask.Attach: uneven}, LARGE, request=ATTACH) as (app, stage, pilot):
        table = app.query_one("#ranks", LineTable)

        def order() -> list[int]:
            return [row.view.rank for row in table.rows]

        for line, expected in {
            "sort own": [0, 2, 3, 1],
            "sort p95": [2, 1, 3, 0],
            "sort samples/s": [1, 3, 0, 2],
            "sort loss": [2, 0, 3, 1],
            "sort rank": [0, 1, 2, 3],
            "sort own ms": [0, 2, 3, 1],
            "sort costs": [0, 1, 2, 3],
            "filter own>13": [0, 2],
            "filter p95<21.5": [0, 3],
        }.items():
            await stage.typed("filter")
            await stage.typed(line)
            assert sorted(order()) == expected if "filter" in line else order() == expected, line
        assert {each for each in ORDERS.values() if each} <= set(SORTS)
        await pilot.press("f", "o", "w", "tab")
        await pilot.pause()
        assert app.query_one(Prompt).value.startswith("filter own")
        await pilot.press("ctrl+u", *"filter ", "tab")
        await pilot.pause()
        assert "connected" not in screen_text(app), "no field of a rank"
        await pilot.press("ctrl+u", "escape")
        await stage.typed("filter")
        await stage.typed("sort own")
        for line in ("sort rank up", "sort loss down", "sort rank foo"):
            await stage.typed(line)
            assert f"'{line}' is not understood" in screen_text(app)
            assert order() == [0, 2, 3, 1], f"{line} is not half done"


async def test_a_line_that_means_nothing_is_not_kept_in_the_history(tmp_path: Path) -> None:
    async with on_stage(SCENES, LARGE, history=tmp_path / "history") as (app, stage, pilot):
        for line in ("sort util", "sort uitl", "filter util<<3", "chek"):
            await stage.typed(line)
        prompt = app.query_one(Prompt)
        await pilot.press("tab")
        assert prompt.value == "check "[: len(prompt.value)]
        await pilot.press("ctrl+u", "up")
        assert prompt.value == "sort util"
    assert (tmp_path / "history").read_text() == "sort util\n"
