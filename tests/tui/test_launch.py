"""Claims about the launch form: it and the prompt are one request, and it starts what that says, once."""

import random
import shlex
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from textual import events
from textual.css.match import match
from textual.pilot import Pilot
from textual.widgets import Button, Checkbox, Input, Select

from distconsole.errors import ConsoleError, PlanError, UnreachableError
from distconsole.grammar.drafts import draft_of, launch_fields
from distconsole.grammar.verbs import parse_line
from distconsole.model import requests as ask
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Event, LaunchKept, ScriptSought
from distconsole.model.names import HostName
from distconsole.model.options import Heading, heading_of
from distconsole.model.run_events import PlanMade
from distconsole.operations import Control
from distconsole.tui.app import ConsoleApp
from distconsole.tui.chrome import Mode
from distconsole.tui.launch_form.form import LaunchForm
from distconsole.tui.launch_form.model import MOST_LOOKS, QUIET_BEATS, LaunchFormModel, PlanPreview
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.views.launch import IN_SIGHT, HostTable, Section
from distconsole.tui.views.launch_fields import FieldRow
from fakes import scenes
from fakes.any_launch import any_plain_request
from fakes.stage import (
    LARGE,
    MIDDLE,
    SMALL,
    Stage,
    on_screen,
    on_stage,
    screen_text,
    staged,
    until,
    write,
)

SCENES = {
    ask.Top: scenes.hosts,
    ask.Foresee: scenes.foreseen,
    ask.Run: scenes.training,
    ask.Launches: scenes.launches,
    ask.Runs: scenes.past_runs,
}


def field(app: ConsoleApp, name: str) -> FieldRow:
    return app.query_one(f"#field-{name.replace('_', '-')}", FieldRow)


async def opened(app: ConsoleApp, stage: Stage, pilot: Pilot[int], line: str = "") -> None:
    """Go to the form with ``line`` in the prompt."""
    app.query_one(Prompt).offer(line)
    await pilot.press("ctrl+n")
    await stage.planned()


def looked(stage: Stage) -> list[ask.Run]:
    return [each.run for each in stage.asked if isinstance(each, ask.Foresee)]


def launched(stage: Stage) -> list[ask.Run]:
    return [each for each in stage.asked if isinstance(each, ask.Run)]


async def test_what_is_typed_at_the_prompt_fills_the_form_in_and_back() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await opened(
            app, stage, pilot, "run --nproc 2 --env A='b c' --no-sync -m pkg.train --lr 3"
        )
        assert field(app, "nproc").query_one(Input).value == "2"
        assert field(app, "env").query_one(Input).value == "'A=b c'"
        assert field(app, "sync").query_one(Select).value == "no"
        assert field(app, "module").query_one(Checkbox).value is True
        assert field(app, "script").query_one(Input).value == "pkg.train"
        assert field(app, "arguments").query_one(Input).value == "--lr 3"
        assert field(app, "script").editor.has_focus
        assert app.main.mode is Mode.FORM
        await write(pilot, "2")
        await pilot.press("tab")
        await write(pilot, " -v")
        await pilot.pause()
        line = app.query_one(Prompt).value
        assert line == "run --nproc 2 --module --env 'A=b c' --no-sync pkg.train2 --lr 3 -v"
        app.query_one(Prompt).offer("run --nproc 3 x.py")
        await pilot.pause()
        assert field(app, "script").query_one(Input).value == "x.py"
        assert field(app, "sync").query_one(Select).value is Select.NULL
        assert field(app, "module").query_one(Checkbox).value is False


@pytest.mark.parametrize("onward", ["tab", "enter"])
async def test_keys_that_come_at_once_go_into_the_fields_that_a_person_meant(onward: str) -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        for words in ("run qc b", "run qcqc bb"):  # q and c leave the form, and check, elsewhere
            for key in ("ctrl+n", "q", onward, "b", "shift+tab", "end", "c"):
                app.post_message(events.Key(key, key if len(key) == 1 else None))
            await until(pilot, lambda words=words: app.query_one(Prompt).value == words)
            await stage.pressed("escape", "q")
        assert not [each for each in stage.asked if isinstance(each, ask.Check)]


