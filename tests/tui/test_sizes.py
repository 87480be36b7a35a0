"""Terminals of any size, and ones that change it: nothing breaks, overlaps or remembers the size before."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import pytest
from rich.console import RenderableType
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget

from distconsole.model import requests as ask
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.keys import VIEWS
from fakes import scenes
from fakes.stage import (
    ATTACH,
    SMALL,
    Scene,
    keep_run,
    on_screen,
    on_stage,
    read,
    screen_text,
    staged,
)

HUGE, TINY = (220, 70), (59, 15)
SCENES: dict[type, Scene] = {
    ask.Top: scenes.hosts,
    ask.Check: scenes.checked,
    ask.Runs: scenes.past_runs,
    ask.Compare: scenes.compared,
    ask.Foresee: scenes.foreseen,
    ask.Launches: scenes.launches,
}
RUNS: dict[str, tuple[Scene, Sequence[str]]] = {
    "4": (scenes.straggling, sorted([*VIEWS, "heat"], key="launch".__eq__)),
    "256": (partial(scenes.large, 256, slow=200), ["run", "heat"]),
}
"""Runs, and views that are looked at, the one of 260 widgets late: how many ranks there are is the same to the others."""
LINES = {"check": "check", "compare": "compare digits-1121-000 digits-1121-a3f9", "heat": "heat"}


def outside(view: Widget) -> Iterator[tuple[str, object]]:
    """Give the parts of ``view`` of which lines are beyond it, and so on no screen; it may scroll."""
    if view.max_scroll_y:
        return
    for part in view.children:
        if part.display and part.region.area and not view.region.contains_region(part.region):
            yield part.id or type(part).__name__, part.region


def told(app: ConsoleApp) -> str:
    """Return what the view says; the lines above the prompt are what happened since."""
    view = app.main.views.shown.region
    return "\n".join(screen_text(app).splitlines()[view.y : view.bottom])


@pytest.mark.parametrize("ranks", RUNS)
async def test_a_view_is_the_same_again_when_its_size_is(ranks: str) -> None:
    scene, views = RUNS[ranks]
    async with on_stage(SCENES | {ask.Attach: scene}, request=ATTACH) as (app, stage, pilot):
        for view in views:
            app.main.run_command(LINES.get(view, f"view {view}"), quiet=True)
            await stage.settled()
            if view == "launch":
                await stage.planned()
            if view == "logs":
                await read(app, pilot)
            app.main.run_command("clear", quiet=True)
            await stage.settled()
            before = told(app)
            for size in (HUGE, TINY, SMALL):
                await pilot.resize_terminal(*size)
                await stage.settled()
                assert app.size == Size(*size)
                lines = screen_text(app).splitlines()
                assert len(lines) == size[1]
                assert "too small" in lines[-1] or size != TINY
                assert size == TINY or not list(outside(app.main.views.shown)), (view, size)
            assert told(app) == before, view


async def test_a_screen_is_as_its_new_size_wants_it_after_two_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, stage = staged(SCENES)
    pictures: list[str] = []
    display = app._display

    def keep(screen: Screen[object], renderable: RenderableType | None) -> None:
        if renderable is not None:
            pictures.append(screen_text(app))
        display(screen, renderable)

    async with on_screen(app, stage, (160, 50)) as pilot:
        await stage.typed("check")
        monkeypatch.setattr(app, "_display", keep)
        for size in ((100, 40), SMALL):
            pictures.clear()
            await pilot.resize_terminal(*size)
            await stage.still()
            changes = [text for text, _ in groupby(pictures) if text.count("\n") == size[1] - 1]
            assert changes[2:] == [], size


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.campaign)])
async def test_what_a_run_has_no_room_for_is_left_out_whole(step: int) -> None:
    keep_run()
    app, stage = staged(SCENES | {ask.Attach: scenes.straggling}, request=ATTACH)
    async with on_screen(app, stage) as pilot:
        for lines in range(33, 15, -step):
            await pilot.resize_terminal(80, lines)
            await stage.typed("stop last")
            await stage.question()
            assert not list(outside(app.main.views.shown)), lines
            await stage.pressed("n")
            assert not list(outside(app.main.views.shown)), lines
            assert app.query_one("#ranks").display, lines
