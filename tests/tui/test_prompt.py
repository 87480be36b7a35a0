"""Claims about the prompt: verbs, mistakes, completion, history, keys that type lines."""

import stat
from pathlib import Path

import pytest
from textual.events import Key

from distconsole.grammar.values import Vocabulary
from distconsole.model import requests as ask
from distconsole.operations.control import ControlCommand, StopReason, Wish
from distconsole.tui.app import DESCRIBED, Everything
from distconsole.tui.chrome import Mode
from distconsole.tui.prompt import completion_index
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.question import REST_SECONDS, Question, RestOfAnswer
from distconsole.tui.theme.themes import NAMES
from fakes import scenes
from fakes.stage import ATTACH, LARGE, keep_run, on_stage, screen_text, until

SCENES = {ask.Attach: scenes.training, ask.Top: scenes.hosts, ask.Check: scenes.checked}


@pytest.mark.parametrize("end", ["enter", "ctrl+j"])  # as typed before the screen was there
async def test_a_typed_verb_is_asked_for_and_its_view_is_shown(end: str) -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.pressed(*":check", "space", *"--only", "space", *"os", end)
        assert ask.Check(only=("os",)) in stage.asked
        assert app.main.view == "check"
        assert "NOT HEALTHY" in screen_text(app)


async def test_what_a_line_leaves_open_the_configuration_says(cwd: Path) -> None:
    config = cwd / "distconsole.toml"
    config.write_text('[run]\nnproc = 4\nsync = true\n[check]\nskip = ["gpu"]\n')
    async with on_stage(SCENES, LARGE) as (app, stage, _pilot):
        await stage.typed("run --nproc 2 train.py")
        await stage.typed("check")
        stage.ended.set()
        run, check = stage.asked[-2:]
        where = ask.Where(hosts="node1,node2")  # the console's own
        assert run == ask.Run("train.py", where=where, nproc="2", sync=True)
        assert check == ask.Check(skip=("gpu",))
        config.write_text("[run\n")
        await stage.typed("check")
        assert f"error: {config}" in screen_text(app)
        assert len(stage.asked) == 3


async def test_a_wrong_verb_is_answered_with_the_nearest_one() -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.typed("chek")
        assert "Did you mean 'check'" in screen_text(app)
        assert [type(request) for request in stage.asked] == [ask.Top]


async def test_the_view_has_the_focus_again_after_a_verb() -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.typed("check")
        assert app.main.mode is Mode.VIEW
        assert app.query_one(Prompt).value == ""


@pytest.mark.usefixtures("utc", "home")
async def test_tab_completes_as_far_as_it_is_certain_and_shows_what_is_possible() -> None:
    async with on_stage(SCENES) as (app, _, pilot):
        prompt = app.query_one(Prompt)
        await pilot.press(*":ch", "tab")
        assert prompt.value == "check "
        await pilot.press("ctrl+u", *"sort", "space", *"wo", "tab")
        assert prompt.value == "sort worst "
        await pilot.press("ctrl+u", *"r", "tab")
        await pilot.pause()
        text = screen_text(app)
        assert all(verb in text for verb in ("run", "runs", "rerun", "replay"))
        words = [each.word for each in app.main.completer.complete("replay digits --at ")]
        assert {"start", "50%", "end"} <= set(words)
        for line in ("--theme ", "top --theme "):
            themes = [each.word for each in app.main.completer.complete(line)]
            assert tuple(themes[:4]) == NAMES == Vocabulary().themes
            assert "textual-dark" in themes


async def test_the_rules_of_checks_are_loaded_for_lines_that_name_checks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []

    def by_id() -> dict[str, str]:
        loaded.append("")
        return {"gpu.ecc": "memory errors"}

    monkeypatch.setattr(completion_index, "checks_by_id", by_id)
    async with on_stage(SCENES | {ask.Run: scenes.training}) as (app, stage, pilot):
        await pilot.press(*":runs", "tab", "ctrl+u")
        await stage.typed("run train.py")
        assert any(isinstance(request, ask.Run) for request in stage.asked)
        assert not loaded
        found = app.main.completer.complete("check --only gpu")
        assert [(each.word, each.help) for each in found] == [
            ("gpu", ""),
            ("gpu.ecc", "memory errors"),
        ]
        assert loaded


async def test_a_run_that_is_followed_completes_by_its_name() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.typed(f"attach {scenes.RUN}")
        await pilot.press(*":stop", "space", "d", "tab")
        assert app.query_one(Prompt).value.strip() == f"stop {scenes.RUN}"


async def test_lines_are_kept_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    async with on_stage(SCENES, history=path) as (_app, stage, _pilot):
        await stage.typed("check")
    assert path.read_text() == "check\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_up_brings_back_the_line_typed_in_an_earlier_sitting(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("check --level full\nruns\n")
    async with on_stage(SCENES, history=path) as (app, _, pilot):
        await pilot.press(*":c", "up")
        assert app.query_one(Prompt).value == "check --level full"
        await pilot.press("down")
        assert app.query_one(Prompt).value == "c"


async def test_a_key_does_what_its_line_does() -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.pressed("f7")
        assert ask.Check() in stage.asked
        assert app.main.view == "check"


