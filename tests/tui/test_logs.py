"""The Logs screen: who said it, what is wanted, where one looks, whatever was printed."""

from collections.abc import Iterator
from functools import partial

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.runs.logs.levels import Level
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.views import logs
from distconsole.tui.views.run import RunView
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.log_sides import Counted
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.plots import Plot
from fakes import scenes
from fakes.stage import ATTACH, LARGE, SMALL, on_screen, on_stage, read, screen_text, staged, until

TALKING = {ask.Attach: scenes.talking, ask.Top: tuple}


async def shown(app: ConsoleApp, pilot: Pilot[int]) -> list[str]:
    """The verdict and the panel of lines, when all are read."""
    await read(app, pilot)
    lines, panel = screen_text(app).splitlines(), app.query_one("#lines-panel").region
    inside = [line[panel.x :].strip().strip("│") for line in lines[panel.y : panel.bottom]]
    return [lines[1], *inside]


async def test_what_several_ranks_say_is_one_line_and_each_keeps_its_order() -> None:
    async with on_stage(TALKING, LARGE, request=ATTACH) as (app, stage, pilot):
        await stage.typed("view logs")
        lines = await shown(app, pilot)
        assert sum("epoch 0" in line for line in lines) == 1
        (epoch,) = [line for line in lines if "epoch 1" in line]
        assert epoch.split()[1:3] == ["all", "4"]
        for number in range(4):
            own = [line for line in lines if f"rank {number} loss" in line]
            assert [line.split()[-1] for line in own] == [f"0.{number}{e}" for e in range(3)]
        await pilot.press("o")
        unfolded = await shown(app, pilot)
        assert sum("epoch 2" in line for line in unfolded) == 4
        await pilot.press("d")
        digits = await shown(app, pilot)
        assert any("all 4" in line and "rank # loss" in line for line in digits)


FILTERS = {
    "0-1": (["rank 1 loss"], ["rank 2 loss", "Traceback"]),
    "2": (["rank 2 loss", "Traceback"], ["rank 1 loss"]),
    "host:node2": (["rank 3 loss"], ["rank 0 loss"]),
    "errors": (["Traceback", "RuntimeError"], ["loss 0.", "epoch"]),
    "err": (["Traceback"], ["epoch"]),
    r"/loss 0\.[01]2/": (["rank 0 loss", "rank 1 loss"], ["rank 2 loss", "epoch"]),
    "-loss -epoch": (["Traceback"], ["rank 2", "epoch"]),
    "since:5s": (["Traceback"], ["epoch"]),
    "LOSS 3": (["rank 3 loss"], ["rank 1 loss"]),
}
"""What is kept and what is not."""


async def test_a_filter_shows_what_fits_and_nothing_else() -> None:
    async with on_stage(TALKING, request=ATTACH) as (app, stage, pilot):
        await stage.typed("view logs")
        for wanted, (there, gone) in FILTERS.items():
            await stage.typed(f"filter {wanted}")
            text = "\n".join((await shown(app, pilot))[2:])
            assert all(words in text for words in there), wanted
            assert not any(words in text for words in gone), wanted
            await stage.typed("filter")
            assert "epoch 2" in "\n".join(await shown(app, pilot)), wanted


async def test_a_filter_that_cannot_be_read_says_so_and_changes_nothing() -> None:
    async with on_stage(TALKING, request=ATTACH) as (app, stage, pilot):
        await stage.typed("view logs")
        await stage.typed("filter /(/")
        assert "not a regular expression" in screen_text(app)
        assert "epoch 2" in "\n".join(await shown(app, pilot))


async def test_a_filter_and_a_search_are_left_behind_with_their_run() -> None:
    runs = iter([scenes.RUN, "another-run"])

    def talking() -> list[Event]:
        run = next(runs)
        return [replace(event, run=run) for event in scenes.talking()]

    app, stage = staged({ask.Attach: talking, ask.Top: tuple}, request=ATTACH)
    async with on_screen(app, stage, LARGE) as pilot:
        await stage.typed("view logs")
        await stage.typed("filter 0")
        await stage.typed("find epoch 2")
        lines = await shown(app, pilot)
        assert "1 error (of rank 2, hidden by the filter)" in lines[0]
        await stage.pressed("x")
        assert "the first error, of rank 2, is hidden by the filter" in screen_text(app)
        await stage.typed("attach another-run")
        await stage.typed("view logs")
        lines = await shown(app, pilot)
        assert "1 error (of rank 2)" in lines[0]
        assert "filter 0" not in lines[1]
        assert "'epoch 2'" not in lines[1]
        assert any("Traceback" in line for line in lines)


def many() -> list[Event]:
    return [scenes.plan(2), *(scenes.log(0, f"step {n} of it") for n in range(500))]


