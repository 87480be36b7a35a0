"""What users of k9s, lazygit, htop, vim, nvitop and less press first: each key does something sensible, or says that it does nothing."""

from itertools import count

import msgspec
import pytest
from rich.text import Text
from textual import events

from distconsole.config.shortcuts import KeySetting
from distconsole.model import requests as ask
from distconsole.tui.app import ConsoleApp
from distconsole.tui.chrome import Mode, title_content
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.keymap import Keymap, make_keymap
from distconsole.tui.prompt.question import Question
from distconsole.tui.view_models.hosts import Clocks
from distconsole.tui.views.runs import RunRow
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Words
from fakes import scenes
from fakes.stage import ATTACH, LARGE, on_screen, on_stage, screen_text, staged, until

SCENES = {
    ask.Attach: scenes.talking,
    ask.Top: scenes.hosts,
    ask.Check: scenes.checked,
    ask.Runs: scenes.past_runs,
}
MOVES = (
    "j", "k", "up", "down", "g", "G", "home", "end", "pageup", "pagedown", "ctrl+d", "ctrl+u",
    "ctrl+f", "ctrl+b", "space", "u", "b", "h", "l", "tab", "shift+tab",
)  # fmt: skip
TYPES = (
    "colon", "question_mark", "slash", "q", "Q", "f1", "f2", "f7", "f9", "f10", "ctrl+o",
    "ctrl+q", "S",
)  # fmt: skip
SAYS = (
    "X", "z", "Z", "plus", "minus", "asterisk", "circumflex_accent", "0", "dollar_sign",
    "percent_sign", "K", "J", "D", "I", "A", "delete", "ctrl+k", "ctrl+w", "f12",
)  # fmt: skip
"""Where a view has a line for a key, that is done; else this is what comes of it."""


def press(app: ConsoleApp, key: str) -> str:
    """Return what comes of a key in the view, without doing what moves its cursor."""
    main = app.main
    main.prompt.tell("")
    keymap, view = main.shortcuts.keymap, main.view
    if keymap.of(key, view):
        return "types"
    if key in main.active_bindings:
        return "moves"
    assert main._press_by_habit(key)
    assert main.mode is Mode.VIEW
    told = main.prompt.placeholder
    said = "does nothing here: " in told or "Z once more" in told
    return "says" if said else "types" if told else "moves"


async def test_every_key_of_other_programs_gets_an_answer() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        keymap, prompt = app.main.shortcuts.keymap, app.main.prompt
        for view in ("cluster", "run", "logs", "check", "runs", "help", "transcript"):
            await stage.typed("check" if view == "check" else f"view {view}")
            assert app.main.mode is Mode.VIEW
            given = {key: press(app, key) for key in (*MOVES, *TYPES, *SAYS)}
            wanted = {**dict.fromkeys(MOVES, "moves"), **dict.fromkeys(TYPES, "types")}
            wanted |= dict.fromkeys(SAYS, "says")
            await pilot.pause()
            own = {key: "types" for key in given if keymap.of(key, view)}
            assert given == wanted | own, view
            assert app.focused in app.main.focus_chain
            press(app, "delete")
            assert prompt.placeholder.endswith("F8 stops a run, ? lists the keys")
            press(app, "P")
            assert ("s sorts" in prompt.placeholder) == (keymap.of("s", view) is not None)


async def test_words_and_lines_on_the_screen_are_found() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await pilot.press("/")
        await stage.pressed(*"node2", "enter")
        assert app.query_one("#prompt", Prompt).placeholder == "'node2': 1 of 1"
        await pilot.press("n")
        await stage.typed("find nowhere")
        assert "nothing here has 'nowhere'" in screen_text(app)


async def test_what_is_found_in_help_is_marked_until_help_is_shown_again() -> None:
    def marked(app: ConsoleApp) -> list[str]:
        text = app.query_one("#help Static", Words).content
        assert isinstance(text, Text)
        return [text.plain[s.start : s.end] for s in text.spans if s.style == "reverse"]

    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.typed("view help")
        await pilot.press("/", *"host")
        shown = app.query_one("#help Static", Words)
        count = str(shown.content).lower().count("host")
        assert [each.lower() for each in marked(app)] == ["host"] * count
        await pilot.press("s")
        assert {each.lower() for each in marked(app)} == {"hosts"}
        await pilot.press("enter")
        await stage.typed("view cluster")
        await stage.typed("view help")
        assert marked(app) == []


async def test_rows_are_found_while_words_are_typed_from_where_the_reader_was() -> None:
    async with on_stage({ask.Runs: scenes.past_runs}) as (app, stage, pilot):
        await stage.typed("view runs")
        table: LineTable[RunRow] = app.query_one("#runs-table", LineTable)

        def at() -> str:
            row = table.row_under_cursor()
            return "" if row is None else row.run.run[-3:]

        await pilot.press("down", "/", *"digits-1121-00")
        assert at() == "003", "the one that is read has it"
        assert "'digits-1121-00': 2 of 4" in screen_text(app)
        await pilot.press("2")
        assert at() == "002"
        await pilot.press("backspace")
        assert at() == "003", "not from where an earlier word was found"
        await stage.pressed("enter", "n")
        assert at() == "002"
        assert app.query_one("#prompt", Prompt).placeholder == "'digits-1121-00': 3 of 4"


async def test_who_leaves_is_told_once_what_becomes_of_a_run() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.typed(f"attach {scenes.RUN}")
        app.session.clocks = Clocks(app.session.clocks.unix, count().__next__)  # time goes on
        await pilot.press("Q")
        await stage.question()
        assert f"{scenes.RUN} goes on" in screen_text(app)
        assert "is ended" not in screen_text(app)