async def test_form_and_line_are_the_same_request_whatever_is_in_it() -> None:
    dice = random.Random(5)
    async with on_stage(SCENES, LARGE) as (app, stage, pilot):
        await opened(app, stage, pilot)
        for _ in range(6):
            request = any_plain_request(dice)
            app.query_one(Prompt).value = draft_of(request).line()
            await pilot.pause()
            app.main.views.launch.draw()
            assert app.query_one(Prompt).value == draft_of(request).line()
            assert {each.field.name: each.text for each in app.query(FieldRow)} == {
                each.name: app.main.views.launch.model.draft.text(each.name)
                for each in launch_fields()
            }
            field(app, "nic").query_one(Input).value = "eth 7"
            await pilot.pause()
            await pilot.pause()
            made = parse_line(app.query_one(Prompt).value)
            assert isinstance(made, ask.Run)
            assert made == parse_line(draft_of(made).line())
            assert (made.nic, made.script, made.arguments, made.env, made.where) == (
                "eth 7",
                request.script,
                request.arguments,
                request.env,
                request.where,
            )


async def test_every_option_of_run_is_in_the_form_as_in_the_help_and_the_usual_ones_in_sight() -> (
    None
):
    async with on_stage(SCENES, SMALL) as (app, stage, pilot):
        await opened(app, stage, pilot)
        rows = [each.field.name for each in app.query(FieldRow)]
        assert sorted(rows) == sorted(each.name for each in launch_fields())
        shown = [each for each in app.query(FieldRow) if each.region.height and each.is_on_screen]
        assert [each.field.name for each in shown] == list(IN_SIGHT)
        text = screen_text(app)
        for words in ("Start", "[x] node1", "[x] node2", f"{len(rows) - len(IN_SIGHT)} more"):
            assert words in text
        await pilot.click("#launch-more")
        await stage.settled()
        titles = [each.title_text.strip("─ ").split(" ─")[0] for each in app.query(Section)]
        headings = [each.value.capitalize() for each in Heading][
            1:-1
        ]  # plain options; the console's
        assert [title.partition(" 2 of 2")[0] for title in titles] == ["Script", *headings]
        for section in app.query(Section):
            (heading,) = {heading_of(row.field.name) for row in section.query(FieldRow)}
            name = "Script" if heading is Heading.OPTIONS else heading.value.capitalize()
            assert section.title_text.lstrip("─ ").startswith(name)
        field(app, "slurm").editor.focus()
        await stage.settled()
        assert field(app, "slurm").region.height == 1
        for _ in range(50):
            await pilot.pause(0.05)
            if "slurm" in screen_text(app):
                break
        assert "slurm-login" in screen_text(app)


@pytest.mark.parametrize(
    "size",
    [
        (60, 15),
        *(pytest.param(size, marks=pytest.mark.campaign) for size in (SMALL, MIDDLE)),
        LARGE,
    ],
    ids=str,
)
async def test_script_start_and_how_it_stands_are_in_sight_at_every_size(
    size: tuple[int, int],
) -> None:
    async with on_stage(SCENES, size) as (app, stage, pilot):
        await opened(app, stage, pilot, "run train.py")
        text = screen_text(app)
        for words in (
            "▲ READY  4 ranks by torch on 2 hosts; GPUs in use on",
            " train.py",
            "Start ^S",
            "What will be done",
        ):
            assert words in text, words
        assert ("distconsole run --hosts node1,node2 train.py" in text) == (size == LARGE)
        assert ("horovod: Horovod is missing on node2" in text) == (size == LARGE)
        assert ("tools.prepare" in text) == (size == LARGE), "the last launches have room there"


