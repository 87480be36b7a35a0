"""Whatever the colours: everything written can be read, and every state is told apart without them."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from rich.color import ColorSystem, ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from distconsole.config.paths import runs_dir
from distconsole.config.schema import Config
from distconsole.errors import ConfigError, UsageError
from distconsole.model import requests as ask
from distconsole.runs.store.store import RunStore
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.theme.themes import CONTRAST, DARK, LIGHT, LOOKS, NAMES, TERMINAL, first_theme
from fakes import scenes
from fakes.journals import Journal
from fakes.stage import ATTACH, MIDDLE, on_screen, on_stage, screen_text, staged

SCENES = {
    ask.Attach: scenes.straggling,
    ask.Top: lambda: scenes.hosts(lost="node2"),
    ask.Check: lambda: scenes.paired(dead=1),
    ask.Runs: scenes.past_runs,
    ask.Foresee: scenes.foreseen,
}
LINES = (
    "check", "filter node16", "filter", "pairs", "pairs", "interfaces", "interfaces", "view cluster", "view run", "heat",
    "heat", "find epoch", "view runs", "no such verb", "view transcript", "view help",
    f"attach {scenes.RUN}", "view launch",
)  # fmt: skip
READ = {DARK: 4.5, LIGHT: 4.5, CONTRAST: 7.0}
"""WCAG 2.2, 1.4.3 and 1.4.6."""


def luminance(colour: Color) -> float:
    """The relative luminance, as WCAG defines it."""
    parts = [part / 255 for part in colour.rgb]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@cache
def contrast(style: Style, system: ColorSystem) -> float:
    """The contrast on a terminal of so many colours, which shows the nearest ones that it has."""
    assert style.color is not None
    assert style.bgcolor is not None
    both = (each.downgrade(system) for each in (style.color, style.bgcolor))
    darker, brighter = sorted(luminance(Color.from_rich_color(each)) for each in both)
    return (brighter + 0.05) / (darker + 0.05)


def drawn(app: ConsoleApp) -> Iterator[Segment]:
    for line in app.screen._compositor.render_strips():
        yield from line


def written(app: ConsoleApp) -> Iterator[Segment]:
    for segment in drawn(app):
        words = segment.text.strip(" ·")
        if re.sub("[\u2500-\u259f\u2800-\u28ff ]", "", words):  # no line, bar or curve
            yield segment


def pale_on(app: ConsoleApp, line: str, least: float) -> set[object]:
    return {
        (line, segment.text.strip(), system.name, round(seen, 2))
        for segment in written(app)
        for system in (ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT)
        if segment.style is not None and (seen := contrast(segment.style, system)) < least
    }


@pytest.mark.parametrize(
    "theme", [DARK, pytest.param(LIGHT, marks=pytest.mark.campaign), CONTRAST]
)
async def test_everything_written_can_be_read(theme: str) -> None:
    app, stage = staged(SCENES, request=ATTACH)
    pale: set[object] = set()
    async with on_screen(app, stage, MIDDLE) as pilot:
        await stage.typed(f"theme {theme}")
        stage.scenes[ask.Attach] = scenes.failing
        for line in LINES:
            await stage.typed(line)
            pale |= pale_on(app, line, READ[theme])
            prompt = app.query_one(Prompt)
            (app.main.focus_view if prompt.has_focus else prompt.focus)()
            app.main.redraw()
            await pilot.pause()
            pale |= pale_on(app, line, READ[theme])
    assert pale == set()


@pytest.mark.parametrize("theme", READ)
def test_greys_stay_grey_where_there_are_256_colours(theme: str) -> None:
    shades = LOOKS[theme].theme.to_color_system().generate()
    for name in ("background", "surface", "panel", "foreground", "text-muted"):
        shown = Color.parse(shades[name]).rich_color.downgrade(ColorSystem.EIGHT_BIT)
        parts = Color.from_rich_color(shown).rgb
        assert max(parts) - min(parts) < 20, (name, shown.name)


async def test_a_theme_is_for_everything_that_stands_there_already() -> None:
    async with on_stage(SCENES, MIDDLE, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("theme light")
        dark_left = [
            segment.text
            for segment in drawn(app)
            if segment.style is not None
            and segment.style.bgcolor is not None
            and luminance(Color.from_rich_color(segment.style.bgcolor)) < 0.2
            and not segment.style.reverse
            and segment.text != "a"  # the cursor, on the first letter of the prompt
        ]
    assert dark_left == []


async def test_a_change_of_the_theme_leaves_no_colour_of_the_one_before() -> None:
    Journal(run=scenes.RUN, seconds=120, slow=3, fails=1).write(RunStore(runs_dir()))
    seen: dict[str, list[list[Segment]]] = {DARK: [], LIGHT: []}
    for first, pictures in seen.items():
        async with on_stage(SCENES) as (app, stage, _pilot):
            app.theme = first
            await stage.typed("check --only os,no such")
            for line in (f"replay {scenes.RUN}", "view help"):
                app.theme = first
                app.main.run_command(line, quiet=True)
                await stage.settled()
                app.theme = LIGHT
                await stage.settled()
                pictures.append(list(Segment.simplify(drawn(app))))
    assert seen[DARK] == seen[LIGHT]


async def test_sixteen_colours_are_the_terminals_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "screen")
    async with on_stage(SCENES, MIDDLE, request=ATTACH) as (app, stage, _pilot):
        assert app.theme == TERMINAL
        for line in LINES:
            await stage.typed(line)
            styles = [segment.style for segment in drawn(app) if segment.style is not None]
            kinds = {
                colour.type
                for style in styles
                for colour in (style.color, style.bgcolor)
                if colour
            }
            assert kinds <= {ColorType.DEFAULT, ColorType.STANDARD}, line
            if "view" not in line or line in ("view run", "view cluster", "view runs"):
                assert any(style.reverse for style in styles), line


async def test_without_colours_nothing_is_coloured_and_the_cursor_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with on_stage(SCENES, MIDDLE, request=ATTACH) as (app, stage, _pilot):
        for line in ("view run", "heat", "heat", "view cluster", "check", "pairs"):
            await stage.typed(line)
            styles = [segment.style for segment in drawn(app) if segment.style is not None]
            colours = {colour for style in styles for colour in (style.color, style.bgcolor)}
            assert {each.type for each in colours if each} == {ColorType.DEFAULT}, line
            assert any(style.reverse for style in styles), line
        await stage.typed("theme light")
        assert "without colours, because NO_COLOR is set" in screen_text(app)


async def test_a_terminal_of_ascii_gets_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "vt100")
    async with on_stage(SCENES, MIDDLE, request=ATTACH) as (app, stage, _pilot):
        for line in ("view run", "heat", "view cluster"):
            await stage.typed(line)
            text = screen_text(app)
            assert text.isascii(), line
            assert "+-" in text, line
            assert "?" not in text.splitlines()[4], line


async def test_a_theme_that_was_chosen_is_kept_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    kept = tmp_path / "state" / "theme"
    async with on_stage(SCENES, theme_kept=kept) as (app, stage, _pilot):
        assert app.theme == DARK
        await stage.pressed("f10")
        assert app.theme == LIGHT
        await stage.typed("theme contrast")
        await stage.typed("theme darc")
        assert "there is no theme 'darc'" in screen_text(app)
    again, stage = staged(SCENES, theme_kept=kept)
    async with on_screen(again, stage):
        assert again.theme == CONTRAST


def test_a_wrong_theme_of_the_configuration_names_its_files() -> None:
    config = Config(theme="darc", files=(Path("/project/distconsole.toml"),))
    with pytest.raises(ConfigError, match=r"^/project/distconsole.toml: theme: there is no theme"):
        ConsoleApp.open(ask.OpenConsole(), config)
    with pytest.raises(UsageError, match="there is no theme 'lihgt'"):
        ConsoleApp.open(ask.OpenConsole(theme="lihgt"), config)


@pytest.mark.parametrize(
    ("asked", "kept", "colours", "no_color", "theme"),
    [
        (None, None, 1 << 24, False, DARK),
        (None, LIGHT, 256, False, LIGHT),
        (CONTRAST, LIGHT, 256, False, CONTRAST),
        (None, LIGHT, 16, False, TERMINAL),
        (LIGHT, None, 16, False, LIGHT),
        (LIGHT, LIGHT, 1 << 24, True, TERMINAL),
    ],
)
def test_the_first_theme(
    asked: str | None, kept: str | None, colours: int, no_color: bool, theme: str
) -> None:
    assert first_theme(asked, kept, colours=colours, no_color=no_color) == theme
    assert theme in NAMES
