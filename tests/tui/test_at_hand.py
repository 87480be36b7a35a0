"""What a hand does to the screen: the mouse, another size, a picture of it."""

from functools import partial
from pathlib import Path

import pytest
from textual.dom import DOMNode

from distconsole.model import requests as ask
from distconsole.tui.prompt.keys import VIEWS
from distconsole.tui.widgets.line_table import LineTable
from fakes import scenes
from fakes.stage import ATTACH, SMALL, on_screen, on_stage, screen_text, staged, until

SCENES = {
    ask.Attach: scenes.straggling,
    ask.Top: partial(scenes.hosts, lost="node2"),
    ask.Check: scenes.checked,
    ask.Runs: scenes.past_runs,
}
SIZES = [(300, 100), (20, 5), (1, 1), (59, 15), (200, 60), SMALL]


async def test_a_terminal_may_have_any_size_while_a_run_goes_on() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        await stage.typed("check")
        for view in sorted(
            VIEWS, key="launch".__eq__
        ):  # it has 260 widgets, and styles cost by widget
            app.main.show_view(view)
            sizes = SIZES if view == "run" else SIZES[1:3]
            for number, size in enumerate(sizes):
                await pilot.resize_terminal(*size)
                # A resize reaches the screen by its queue.
                await until(pilot, lambda size=size: app.screen._compositor.size == size)
                task = app.session.shown_run()
                task.fold(scenes.window(0, 600 + number, scenes.MINUTE_LATER))
                app.main.redraw()
                await pilot.pause()
                text = screen_text(app)
                assert max(map(len, text.splitlines()), default=0) <= size[0]
                assert len(text.splitlines()) <= size[1]
                assert ("59 x 15: too small, made for 80 x 24" in text) is (size == (59, 15))


async def test_the_size_of_the_terminal_is_known_before_the_first_styles_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, stage = staged(SCENES)
    update, updated = app.update_styles, []

    def update_styles(node: DOMNode, animate: bool = True) -> None:
        updated.append(node)
        update(node, animate=animate)

    monkeypatch.setattr(app, "update_styles", update_styles)
    async with on_screen(app, stage, (60, 20)):
        assert app.main.has_class("-ruled", "-short")
    assert updated.count(app.main) == 1, (
        "by Textual as the screen resumes, and not for its classes"
    )


async def test_a_resize_reaches_the_screen_also_where_the_timer_for_it_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, _, pilot):
        set_timer = app.set_timer
        monkeypatch.setattr(app, "set_timer", lambda _delay, then: set_timer(3600, then))
        for size in ((100, 30), SMALL):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: app.screen._compositor.size == size)


async def test_a_click_on_a_heading_of_the_cluster_sorts_and_another_turns_it_round() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        head = next(line for line in screen_text(app).splitlines() if "util%" in line)
        place = (head.index("util%"), 0)
        await pilot.click("#gpus", offset=place)
        await stage.settled()
        assert "util▾" in screen_text(app)
        rows = app.query_one("#gpus", LineTable).rows
        most = [row.sample.util for row in rows]
        assert most == sorted(most, reverse=True)
        await pilot.click("#gpus", offset=place)
        await stage.settled()
        assert [row.sample.util for row in app.query_one("#gpus", LineTable).rows] == most[::-1]


async def test_a_click_on_the_line_of_keys_presses_them() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        keys = screen_text(app).splitlines()[-1]
        await pilot.click("#keys", offset=(keys.index("? help") + 3, 0))
        await stage.settled()
        assert app.main.view == "help"
        keys = screen_text(app).splitlines()[-1]
        await pilot.click("#keys", offset=(keys.index("prompt") + 1, 0))
        await stage.settled()
        assert app.focused is app.query_one("#prompt")


async def test_a_key_saves_every_screen_as_a_picture_that_needs_no_network(cwd: Path) -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, _pilot):
        for view in ("cluster", "run", "logs"):
            await stage.typed(f"view {view}")
            await stage.pressed("S")
            (picture,) = cwd.glob(f"distconsole-{view}-*.svg")
            assert f"saved {picture.name} in" in screen_text(app)
            text = picture.read_text()
            assert "<svg" in text
            assert not any(word in text for word in ("url(http", "@font-face", "<image", "href="))


async def test_a_picture_that_cannot_be_saved_is_an_error_in_words(tmp_path: Path) -> None:
    app, stage = staged(SCENES)
    (tmp_path / "file").touch()
    async with on_screen(app, stage) as pilot:
        await stage.typed(f"screenshot {tmp_path}/file/a.svg")
        for _ in range(250):  # the disk is asked beside the screen
            await pilot.pause(0.02)
            if "cannot be written" in screen_text(app):
                break
        assert "the picture cannot be written: Not a directory" in screen_text(app)