async def test_the_plan_follows_what_is_typed() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await opened(app, stage, pilot)
        await write(pilot, "train")
        await stage.planned()
        assert looked(stage)[-1].script == "train"
        text = screen_text(app)
        for words in (
            "4 ranks by torch on 2 hosts; GPUs in use on node1, node2: the script",
            "the ranks meet at 10.0.0.1",
            "node2 ranks 2-3",
            "/usr/bin/python3 -u /home/me/train.py",
        ):
            assert words in text
        assert looked(stage)[-1].where.hosts == "node1,node2"


async def test_a_field_that_is_empty_shows_what_is_taken_now() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await opened(app, stage, pilot)
        names = ("nproc", "nnodes", "hosts", "env", "log_limit", "workdir", "notify")
        told = {name: field(app, name).editor for name in names}
        before = {name: each.placeholder for name, each in told.items() if isinstance(each, Input)}
        assert before == {
            "nproc": "one per GPU, else 1",
            "nnodes": "all",
            "hosts": "node1,node2",
            "env": "none, such as SEED=7 NCCL_DEBUG=INFO",
            "log_limit": "1GiB",
            "workdir": "this folder",
            "notify": "bell,desktop",
        }
        await write(pilot, "train")
        await stage.planned()
        now = {name: each.placeholder for name, each in told.items() if isinstance(each, Input)}
        assert now == before | {"nproc": "2", "nnodes": "2"}
        assert "auto: torch" in screen_text(app)


async def test_what_the_configuration_says_of_the_hosts_is_shown_as_what_holds() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, pilot):
        await opened(app, stage, pilot)
        form = app.query_one(LaunchForm)
        names = ("cluster", "ssh_config", "python", "nic", "hosts")

        def shown() -> dict[str, str]:
            return {name: text_taken(field(app, name)) for name in names}

        assert shown()["cluster"] == "none"
        hosts = [
            Host(HostName(name), python="/opt/venv/bin/python", nic=f"eth{number}")
            for number, name in enumerate(("node1", "node2"))
        ]
        form.cluster = lambda: Cluster(tuple(hosts), "lab.ssh", "lab")  # type: ignore[method-assign]
        form.draw()
        assert shown() == {
            "cluster": "lab",
            "ssh_config": "lab.ssh",
            "python": "/opt/venv/bin/python",
            "nic": "differs by host",
            "hosts": "node1,node2",
        }
        form.model.take("run --hosts elsewhere train")
        form.draw()
        assert shown()["cluster"] == "none", "that is no host of the cluster"


def text_taken(row: FieldRow) -> str:
    editor = row.editor
    return editor.placeholder if isinstance(editor, Input) else str(getattr(editor, "prompt", ""))


def cyclic() -> Iterator[Event]:
    """A plan that gives each host every other rank, as Slurm does when it is asked to."""
    for event in scenes.foreseen(6):
        if isinstance(event, PlanMade):
            hosts = zip(event.hosts, ((0, 2, 4), (1, 3, 5)), strict=False)
            dealt = tuple(msgspec.structs.replace(host, ranks=ranks) for host, ranks in hosts)
            event = msgspec.structs.replace(event, hosts=dealt)
        yield event


async def test_ranks_of_a_host_that_are_no_row_are_named_one_by_one() -> None:
    async with on_stage(SCENES | {ask.Foresee: cyclic}, MIDDLE) as (app, stage, pilot):
        await opened(app, stage, pilot, "run train.py")
        text = screen_text(app)
        assert "node1 ranks 0,2,4" in text
        (row,) = (each for each in text.splitlines() if "[x] node2" in each)
        assert "1,3,5" in row.split()


