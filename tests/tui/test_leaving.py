"""Claims about how a session ends, how much drawing costs in messages, and what never loads the screen."""

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from distconsole.__main__ import run
from distconsole.config.paths import user_config_file
from distconsole.config.schema import Config
from distconsole.errors import UsageError
from distconsole.model import requests as ask
from distconsole.model.events import DemoEnded, DemoStep, Event
from distconsole.operations.control import Wish
from distconsole.tui import open_screen
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.widgets.line_table import LineTable
from fakes import scenes
from fakes.agents import AgentNode
from fakes.stage import ATTACH, CONSOLE, LARGE, SMALL, on_screen, on_stage, screen_text, staged
from suite.programs import run_to_end

SCENES = {ask.Attach: scenes.training, ask.Top: scenes.hosts}


class Terminal(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


async def test_quitting_leaves_the_run_and_says_so() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        await pilot.press("ctrl+q")
        await pilot.pause()
        assert not app.is_running
        assert app.session.end() == [scenes.RUN]
    attach = next(c for r, c in zip(stage.asked, stage.controls, strict=True) if r == ATTACH)
    assert attach.asked.wish is Wish.LEAVE


@pytest.mark.parametrize("word", ["quit", "exit", ":q"])
async def test_whatever_fingers_type_to_leave_leaves(word: str) -> None:
    async with on_stage(SCENES) as (app, _, pilot):
        app.query_one(Prompt).offer(word)
        await pilot.press("enter")
        await pilot.pause()
        assert not app.is_running


async def test_the_exit_code_of_attach_is_that_of_the_run_and_its_end_is_said() -> None:
    async with on_stage(SCENES | {ask.Attach: scenes.failing}, request=ATTACH) as (app, _, _):
        pass
    assert app.session.first.exit_code == 1
    (farewell,) = app.session.farewell()
    assert farewell.startswith(f"{scenes.RUN} failed")
    assert farewell.endswith(f"; distconsole report {scenes.RUN}")


async def test_the_demo_goes_from_its_check_to_its_run_by_itself() -> None:
    def demo() -> Iterator[Event]:
        yield DemoStep(number=1, of=2, title="check", look="what is found")
        yield from scenes.checked(ok=True)
        yield from scenes.succeeded()
        yield DemoEnded(run="demo-7", exit_code=0, torch_lacks=("sklearn",))

    request = ask.Demo()
    async with on_stage({ask.Demo: demo}, request=request) as (app, stage, _pilot):
        await stage.settled()
        assert app.main.view == "run"
        assert "test_accuracy 0.9739" in screen_text(app)
        await stage.typed("view check")
        assert app.main.view == "check"
        assert "✓ HEALTHY  nothing wrong in 8 of 10 checks, 2 not done" in screen_text(app)
        assert "the demo is over" in screen_text(app)
    words = "\n".join(app.session.farewell())
    assert "the run demo-7 is kept" in words
    assert "distconsole report last -o demo.html" in words
    assert "needs sklearn:" in words


async def test_the_demo_says_what_to_look_at_above_its_view() -> None:
    def demo() -> Iterator[Event]:
        yield DemoStep(number=1, of=2, title="check", look="what is found")
        yield from scenes.checked(ok=True)

    async with on_stage({ask.Demo: demo}, SMALL, request=ask.Demo()) as (app, stage, _pilot):
        await stage.settled()
        assert screen_text(app).splitlines()[1].strip() == "1 of 2 · check: look at what is found"


async def test_a_slow_screen_loses_nothing_of_the_picture() -> None:
    flood = 20_000

    def many() -> Iterator[Event]:
        yield scenes.plan(2)
        for number in range(flood):
            yield scenes.log(0, f"line {number}")

    app, stage = staged({ask.Attach: many, ask.Top: tuple}, request=ATTACH)
    posted = 0
    post = app.post_message

    def counted(message: object) -> bool:
        nonlocal posted
        posted += 1
        return post(message)  # type: ignore[arg-type]

    app.post_message = counted  # type: ignore[assignment,method-assign]
    async with on_screen(app, stage):
        await stage.settled()
        task = app.session.shown_run()
        assert len(task.log_buffer) == flood
        assert f"line {flood - 1}" in screen_text(app)
    assert posted < flood / 20


async def test_one_rank_that_moves_draws_one_line() -> None:
    app, stage = staged({ask.Attach: partial(scenes.training, 16), ask.Top: tuple}, request=ATTACH)
    async with on_screen(app, stage, LARGE) as pilot:
        await stage.settled()
        table = app.query_one("#ranks", LineTable)
        drawn: list[int] = []
        make = table.render_line

        def counted(y: int) -> object:
            drawn.append(y)
            return make(y)

        table.render_line = counted  # type: ignore[assignment,method-assign]
        task = app.session.shown_run()
        task.fold(scenes.window(3, 600, scenes.MINUTE_LATER))
        app.main.draw_now()
        app.main.redraw()
        await pilot.pause()
        assert set(drawn) == {4}


async def test_a_run_that_this_sitting_follows_is_listed_as_running() -> None:
    app, stage = staged(SCENES | {ask.Runs: scenes.past_runs}, request=CONSOLE)
    async with on_screen(app, stage, SMALL):
        await stage.typed("attach digits")
        await stage.typed("view runs")
        assert "● running" in screen_text(app)
        assert len([request for request in stage.asked if isinstance(request, ask.Runs)]) == 1


HEADLESS = {
    "check": "check --only os --level quick",
    "run --dry-run": "run --dry-run train.py",
    "runs": "runs",
}


@pytest.mark.parametrize("words", HEADLESS.values(), ids=HEADLESS)
def test_a_headless_program_loads_no_screen(words: str, tmp_path: Path, home: Path) -> None:
    node = AgentNode(tmp_path / "node")
    config = home / ".config" / "distconsole" / "distconsole.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'node_dir = "{node.node_dir}"\n')
    program = (
        "import sys; from distconsole.__main__ import run; "
        f"code = run({words.split()!r}); "
        "print(code, 'textual' in sys.modules, file=sys.stderr)"
    )
    (tmp_path / "train.py").write_text("import torch.distributed\n")
    done = run_to_end([sys.executable, "-c", program], cwd=tmp_path)
    node.close()
    assert done.stderr.splitlines()[-1].endswith("False"), done.stderr


def test_the_configuration_is_read_once_until_the_screen_stands(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = user_config_file()
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('theme = "light"\n')
    texts: list[str] = []
    hosts: list[str] = []
    loads = tomllib.loads

    def read(text: str) -> dict[str, object]:
        texts.append(text)
        return loads(text)

    def begun(app: ConsoleApp) -> int:
        hosts.extend(app.session.hosts)
        return 0

    monkeypatch.setattr("tomllib.loads", read)
    monkeypatch.setattr(ConsoleApp, "run", begun)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run(["--hosts", "node1"]) == 0
    assert hosts == ["node1"]
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("terminal", "term", "lacking"),
    [
        (False, "xterm", "a terminal, and stdin is none"),
        (True, "dumb", "TERM=dumb"),
        (True, "", "TERM is not set"),
    ],
)
def test_where_there_is_no_screen_it_says_what_works_without(
    terminal: bool, term: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal if terminal else StringIO
    monkeypatch.setattr(sys, "stdin", stream())
    monkeypatch.setattr(sys, "stdout", stream())
    monkeypatch.setenv("TERM", term)
    with pytest.raises(UsageError, match=re.escape(lacking)) as raised:
        open_screen(ask.Replay(run="digits"), Config())
    assert "distconsole show digits" in raised.value.hint
    with pytest.raises(UsageError) as raised:
        open_screen(CONSOLE, Config())
    assert "top --once" in raised.value.hint
