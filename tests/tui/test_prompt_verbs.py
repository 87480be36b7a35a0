"""Claims about the list above the prompt, jobs and their end, questions, aliases, keys and the start-up file."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from textual.events import Key, Paste

from distconsole.config.load import read_config
from distconsole.config.schema import Config
from distconsole.model import requests as ask
from distconsole.model.events import Event, Narration, TextMade
from distconsole.model.run_events import PlanMade, RankState
from distconsole.tui.app import ConsoleApp, wants_startup
from distconsole.tui.jobs import Ending
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.question import Question
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.views.run import RunView
from fakes import scenes
from fakes.stage import ATTACH, LARGE, on_screen, on_stage, screen_text, staged, until

SCENES = {ask.Attach: scenes.training, ask.Top: scenes.hosts, ask.Check: scenes.checked}
HOSTILE = "\x1b[2J\u202e\u05e9\u05dc\u05d5\u05dd 漢字 [bold]x[/red] e\u0301 " + "x" * 20_000


class Slow:
    """A check that goes on until it is let go, or nobody waits for it any more."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.closed = False

    def __call__(self) -> Iterator[Event]:
        try:
            while not self.go.wait(0.01):
                yield Narration(text="still at it")
        finally:
            self.closed = True


def prompt_of(app: ConsoleApp) -> Prompt:
    return app.query_one(Prompt)


async def test_tab_walks_through_a_list_that_says_what_is_what() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        prompt = prompt_of(app)
        await pilot.press(*":check --level=", "tab")
        await pilot.pause()
        assert "3  ·  Tab, arrows choose" in screen_text(app)
        for key, value in (
            ("tab", "quick"),
            ("down", "standard"),
            ("tab", "full"),
            ("tab", "quick"),
        ):
            await pilot.press(key)
            assert prompt.value == f"check --level={value}"
        await pilot.press("shift+tab", "enter")
        assert prompt.value == "check --level=full "
        assert not any(isinstance(request, ask.Check) for request in stage.asked)
        await pilot.press(*"--o", "tab", "g", "tab", "tab", "tab", "escape")
        assert prompt.value == "check --level=full --only gpu"
        await pilot.press("ctrl+u", *"che", "tab", "home", *"x")
        assert prompt.value == "xcheck "


async def test_what_is_typed_narrows_the_list_and_a_click_takes_one() -> None:
    async with on_stage(SCENES) as (app, _, pilot):
        await pilot.press(*":r", "tab", "e")
        await pilot.pause()
        offered = str(app.query_one("#offered").render())
        assert "rerun" in offered
        assert "runs" not in offered
        assert await pilot.click("#offered", offset=(3, 0))
        assert prompt_of(app).value == "repeat "