def test_a_plan_is_made_when_typing_rests_and_few_hang_at_once() -> None:
    begun: list[PlanPreview] = []
    held = threading.Event()

    def hang(_request: ask.Foresee, _control: Control) -> Iterator[Event]:
        held.wait(10)
        yield scenes.plan(2)

    def look(line: str, launchers: bool) -> PlanPreview:
        begun.append(PlanPreview(line, parse_line, hang, launchers=launchers))
        return begun[-1]

    model = LaunchFormModel(look, lambda: (), lambda _host: None)
    for letters in ("t", "tr", "tra"):
        model.edit("script", letters)
        model.tick()
    assert begun == []
    for number in range(2 * MOST_LOOKS):
        model.edit("name", f"n{number}")
        for _ in range(QUIET_BEATS):
            model.tick()
    assert [each.line for each in begun] == [f"run --name n{n} tra" for n in range(MOST_LOOKS)]
    model.want_start()
    assert not model.tick(), "nothing starts before it is known to be right"
    held.set()
    while not model.tick():
        begun[-1].join(10)
    assert begun[-1].line == model.line
    assert model.trouble is None


async def test_a_plan_that_nobody_waits_for_any_more_is_left_and_changes_nothing() -> None:
    held = threading.Event()

    def slow() -> Iterator[Event]:
        held.wait(10)
        yield scenes.plan(16)

    async with on_stage(SCENES | {ask.Foresee: slow}) as (app, stage, pilot):
        app.query_one(Prompt).offer("run first.py")
        await pilot.press("ctrl+n")
        while not looked(stage):
            await pilot.pause(0.02)
        stage.scenes[ask.Foresee] = scenes.foreseen
        app.query_one(Prompt).offer("run second.py")
        await pilot.pause()
        while len(looked(stage)) < 2:
            await pilot.pause(0.02)
        control = stage.controls[[type(each) for each in stage.asked].index(ask.Foresee)]
        assert control.asked is not None
        held.set()
        await stage.planned()
        assert "4 ranks by torch" in screen_text(app)


def _unreachable() -> Iterator[Event]:
    raise UnreachableError("1 of 2 hosts cannot be reached: nod1: no such name", "")
    yield


def _lacking() -> Iterator[Event]:
    yield scenes.plan(4)
    yield ScriptSought(script="/a/trian.py", missing=("node2",), near="/a/train.py")


def _refused() -> Iterator[Event]:
    raise PlanError("--nnodes 3 means 3 hosts, and there are 2", "give --hosts")
    yield


WRONG = {
    "choice": ("run --launcher tochrun x.py", scenes.foreseen, "launcher", "did you mean torchrun?"),
    "number": ("run --nproc 0 x.py", scenes.foreseen, "nproc", "is not a whole number from 1"),
    "hosts": ("run --hosts nod1,node2 x.py", _unreachable, "hosts", "did you mean node1?"),
    "script": ("run /a/trian.py", _lacking, "script", "did you mean /a/train.py?"),
    "plan": ("run --nnodes 3 x.py", _refused, "nnodes", "means 3 hosts, and there are 2"),
    "nothing": ("run --nproc 2", scenes.foreseen, "script", "which script is to run?"),
    "quote": ("run x.py --env 'A=b", scenes.foreseen, "", "close the quote"),
    "option": ("run --nrpoc 2 x.py", scenes.foreseen, "", "--nproc"),
}  # fmt: skip


async def test_what_is_wrong_stands_at_its_field_and_nothing_starts() -> None:
    async with on_stage(SCENES, MIDDLE) as (app, stage, pilot):
        for what, (line, scene, name, words) in WRONG.items():
            stage.scenes[ask.Foresee] = scene
            app.main.run_command("clear", quiet=True)
            await opened(app, stage, pilot, line)
            assert words in " ".join(screen_text(app).split()), what
            assert "not started" not in screen_text(app)
            wrong = [each.field.name for each in app.query(FieldRow) if each.has_class("-wrong")]
            assert wrong == ([name] if name else []), what
            if name:
                assert field(app, name).region.height == 2, "a folded field opens for its mistake"
            assert app.query_one("#launch-start", Button).disabled, what
            await pilot.press("ctrl+s")
            await stage.planned()
            assert app.main.view == "launch"
            assert launched(stage) == [], what
            assert "not started" in screen_text(app), what
            assert app.query_one(Prompt).value == line