async def test_f8_asks_before_it_stops_a_run_and_says_what_it_will_do() -> None:
    keep_run()
    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.typed(f"attach {scenes.RUN}")
        await pilot.press("f8")
        await stage.question()
        text = screen_text(app)
        assert f"Stop {scenes.RUN}" in text
        assert "4 ranks on 2 hosts: node1 (2), node2 (2): SIGTERM to all" in text
        assert not any(isinstance(request, ask.Stop) for request in stage.asked)
        await stage.pressed("enter")
        assert ask.Stop(run=scenes.RUN) in stage.asked
        assert app.main.mode is Mode.VIEW


async def test_a_run_of_this_console_is_stopped_by_its_own_task_which_knows_its_hosts() -> None:
    keep_run()
    async with on_stage(SCENES | {ask.Run: scenes.training}) as (app, stage, pilot):
        await stage.typed("run train.py")
        control = stage.controls[-1]
        await pilot.press("f8")
        await stage.question()
        await pilot.press("enter")
        await until(pilot, lambda: control.asked is not None)
        assert control.asked == ControlCommand(Wish.STOP, StopReason.STOP)
        assert not any(isinstance(request, ask.Stop) for request in stage.asked)
        assert f"stopping {scenes.RUN}" in app.session.transcript.text()


async def test_no_leaves_the_run_alone_and_what_is_behind_goes_on() -> None:
    keep_run()
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        for no, step in (("escape", 699), ("n", 799)):
            app.main.run_command("clear", quiet=True)
            await stage.typed("stop last")
            await stage.question()
            task = app.session.shown_run()
            task.fold(scenes.window(3, step, scenes.MINUTE_LATER))
            app.main.redraw()
            await pilot.pause()
            assert str(step) in screen_text(app)
            await stage.pressed(no)
            assert not app.query_one(Question).waits
            assert not any(isinstance(request, ask.Stop) for request in stage.asked)
            assert "nothing was done" in screen_text(app)


async def test_the_end_of_a_line_that_was_typed_ahead_is_no_answer() -> None:
    keep_run()
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        await stage.typed("stop last")
        await stage.question()
        await pilot.press("x")
        assert app.main.mode is Mode.ASK, "no line was begun: what is no answer is nothing"
        app.query_one(Question)._before = app.query_one(Prompt)
        for each in (*"top --once --where any", "enter"):
            name = {" ": "space", "-": "minus"}.get(each, each)
            app.post_message(Key(name, each if len(each) == 1 else None))
        await until(pilot, lambda: ask.Top(once=True, only="any") in stage.asked)
        assert app.query_one(Question).waits
        assert "yes: stop it" in screen_text(app)
        assert not any(isinstance(request, ask.Stop) for request in stage.asked)
        await stage.typed("yes")
        assert any(isinstance(request, ask.Stop) for request in stage.asked)


@pytest.mark.parametrize("where", ["prompt", "view"])
async def test_an_answer_typed_in_full_leaves_nothing_behind(where: str) -> None:
    keep_run()
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        prompt, stopped = app.query_one(Prompt), 0
        for word, stops, rest in (
            ("no", False, "r"),
            ("n", False, "r"),
            ("no", False, ""),
            ("y", True, "export"),
            ("Yes", True, ""),
        ):
            prompt.value = ""
            if where == "prompt":
                prompt.focus()
            else:
                app.main.focus_view()
            app.main.run_command("stop last")
            await stage.question()
            for each in (*word, *(rest or ["enter"])):
                app.post_message(Key(each, each if len(each) == 1 else None))
            await pilot.pause()
            await stage.settled()
            assert not app.query_one(Question).waits
            stopped += stops
            assert sum(isinstance(each, ask.Stop) for each in stage.asked) == stopped, word
            if where == "prompt":
                assert prompt.value == rest
            elif not rest:
                assert app.main.mode is Mode.VIEW
            await pilot.press("ctrl+u", "escape")
            app.main.show_view("run")


async def test_what_comes_long_after_an_answer_is_another_line() -> None:
    rest = RestOfAnswer()
    first = Key("n", "n")
    rest.begin(first)
    late = Key("o", "o")
    late.time = first.time + REST_SECONDS + 0.1
    assert rest.take(late) == [late]


async def test_f8_offers_nothing_when_no_run_goes_on() -> None:
    async with on_stage(SCENES | {ask.Attach: scenes.succeeded}) as (app, stage, pilot):
        await stage.typed(f"attach {scenes.RUN}")
        await pilot.press("f8")
        assert app.query_one(Prompt).value == ""


async def test_ctrl_c_stops_nothing_and_says_what_does() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        await stage.pressed("ctrl+c")
        assert f"F8 stops {scenes.RUN}" in screen_text(app)
        assert all(control.asked is None for control in stage.controls)
        await pilot.press(*":stop", "ctrl+c")
        assert app.query_one(Prompt).value == ""


async def test_the_palette_finds_what_it_says_of_a_verb_behind_what_is_called_so() -> None:
    async with on_stage(SCENES) as (app, _, _):
        everything = Everything(app.screen)
        says = {each.title: each.help for each in app.get_system_commands(app.screen)}
        assert {"stop run (F8)", "check", "run", "demo", "sort"} <= says.keys()
        followed = [str(hit.text) async for hit in everything.search("Follow a run")]
        assert "Follow" in says["attach"]
        assert "attach" in followed
        assert "heat" in [str(hit.text) async for hit in everything.search("heat map")]
        named = [hit async for hit in everything.search("check")]
        best = max(named, key=lambda hit: hit.score)
        assert str(best.text) == "check"
        assert {hit.score for hit in named if "check" not in str(hit.text)} <= {DESCRIBED}
        assert [hit async for hit in everything.search("no such thing")] == []