async def test_the_history_is_searched_as_one_types(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("run a.py --lr 1\ncheck --level full\nrun b.py\n")
    async with on_stage(SCENES, history=path) as (app, stage, pilot):
        prompt = prompt_of(app)
        await pilot.press(*":half", "ctrl+r")
        await pilot.pause()
        assert "history: 0" in screen_text(app)
        await pilot.press("ctrl+u", "ctrl+r", *"run py")
        await pilot.pause()
        assert "history: 1 of 2" in screen_text(app)
        await pilot.press("ctrl+r", "enter")
        assert prompt.value == "run a.py --lr 1"
        await pilot.press("ctrl+r", *"zzz", "escape")
        assert prompt.value == "run a.py --lr 1"
        assert len(stage.asked) == 1


async def test_the_right_word_is_one_key_away() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        for wrong, right in (
            ("chek --strict", "check --strict"),
            ("check --leval quick", "check --level quick"),
            ("sort uitl", "sort util"),
            ("filtr x", "filter x"),
            ("view clutser", "view cluster"),
            ("cancel 9", ""),
        ):
            app.main.run_command("clear", quiet=True)
            await stage.typed(wrong)
            assert "error:" in screen_text(app), wrong
            await pilot.press("tab")
            assert prompt_of(app).value == right


async def test_a_check_is_cancelled_by_ctrl_c_while_the_run_goes_on() -> None:
    slow = Slow()
    app, stage = staged(SCENES | {ask.Check: slow}, request=ATTACH, age_seconds=0)
    async with on_screen(app, stage) as pilot:
        prompt = prompt_of(app)
        app.main.run_command("check --level full")
        await until(pilot, lambda: ask.Check(level=ask.Level.FULL) in stage.asked)
        app.main.run_command("jobs")
        app.main.redraw()
        await pilot.pause()
        text = screen_text(app)
        assert "2 running" in text
        assert "attach" in text
        assert "check --level full" in text
        await pilot.press("ctrl+c")
        await until(pilot, lambda: slow.closed)
        app.main.redraw()
        await pilot.pause()
        assert "1 running" in screen_text(app)
        assert "cancelled: check --level full" in app.session.transcript.text()
        await pilot.press("ctrl+c")
        app.main.redraw()
        assert "nothing was interrupted" in app.session.transcript.text()
        await stage.typed("cancel 1")
        assert prompt.placeholder == f"Tab: stop {scenes.RUN}"
        assert prompt.has_focus
    run = next(c for r, c in zip(stage.asked, stage.controls, strict=True) if r == ATTACH)
    assert run.asked.wish == "leave"  # by the end of the test


async def test_a_run_of_elsewhere_whose_plan_nobody_here_knows_is_not_waited_for() -> None:
    told = [event for event in scenes.training() if not isinstance(event, PlanMade)]
    app, stage = staged(SCENES | {ask.Attach: lambda: told}, request=ATTACH, age_seconds=0)
    async with on_screen(app, stage):
        await stage.settled()
        job = next(each for each in app.main.dispatcher.prompt_verbs.jobs if each.task.is_run)
        assert job.ending is Ending.NOT
        assert not job.way_out


async def test_verbs_that_speak_at_once_stand_under_their_own_headings() -> None:
    first = threading.Event()

    def listing() -> Iterator[Event]:
        yield TextMade(text="early")
        first.wait(10)
        yield TextMade(text="late")

    async with on_stage(SCENES | {ask.Why: listing}, LARGE) as (app, stage, pilot):
        app.main.run_command("why last")
        await until(pilot, lambda: "early" in app.session.transcript.text())
        app.main.run_command("check")
        await until(pilot, lambda: "not healthy" in app.session.transcript.text())
        first.set()
        await stage.settled()
        await until(pilot, lambda: "late" in app.session.transcript.text())
        lines = app.session.transcript.text().splitlines()
        assert lines[lines.index("late") - 1] == "[1] why last"
        assert lines[lines.index("early") - 1] == "> why last"


async def test_hosts_are_asked_for_jobs_whatever_run_is_shown() -> None:
    app, stage = staged(SCENES | {ask.Why: tuple, ask.Watch: tuple}, request=ATTACH)
    async with on_screen(app, stage):
        await stage.settled()
        asked = []
        for line in ("why", "why --hosts", "watch --hosts a"):
            await stage.typed(line)
            asked.append(app.session.tasks[-1].request)
        await stage.settled()
        shown, hosts, followed = asked
        assert isinstance(shown, ask.Why)
        assert shown.run
        assert hosts == ask.Why(run="", jobs=True)
        assert followed == ask.Watch(where=ask.Where(hosts="a"))


def found_job() -> list[Event]:
    made = msgspec.structs.replace(scenes.plan(1), found=True, run="torchrun-train.py")
    view = msgspec.structs.replace(scenes.rank(0, RankState.RUNNING), run=made.run, pid=4711)
    return [made, view]


async def test_a_job_that_nobody_prepared_is_asked_by_its_hosts_and_offers_no_key_of_a_run() -> (
    None
):
    app, stage = staged(SCENES | {ask.Watch: found_job, ask.Why: tuple})
    async with on_screen(app, stage, LARGE):
        await stage.typed("watch --hosts a")
        await stage.typed("view run")
        app.query_one(RunView).focus()
        await stage.settled()
        keys = screen_text(app).splitlines()[-1]
        assert " W why " in keys
        assert not [label for label in ("stop run", "trace", "export") if label in keys]
        await stage.pressed("f8", "T", "e")
        assert "T (trace): nothing here to do that to" in app.session.transcript.text()
        await stage.pressed("W")
        assert app.session.tasks[-1].request == ask.Why(
            run="", jobs=True, pid=4711, where=ask.Where(hosts="a")
        )


async def test_what_was_said_is_saved_and_a_file_is_not_overwritten_unasked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "said.txt"
    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.typed("check")
        await stage.typed(f"save {path}")
        await until(pilot, path.exists)
        await until(pilot, lambda: "saved" in app.session.transcript.text())
        assert "\x1b" not in path.read_text()
        assert path.read_text().startswith("> check\n")
        assert path.stat().st_mode & 0o777 == 0o600
        path.write_text("mine")
        for line in (f"save {path}", f"check --junit {path}", f"screenshot {path}"):
            await stage.typed(line)
            await stage.question()
            assert "(4 bytes) was written" in screen_text(app).replace("\n", "")
            await pilot.press("n")
        assert path.read_text() == "mine"
        assert ask.Check(junit=str(path)) not in stage.asked
        await stage.typed(f"save {path} --yes")
        await until(pilot, lambda: path.read_text() != "mine")


async def test_a_verb_in_a_thread_asks_without_taking_the_keys() -> None:
    answers = []

    async with on_stage(SCENES) as (app, stage, pilot):
        task = app.session.start(ask.Why(run="last"), "setup")
        work = threading.Thread(
            target=lambda: answers.append(app.session.confirm(task, "Change x?"))
        )  # type: ignore[misc]
        work.start()
        await until(pilot, lambda: app.query_one(Question).waits)
        await pilot.press("y")
        assert answers == []
        await stage.typed("yes")
        await until(pilot, lambda: answers == [True])
        work.join()


async def test_keys_and_aliases_of_the_configuration_work_and_are_shown(tmp_path: Path) -> None:
    text = '[keys]\nf7 = {line = "quick {host}", label = "look"}\nf12 = "filter "\n[aliases]\nquick = "check --level quick --hosts $1"\nfull = "check --level full"\n'
    path = tmp_path / "distconsole.toml"
    path.write_text(text)
    shortcuts = Shortcuts(read_config(path), tmp_path / "aliases")
    app, stage = staged(SCENES, shortcuts=shortcuts)
    async with on_screen(app, stage, LARGE) as pilot:
        assert "F7 look" in screen_text(app)
        await stage.pressed("f7")
        where = ask.Where(hosts="node1")
        assert ask.Check(where=where, level=ask.Level.QUICK) in stage.asked
        await pilot.press("f12")
        assert prompt_of(app).value == "filter "
        await pilot.press("ctrl+u")
        await stage.typed("alias night = check --level full --budget 60")
        await stage.typed("alias wrong = foo")
        assert "'wrong' begins with 'foo', which is no verb" in app.session.transcript.text()
        await stage.typed("night")
        assert ask.Check(level=ask.Level.FULL, budget_seconds=60.0) in stage.asked
        await stage.pressed("f1")
        assert "quick {host}" in screen_text(app)
        help_text = str(app.query_one("#help Static").render())
        assert "check --level full --budget 60" in help_text


async def test_the_start_up_file_is_done_and_its_errors_name_their_line(tmp_path: Path) -> None:
    startup = tmp_path / "startup"
    startup.write_text(
        f"# mine\nfilter util<101\nchek\nshow {HOSTILE}\ncheck --level quick\nwatch zzz>1\n"
    )
    async with on_stage(SCENES, startup=startup) as (app, stage, pilot):
        await until(pilot, lambda: ask.Check(level=ask.Level.QUICK) in stage.asked)
        said = app.session.transcript.text()
        assert f"error: {startup}:3: There is no verb 'chek'. Did you mean 'check'?" in said
        assert f"error: {startup}:6: " in said
        await stage.typed("zzz")
        assert "error: There is no verb 'zzz'" in app.session.transcript.text()


async def test_a_run_that_was_asked_for_stays_in_view_whatever_the_start_up_file_does(
    tmp_path: Path,
) -> None:
    startup = tmp_path / "startup"
    startup.write_text("watch state=failed\nview runs\n")
    async with on_stage(SCENES, request=ATTACH, startup=startup) as (app, _, pilot):
        await until(pilot, lambda: len(app.main.watches.kept) == 1)
        assert app.main.view == "run"


@pytest.mark.parametrize(
    ("request_", "configured", "wanted"),
    [
        (ask.OpenConsole(), None, True),
        (ATTACH, None, True),
        (ask.Top(startup=False), True, False),
        (ask.Demo(), False, False),
        (ask.Replay(run="r", startup=True), False, True),
    ],
)
def test_the_start_up_file_is_done_wherever_the_console_opens(
    request_: ask.Request, configured: bool | None, wanted: bool
) -> None:
    assert wants_startup(request_, Config(startup=configured)) is wanted


async def test_lines_typed_faster_than_they_are_done_stay_lines(tmp_path: Path) -> None:
    async with on_stage(SCENES, history=tmp_path / "history") as (app, stage, pilot):
        for line in ("check --level quick", "show a", "show b"):
            for each in f":{line}":
                name = {" ": "space", ":": "colon"}.get(each, each)
                app.post_message(Key(name, each))
            app.post_message(Key("enter", None))
        await until(pilot, lambda: ask.Show(run="b") in stage.asked)
        assert stage.asked[-3:] == [
            ask.Check(level=ask.Level.QUICK),
            ask.Show(run="a"),
            ask.Show(run="b"),
        ]
        assert prompt_of(app).value == ""


async def test_whatever_is_pasted_is_one_harmless_line(tmp_path: Path) -> None:
    async with on_stage(SCENES, history=tmp_path / "history") as (app, stage, pilot):
        prompt = prompt_of(app)
        app.post_message(Paste("torchrun \\\n  --nnodes 2 \\\n  t.py\nrm -rf /\n"))
        await pilot.pause()
        assert prompt.value == "torchrun    --nnodes 2    t.py"
        assert "1 more line left out" in screen_text(app)
        await pilot.press("ctrl+u")
        prompt.post_message(Paste(HOSTILE))
        await pilot.pause()
        assert "\x1b" not in prompt.value
        assert "\u202e" not in prompt.value
        await stage.pressed("tab", "ctrl+r", "escape", "enter")
        assert "error:" in app.session.transcript.text()
        assert app.is_running
