import sys

import pytest
from textual.events import Key, Paste

from distconsole.errors import UsageError
from distconsole.model import requests as ask
from distconsole.tui.app import ConsoleApp
from distconsole.tui.widgets.log_tail import LogTail
from fakes import scenes
from fakes.stage import CONSOLE, on_screen, on_stage, staged, until
from suite.programs import run_to_end

LATE = (
    *("distconsole.tui.verbs", "distconsole.tui.tasks", "distconsole.tui.views.run"),
    *("distconsole.tui.launch_form", "distconsole.runs.store", "distconsole.checks", "paramiko"),
)


def test_the_first_picture_needs_no_verbs_no_runs_and_no_other_view() -> None:
    loaded = f"import sys, distconsole.tui.app; print([each for each in {LATE!r} if each in sys.modules])"
    found = run_to_end([sys.executable, "-c", loaded], check=True)
    assert found.stdout.strip() == "[]"


async def test_what_is_pasted_before_the_screen_stands_is_in_the_prompt_then() -> None:
    app, stage = staged({ask.Top: scenes.hosts})
    app.post_message(Paste("check --level full"))
    async with on_screen(app, stage):
        assert app.main.prompt.value == "check --level full"


async def test_a_view_is_made_when_it_is_first_wanted_and_keys_wait_for_it() -> None:
    async with on_stage({ask.Top: scenes.hosts}) as (app, _, pilot):
        assert [view.id for view in app.main.views.children] == ["cluster"]
        for key, letter in (("f5", None), ("w", "w"), ("f2", None), ("colon", ":"), ("w", "w")):
            app.post_message(Key(key, letter))
        await until(pilot, lambda: app.main.prompt.value == "w")
        assert app.main.view == "cluster"
        assert [view.id for view in app.main.views.children] == ["cluster", "logs"]
        assert app.query_one("#log-lines", LogTail).wraps, "w was for the view of F5"


def test_a_theme_that_is_none_is_refused_before_the_screen_opens() -> None:
    with pytest.raises(UsageError, match="there is no theme 'darc'"):
        ConsoleApp(CONSOLE, theme="darc")