async def test_who_leaves_a_run_is_asked_and_told_that_it_goes_on() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        await pilot.press("2")
        assert app.main.view == "cluster", "a digit is the function key of that number"
        await pilot.press("q")
        assert app.main.view == "run"
        await pilot.press("q")
        await stage.question()
        assert f"{scenes.RUN} goes on" in screen_text(app)
        assert "ASK" in screen_text(app)
        await pilot.press("n", "q")
        assert app.query_one(Question).waits
        await pilot.press("y")
        await pilot.pause()
        assert not app.is_running


@pytest.mark.parametrize(
    "keys", [["q"], ["Q"], ["Z", "Z"], ["ctrl+c", "ctrl+c"], [*":wq", "enter"]]
)
async def test_every_way_out_of_other_programs_leaves_where_nothing_goes_on(
    keys: list[str],
) -> None:
    async with on_stage(SCENES) as (app, _, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        assert not app.is_running


async def test_ctrl_z_without_a_shell_says_so() -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.pressed("ctrl+z")
        assert "no shell to go back to" in screen_text(app)


async def test_a_message_goes_after_ten_seconds_and_one_that_gives_way_is_counted() -> None:
    app, stage = staged(SCENES)
    moment = 1000.0
    app.session.clocks = type(app.session.clocks)(monotonic=lambda: moment)
    async with on_screen(app, stage) as pilot:
        for number in range(4):
            app.session.transcript.say(f"news {number}")
        app.main.redraw()
        await until(pilot, lambda: "news 3  +2 F9" in screen_text(app))
        assert "news 2" in screen_text(app)
        moment += 10
        app.main.redraw()
        await until(pilot, lambda: "news" not in screen_text(app))


async def test_what_is_typed_before_the_views_stand_is_taken_when_they_do() -> None:
    app, stage = staged(SCENES)
    for key, letter in (("colon", ":"), ("r", "r"), ("u", "u")):
        assert app.main.comes_early(events.Key(key, letter))
    async with on_screen(app, stage) as pilot:
        await until(pilot, lambda: app.query_one(Prompt).value == "ru")
        assert app.main.mode is Mode.PROMPT


async def test_the_line_of_keys_has_none_for_what_is_not_there() -> None:
    async with on_stage({ask.Check: scenes.checked}, LARGE) as (app, stage, _pilot):
        for view, without in (("run", "why"), ("logs", "first error"), ("check", "this again")):
            await stage.typed(f"view {view}")
            keys = screen_text(app).splitlines()[-1]
            assert "prompt" in keys
            assert [word for word in (without, "sort", "filter", "copy") if word in keys] == []
        assert "F7 check" in keys
        await stage.typed("check")
        keys = screen_text(app).splitlines()[-1]
        assert "this again" in keys
        # The check is over, and its finding says what to do in prose.
        assert [word for word in ("x cancel", "copy", "next found") if word in keys] == []
        await stage.typed("help")
        assert "next found" not in screen_text(app).splitlines()[-1]
        await stage.pressed("slash", *"cluster", "enter")
        assert screen_text(app).splitlines()[-1].startswith(" VIEW   n next found  N found before")


async def test_y_is_among_the_keys_where_a_finding_has_a_command() -> None:
    app, stage = staged({ask.Attach: scenes.straggling}, request=ATTACH)
    async with on_screen(app, stage, LARGE):
        assert "y copy" not in screen_text(app).splitlines()[-1]
        found = msgspec.structs.replace(
            list(scenes.straggling())[-1], hint=f"distconsole why {scenes.RUN}"
        )
        app.session.tasks[0].fold(found)
        await stage.settled()
        assert "y copy" in screen_text(app).splitlines()[-1]


TABS = {"1 help": "help", "2 cluster": "cluster", "3 check": "check", "4 run": "run"}
TABS |= {"5 logs": "logs", "6 runs": "runs"}


async def test_the_bar_names_the_digits_that_work_and_f_keys_where_digits_are_typed() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):

        def bar() -> str:
            return screen_text(app).splitlines()[0]

        for name, view in TABS.items():
            assert f" {name}" in bar()
            await stage.pressed(name[0])
            assert app.main.view == view
        await stage.pressed("colon")
        assert "F2 cluster" in bar()
        assert "2 cluster" not in bar().replace("F2 cluster", "")
        await pilot.press("2")
        assert app.query_one(Prompt).value == "2"


def test_a_digit_that_was_given_another_meaning_is_not_named() -> None:
    keymap = make_keymap([KeySetting("4", "check", "look")], {})
    bar = title_content(keymap, "cluster", 2, 0, 0, 100, digits=True).plain
    assert "F4 run" in bar
    assert " 5 logs" in bar


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tabs_stay_and_what_says_less_gives_way(width: int) -> None:
    bar = title_content(Keymap(), "run", 2, 1, 1, width, digits=True).plain
    assert [name for name in TABS if name not in bar and name != "1 help"] == []
    assert ("1 help" in bar) is (width == 120)


async def test_escape_takes_the_filter_away_before_it_leaves_the_view() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        for view, text in (
            ("logs", "1"),
            ("run", "step>0"),
            ("runs", "state=failed"),
            ("cluster", "util<10"),
        ):
            await stage.typed("view check")
            await stage.typed(f"view {view}")
            await stage.typed(f"filter {text}")
            assert app.main.views.is_filtered
            await pilot.press("escape")
            assert not app.main.views.is_filtered
            assert app.main.view == view
            await pilot.press("escape")
            assert app.main.view == "check"