async def test_a_host_that_is_away_is_said_at_once_and_left_out_by_a_key() -> None:
    app, stage = staged(SCENES | {ask.Top: partial(scenes.hosts, lost="node2")})
    async with on_screen(app, stage) as pilot:
        await opened(app, stage, pilot, "run train.py")
        assert looked(stage) == [], "a dead host is not waited for"
        assert "not reached: node2: connection refused" in " ".join(screen_text(app).split())
        app.query_one(HostTable).focus()
        await pilot.press("down", "space")
        await stage.planned()
        assert app.query_one(Prompt).value == "run --hosts node1 train.py"
        assert [each.where.hosts for each in looked(stage)] == ["node1"]
        await pilot.press("a")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run --hosts '' train.py"
        await pilot.press("a")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run --hosts node1 train.py", "who is away stays out"


async def test_slots_that_the_line_gives_stay_when_hosts_are_chosen() -> None:
    app, stage = staged(SCENES, request=ask.OpenConsole(where=ask.Where(hosts="a:2,b,c@d:4")))
    async with on_screen(app, stage) as pilot:
        await opened(app, stage, pilot, "run --hosts a:3,b,c@d:4 x.py")
        app.query_one(HostTable).focus()
        await pilot.press("down", "space")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run --hosts a:3,c@d:4 x.py"
        await pilot.press("space")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run --hosts a:3,b,c@d:4 x.py"
        app.query_one(Prompt).offer("run x.py")
        await pilot.pause()
        app.query_one(HostTable).focus()
        await pilot.press("space")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run --hosts a:2,c@d:4 x.py"
        await pilot.press("space")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run x.py"


async def test_a_port_that_only_the_host_file_gives_goes_with_its_host(cwd: Path) -> None:
    (cwd / "distconsole.toml").write_text("[hosts.b]\nport = 23\n")
    hosts = cwd / "hosts"
    hosts.write_text("a slots=2 port=2222\nb\nc user=me\n")
    app, stage = staged(
        SCENES, request=ask.OpenConsole(where=ask.Where(hostfile=str(hosts), python="/p"))
    )
    async with on_screen(app, stage) as pilot:
        await opened(app, stage, pilot, "run x.py")
        app.query_one(HostTable).focus()
        await pilot.press("down", "down", "space")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run --hosts a:2/2222,b x.py"
        app.query_one(Prompt).offer("run --hosts a,c x.py")
        await stage.pressed("enter")
        (run,) = [each for each in stage.asked if isinstance(each, ask.Run)]
        assert run.where.hosts == "a/2222,me@c"
        with app.session(ask.Where(hosts="a,z")) as session:
            reached = [(host.name, host.port, host.python) for host in session.cluster.hosts]
        assert reached == [("a", 2222, "/p"), ("z", None, "/p")]


@pytest.mark.parametrize(
    "way", ["key", pytest.param("button", marks=pytest.mark.campaign), "prompt"]
)
async def test_a_start_starts_exactly_the_line_and_only_once(way: str) -> None:
    app, stage = staged(SCENES)
    line = "run --nproc 2 --name 'a b' train.py --lr 3"
    async with on_screen(app, stage) as pilot:
        await opened(app, stage, pilot, line)
        for _ in range(2):
            if way == "key":
                await pilot.press("ctrl+s")
            elif way == "button":
                app.query_one("#launch-start", Button).press()
            else:
                app.query_one(Prompt).focus()
                await pilot.press("enter")
        await stage.settled()
        assert app.main.view == "run"
        asked = parse_line(line)
        assert isinstance(asked, ask.Run)
        (request,) = launched(stage)
        assert request.where.hosts == "node1,node2"
        assert msgspec.to_builtins(request) | {"where": None} == msgspec.to_builtins(asked) | {
            "where": None
        }
        assert app.query_one(Prompt).value == ""
        await pilot.press(":", "up")
        assert app.query_one(Prompt).value == line, "the history has it"