async def test_a_search_finds_while_it_is_typed_counts_and_goes_on() -> None:
    async with on_stage({ask.Attach: many, ask.Top: tuple}, request=ATTACH) as (app, stage, pilot):
        await stage.typed("view logs")
        await pilot.press("g", "slash", *"Step", "space", "3", "0")
        assert app.query_one(Prompt).value == "find Step 30"
        text = "\n".join(await shown(app, pilot))
        assert "'Step 30': 0" in text  # a capital letter counts
        await pilot.press("ctrl+u", *"find", "space", *"step", "space", *"30")
        assert "'step 30': 1 of 11" in "\n".join(await shown(app, pilot))
        await pilot.press("enter", "n")
        text = "\n".join(await shown(app, pilot))
        assert "'step 30': 2 of 11" in text
        assert "step 300 of it" in text
        await stage.pressed("N", "N")
        assert "no line before" in screen_text(app)


async def test_a_search_from_the_ranks_counts_and_marks_while_it_is_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "TURN_SECONDS", 0.0)  # as long lines have it, not all at once

    async with on_stage({ask.Attach: many, ask.Top: tuple}, request=ATTACH) as (app, stage, pilot):
        await pilot.press("slash", *"step", "space", "4", "9", "9")
        await read(app, pilot)
        await stage.pressed("backspace")
        assert app.main.view == "run"
        await until(pilot, lambda: "'step 49': 11 of 11" in screen_text(app))
        tail = app.query_one("#tail", LogTail)
        assert tail.found is not None
        await stage.pressed("escape")
        assert tail.found is None


async def test_a_log_that_has_no_height_yet_has_its_lines() -> None:
    said = [scenes.plan(1), scenes.log(0, "trains")]
    async with on_stage({ask.Attach: lambda: said}, request=ATTACH) as (app, stage, _):
        await stage.typed("view logs")
        app.query_one(RunView).draw(app.session.tasks[0], scenes.START)
        assert app.query_one("#tail", LogTail).count == 1


async def test_the_first_error_is_the_first_by_time_not_by_arrival() -> None:
    def scene() -> list[Event]:
        late = [scenes.log(3, f"line {n}", scenes.START + n) for n in range(100)]
        lines = [
            *late,
            scenes.log(0, "ValueError: came first, printed later", scenes.START + 50),
            *late,
            scenes.log(1, "RuntimeError: it began here", scenes.START + 2),
            *late,
        ]
        return [scenes.plan(4), *lines]

    app, stage = staged({ask.Attach: scene, ask.Top: tuple}, request=ATTACH)
    async with on_screen(app, stage) as pilot:
        await stage.typed("view logs")
        tail = app.query_one("#log-lines", LogTail)
        await pilot.press("x")
        assert "it began here" in "\n".join(await shown(app, pilot))
        assert not tail.follows
        await pilot.press("E")
        assert "came first, printed later" in "\n".join(await shown(app, pilot))
        await stage.pressed("e", "e")
        assert "no error after this line" in screen_text(app)
        await stage.typed("lines at 50s")
        assert "line 50" in "\n".join(await shown(app, pilot))
        await stage.typed("lines end")
        assert tail.follows


async def test_bars_are_one_living_line_a_rank_and_few_for_many() -> None:
    def bars(world: int) -> Iterator[Event]:
        yield scenes.plan(world, 8)
        for number in range(world):
            for done in range(10, 50, 10):
                text = f"\r {done + number % 7}%|{'█' * (done // 5)}| {done}/100\r"
                yield from scenes.printed(number, text, stream="err")

    app, stage = staged({ask.Attach: partial(bars, 2), ask.Top: tuple}, request=ATTACH)
    async with on_screen(app, stage) as pilot:
        await stage.typed("view logs")
        lines = await shown(app, pilot)
        assert sum("/100" in line for line in lines) == 2
        assert "NO LINES YET" in lines[0]
    app, stage = staged({ask.Attach: partial(bars, 64), ask.Top: tuple}, request=ATTACH)
    async with on_screen(app, stage) as pilot:
        await stage.typed("view logs")
        (bar,) = [line for line in await shown(app, pilot) if "/100" in line]
        assert "all 64" in bar
        assert "40-46%" in bar