async def test_a_start_waits_for_the_plan_and_an_edit_takes_it_back() -> None:
    held = threading.Event()

    def slow() -> Iterator[Event]:
        held.wait(10)
        yield from scenes.foreseen()

    async with on_stage(SCENES | {ask.Foresee: slow}) as (app, stage, pilot):
        for change in (True, False):
            app.query_one(Prompt).offer(f"run train{change}.py")
            await pilot.press("ctrl+n")
            await pilot.pause()
            await pilot.press("ctrl+s")
            await pilot.pause(0.3)
            assert "starts when the plan stands" in " ".join(screen_text(app).split())
            assert launched(stage) == []
            if change:
                await pilot.press("x")
                await pilot.pause(0.1)
                assert "starts when the plan stands" not in " ".join(screen_text(app).split())
        held.set()
        while not launched(stage):
            await pilot.pause(0.02)
        await stage.settled()
        assert [each.script for each in launched(stage)] == ["trainFalse.py"]


async def test_the_last_launches_are_one_key_away_and_fill_the_form_in() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.pressed("f5", "ctrl+o")
        app.main.focus_view()
        text = screen_text(app)
        for words in ("■ stopped", "✗ failed", "tools.prepare", "train.py --epochs 3"):
            assert words in text
        await pilot.press("down", "down", "enter")
        await stage.planned()
        assert app.query_one(Prompt).value == "run --hosts node2 --module tools.prepare"
        assert launched(stage) == []
        await stage.pressed("ctrl+o")
        await pilot.press("escape")
        assert "4 ranks by torch" in screen_text(app)


async def test_the_command_for_a_shell_does_the_same_without_the_console() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, pilot):
        await opened(app, stage, pilot, "run --env A='b c' train.py")
        await stage.pressed("ctrl+y")
        command = "distconsole run --hosts node1,node2 --env 'A=b c' train.py"
        assert f"copied: {command}" in screen_text(app)
        assert app.clipboard == command
        asked = parse_line(command)
        assert isinstance(asked, ask.Run)
        assert asked == looked(stage)[-1]


async def test_the_launchers_say_why_they_would_not_do() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await opened(app, stage, pilot, "run train.py")
        field(app, "launcher").editor.focus()
        await pilot.press("enter")
        await pilot.pause(0.3)
        text = screen_text(app)
        assert "horovod  ✗ Horovod is missing" in text
        await pilot.press("escape", "enter", "down", "down", "down", "enter")
        await pilot.pause(0.1)
        assert "--launcher" in app.query_one(Prompt).value


async def test_the_mouse_does_all_of_it() -> None:
    async with on_stage(SCENES, MIDDLE) as (app, stage, pilot):
        await opened(app, stage, pilot, "run train.py")
        await pilot.click("#launch-hosts", offset=(5, 2))
        await pilot.pause()
        assert app.query_one(Prompt).value == "run --hosts node1 train.py"
        await stage.planned()
        await pilot.click("#launch-start", times=2)
        await stage.settled()
        assert len(launched(stage)) == 1


async def test_another_verb_at_the_prompt_is_no_launch_and_stays() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await opened(app, stage, pilot, "run train.py")
        app.query_one(Prompt).offer("check --level")
        await pilot.pause()
        assert field(app, "script").text == "train.py"
        await pilot.press("escape", "tab")
        field(app, "script").editor.focus()
        await write(pilot, "2")
        await pilot.pause()
        assert app.query_one(Prompt).value == "check --level"
        app.query_one(Prompt).offer("")
        field(app, "script").editor.focus()
        await write(pilot, "3")
        await pilot.pause()
        assert app.query_one(Prompt).value == "run train.py23"
        await stage.typed("view cluster")
        assert app.query_one(Prompt).value == ""
        await pilot.press("ctrl+n")
        await stage.planned()
        assert app.query_one(Prompt).value == "run train.py23"