HOSTILE = {
    "a title": ("a\x1b]0;evil\x07b", "ab"),
    "a link": ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    "the cursor": ("a\x1b[2J\x1b[1;1Hb", "ab"),
    "device control": ("a\x1bP1$r0m\x1b\\b", "ab"),
    "C1": ("a\x9b2Jb\x85c", "abc"),
    "NUL and BEL": ("a\x00\x07b", "ab"),
    "bidi": ("a\u202eb\u2066c", "abc"),
    "right-to-left letters": ("שלום עולם", "שלום עולם"),
    "wide letters": ("日本語のログ", "日本語のログ"),
    "combining": ("e\u0301" * 3, "e\u0301" * 3),
    "a family": ("\U0001f468\u200d\U0001f469 here", "here"),
    "a flood of combining": ("x" + "\u0301" * 60_000 + "y", "x"),
    "tabs": ("a\tb", "a   b"),
    "markup": ("[bold]x[/] [@click=quit]y", "[bold]x[/] [@click=quit]y"),
    "bytes that are no text": (b"a\xff\xfe\xc3(b".decode("utf-8", "replace"), "a\ufffd"),
    "colours never ended": ("\x1b[31;1mred", "red"),
    "a colour of a megabyte": ("\x1b[" + "1;" * 200_000 + "mx", "x"),
    "half a sequence": ("a\x1b[", "a"),
    "spaces": (" " * 5000 + "far", ""),
}


@pytest.mark.parametrize(
    "size", [(40, 10), pytest.param(SMALL, marks=pytest.mark.campaign), LARGE], ids=str
)
async def test_whatever_is_printed_is_shown_and_does_no_harm(size: tuple[int, int]) -> None:
    def scene() -> list[Event]:
        lines = [line for text, _ in HOSTILE.values() for line in scenes.printed(0, text + "\n")]
        return [scenes.plan(2), *lines, *scenes.printed(1, "x" * 1_000_000 + "\n")]

    app, stage = staged({ask.Attach: scene, ask.Top: tuple}, request=ATTACH)
    async with on_screen(app, stage, size) as pilot:
        await stage.typed("view logs")
        seen = ""
        await pilot.press("g")
        for _ in range(30):
            seen += "\n".join(await shown(app, pilot))
            await pilot.press("down")
        for key in ("w", "t", "right", "o", "d", "w"):
            await pilot.press(key)
            seen += "\n".join(await shown(app, pilot))
        assert app.is_running
    assert "1.0 MB" in seen
    for name, (_, wanted) in HOSTILE.items():
        assert wanted[: size[0] - 12] in seen, name
    assert not [
        c for c in seen if (c < " " and c != "\n") or "\x7f" <= c < "\xa0" or c in "\u202e\u2066"
    ]


async def test_a_line_is_copied_as_plain_text() -> None:
    async with on_stage(TALKING, request=ATTACH) as (app, stage, _):
        await stage.typed("view logs")
        await stage.typed("filter 1 loss")
        await stage.pressed("up", "y")
        assert app.clipboard == "rank 1 loss 0.11"
        assert "copied: rank 1 loss 0.11" in screen_text(app)


async def test_a_million_lines_later_the_first_ones_are_read_back() -> None:
    count = 30_000

    def flood() -> Iterator[Event]:
        yield scenes.plan(2)
        for number in range(count):
            yield scenes.log(0, f"line {number} of many", scenes.START + number / 1000)

    app, stage = staged({ask.Attach: flood, ask.Top: tuple}, request=ATTACH)
    async with on_screen(app, stage) as pilot:
        await stage.typed("view logs")
        assert f"line {count - 1} of many" in "\n".join(await shown(app, pilot))
        await pilot.press("g")
        assert "line 0 of many" in "\n".join(await shown(app, pilot))
        await stage.typed("lines at 16s")
        assert "line 16000 of many" in "\n".join(await shown(app, pilot))
        await pilot.press("w", "end")
        assert f"line {count - 1} of many" in "\n".join(await shown(app, pilot))


async def test_a_rank_is_chosen_beside_the_lines_and_a_moment_above_them() -> None:
    async with on_stage(TALKING, LARGE, request=ATTACH) as (app, stage, pilot):
        await stage.typed("view logs")
        table: LineTable[Counted] = app.query_one("#log-ranks", LineTable)
        said = [(str(row.name), sum(row.counts), row.counts[Level.ERROR]) for row in table.rows]
        assert said[:3] == [("all", 30, 1), ("▲ 2", 12, 1), ("● 0", 6, 0)]
        assert "those with errors first" in screen_text(app)
        await stage.typed("filter -epoch")
        table.focus()
        await pilot.press("down", "enter")
        lines = await shown(app, pilot)
        assert "filter 2 -epoch" in lines[1]
        assert "rank 2 loss" in "".join(lines)
        assert "rank 1 loss" not in "".join(lines)
        await pilot.press("up", "enter")
        await shown(app, pilot)
        plot = app.query_one(Plot)
        half = next(x for x in range(plot.size.width) if (plot.x_at(x) or 0) > 15)
        await pilot.click(plot, offset=(half, 2))
        row = app.query_one("#log-lines", LogTail).row_under_cursor()
        assert row.t == scenes.START + 20