ODD = ("[bold]x[/red] [@click=app.quit]y[/]", "\x1b[31mred\x1b[0m\x07", "a\tb\nc", "\u202egpj.py", "日本" * 40, "x" * 5000)  # fmt: skip


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.campaign)], ids=str)
async def test_odd_names_are_shown_as_they_are(size: tuple[int, int]) -> None:
    def odd() -> Iterator[Event]:
        yield msgspec.structs.replace(scenes.plan(2), why=ODD[0], launcher=ODD[1])
        yield ScriptSought(script=ODD[0], missing=(ODD[1],), near=ODD[2])

    def kept() -> Iterator[Event]:
        for each in scenes.launches():
            if isinstance(each, LaunchKept):
                odd_one = msgspec.structs.replace(each.summary, name=ODD[0], hosts=(ODD[1],))
                request = ask.Run(ODD[1], ODD, name=ODD[0])
                yield LaunchKept(summary=odd_one, request=request)

    app, stage = staged(SCENES | {ask.Foresee: odd, ask.Launches: kept})
    async with on_screen(app, stage, size) as pilot:
        for name in ODD:
            request = ask.Run(name, (name,), env=(("A", name),), name=name, nic=name)
            await opened(app, stage, pilot, draft_of(request).line())
            text = screen_text(app)
            assert "\x1b" not in text
            assert "\x07" not in text
            held = app.query_one(Prompt).value
            assert held.isprintable()
            if held == draft_of(request).line():
                assert parse_line(held) == request
        await stage.pressed("ctrl+o")
        assert "[bold]x[/red]" in screen_text(app)
        await pilot.press("enter")
        await stage.planned()
        assert "no line holds all of this" in " ".join(screen_text(app).split())
        await pilot.press("ctrl+s")
        await stage.planned()
        assert launched(stage) == [], "what cannot be shown is not started"


async def test_the_list_of_launches_hides_secrets_among_the_arguments() -> None:
    def kept() -> Iterator[Event]:
        for each in scenes.launches():
            if isinstance(each, LaunchKept):
                words = ("--lr", "1", "--api-key", "marker", "logger.token=marker")
                yield LaunchKept(summary=each.summary, request=ask.Run("t.py", words))

    async with on_stage(SCENES | {ask.Launches: kept}, LARGE) as (app, stage, _pilot):
        await stage.pressed("ctrl+o")
        text = screen_text(app)
    assert "t.py --lr 1 --api-key *** " in text
    assert "marker" not in text


async def test_a_planner_that_breaks_costs_the_plan_alone() -> None:
    def broken() -> Iterator[Event]:
        raise ZeroDivisionError("never")
        yield

    async with on_stage(SCENES | {ask.Foresee: broken}) as (app, stage, pilot):
        await opened(app, stage, pilot, "run train.py")
        assert "planning broke: ZeroDivisionError: never" in screen_text(app)
        assert isinstance(
            app.main.views.launch.model.latest.error
            if app.main.views.launch.model.latest
            else None,
            ConsoleError,
        )
        assert shlex.split(app.main.views.launch.model.line) == ["run", "train.py"]


async def test_a_form_that_stands_still_does_not_look_for_its_fields_at_every_beat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search through the form's 200 parts takes as long as drawing it does."""
    async with on_stage(SCENES) as (app, stage, pilot):
        await opened(app, stage, pilot, "run --nproc 2 train.py")
        matched: list[object] = []

        def counted(selectors: object, node: object) -> bool:
            matched.append(node)
            return match(selectors, node)  # type: ignore[arg-type]

        monkeypatch.setattr("textual.css.query.match", counted)
        app.main.views.launch.tick()
        monkeypatch.undo()
        assert len(matched) < len(launch_fields())
