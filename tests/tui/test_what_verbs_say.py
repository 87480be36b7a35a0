"""Claims about what verbs say: in the transcript, below the views, and where a run or a name came to nothing."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from distconsole.config.paths import runs_dir
from distconsole.errors import PlanError, RunNotFoundError
from distconsole.model import requests as ask
from distconsole.model.events import CheckEnded, Event, Narration
from distconsole.model.findings import Cure, Severity
from distconsole.model.run_events import EndState, RunEnded, RunFinding
from distconsole.operations.control import Wish
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt_verbs import assess, shorten
from distconsole.tui.views.runs import RunRow
from distconsole.tui.views.transcript import TranscriptView
from distconsole.tui.widgets.line_table import LineTable
from fakes import scenes
from fakes.stage import (
    ATTACH,
    LARGE,
    SMALL,
    keep_run,
    on_screen,
    on_stage,
    screen_text,
    staged,
    until,
)

SCENES = {ask.Attach: scenes.training, ask.Top: scenes.hosts, ask.Runs: scenes.past_runs}


class Slow:
    """Goes on until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self) -> Iterator[Event]:
        while not self.go.wait(0.01):
            yield Narration(text="still at it")


async def test_the_transcript_has_the_width_that_there_is() -> None:
    async with on_stage(SCENES, LARGE) as (app, stage, pilot):
        words = " ".join(f"word{number}" for number in range(22))
        app.session.transcript.say(words)
        await stage.typed("view transcript")
        assert words in str(app.query_one(TranscriptView).lines)
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: words not in str(app.query_one(TranscriptView).lines))
        assert all(line.cell_length <= 80 for line in app.query_one(TranscriptView).lines)
        await stage.typed("clear")
        assert app.query_one(TranscriptView).lines == []


async def test_what_was_said_opens_at_its_end_and_stays_there_in_every_size() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        app.session.transcript.say(
            "\n".join(f"line {number} " + 40 * "x " for number in range(200))
        )
        await stage.typed("view transcript")
        view = app.query_one(TranscriptView)
        for size in ((80, 24), (70, 24), (200, 60), (80, 24)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: "line 199" in screen_text(app))
            await pilot.pause()
            assert view.scroll_y == view.max_scroll_y > 0


async def test_whoever_reads_further_up_is_left_there() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.typed("view transcript")
        view = app.query_one(TranscriptView)
        app.session.transcript.say("\n".join(f"line {number}" for number in range(100)))
        await until(pilot, lambda: view.max_scroll_y > 0 and view.scroll_y == view.max_scroll_y)
        view.scroll_home(animate=False)
        app.session.transcript.say("one more")
        await until(pilot, lambda: "one more" in str(view.lines))
        assert view.scroll_y == 0


async def test_the_transcript_tells_of_a_run_that_was_launched_and_of_its_end() -> None:
    async with on_stage(SCENES | {ask.Run: scenes.failing}) as (app, stage, _pilot):
        await stage.typed("run train.py")
        stage.ended.set()
        said = app.session.transcript.text()
        assert f"run {scenes.RUN}: 4 ranks on 2 hosts, torch launcher" in said
        assert f"{scenes.RUN} failed after" in said
        assert f"{scenes.RUN} failed after" not in screen_text(app).splitlines()[-4:]


async def test_the_end_of_a_run_is_said_where_it_is_not_seen() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, pilot):
        await stage.typed("view cluster")
        task = app.session.shown_run()
        task.fold(list(scenes.succeeded())[-1])
        await until(pilot, lambda: f"{scenes.RUN} succeeded after" in screen_text(app))


async def test_a_launch_that_came_to_nothing_is_not_starting() -> None:
    def refused() -> Iterator[Event]:
        yield scenes.plan(4)
        raise PlanError("the script t.py does not exist on node1", "--sync brings it")

    async with on_stage(SCENES | {ask.Run: refused}) as (app, stage, pilot):
        await stage.typed("run t.py")
        await until(pilot, lambda: "✗ the script t.py does not exist" in screen_text(app))
        assert "hint: --sync brings it" in screen_text(app)


async def test_a_run_that_was_not_started_is_none_to_come_back_to() -> None:
    def refused() -> Iterator[Event]:
        yield scenes.plan(4)
        yield RunEnded(
            t=scenes.START,
            run=scenes.RUN,
            state=EndState.FAILED,
            exit_code=2,
            seconds=0,
            error="no",
        )

    async with on_stage(SCENES | {ask.Run: refused}) as (app, stage, _pilot):
        await stage.typed("run t.py")
        await stage.settled()
        assert getattr(app.session.request("attach"), "run", "") != scenes.RUN
    (farewell,) = app.session.farewell()
    assert "distconsole report" not in farewell


async def test_a_run_that_there_is_not_leaves_the_run_before_on_the_screen() -> None:
    asked: list[int] = []

    def attached() -> Iterator[Event]:
        asked.append(1)
        if len(asked) > 1:
            raise RunNotFoundError("there is no run trian", f"did you mean {scenes.RUN}?")
        yield from scenes.training()

    async with on_stage(SCENES | {ask.Attach: attached}, request=ATTACH) as (app, stage, pilot):
        before = app.session.shown_run()
        await stage.typed("view cluster")
        await stage.typed(f"attach {scenes.RUN[:-1]}x")
        await until(pilot, lambda: app.session.shown_run() is before)
        assert app.main.view == "run"
        assert "there is no run trian" in app.session.transcript.text()
        assert app.query_one(Prompt).placeholder == f": then Tab: attach {scenes.RUN}"


async def test_the_way_out_is_seen_however_long_the_line_is() -> None:
    slow = Slow()
    app, stage = staged(SCENES | {ask.Check: slow})
    moment = 1000.0
    app.session.clocks = app.session.clocks = type(app.session.clocks)(monotonic=lambda: moment)
    async with on_screen(app, stage) as pilot:
        try:
            app.query_one(Prompt).offer(f"check --only net --budget 60 --emit-hostfile {'x' * 60}")
            await pilot.press("enter")
            await until(pilot, lambda: bool(app.main.dispatcher.prompt_verbs.jobs))
            moment += 2
            await until(pilot, lambda: "^C cancels" in screen_text(app))
            assert "check --only net" in screen_text(app)
        finally:
            slow.go.set()


@pytest.mark.parametrize(
    ("words", "cells", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcdef", 4, "abc…"),
        ("漢字漢", 4, "漢…"),
        ("abc", 0, ""),
        ("a b", 3, "a b"),
    ],
)
def test_words_are_shortened_by_cells(words: str, cells: int, shown: str) -> None:
    assert shorten(words, cells, 0) == shown


async def test_a_second_ctrl_c_kills_what_is_ending() -> None:
    slow = Slow()
    async with on_stage(SCENES | {ask.Demo: slow}) as (app, stage, pilot):
        try:
            app.query_one(Prompt).offer("demo")
            await pilot.press("enter")
            await until(pilot, lambda: bool(app.main.dispatcher.prompt_verbs.jobs))
            control = stage.controls[-1]
            for wish, at in ((Wish.STOP, "ending"), (Wish.KILL, "ending")):
                await pilot.press("ctrl+c")
                await until(
                    pilot,
                    lambda wish=wish: control.asked is not None and control.asked.wish is wish,
                )
                assert app.main.dispatcher.prompt_verbs.jobs[0].now == at
            assert "killing [1] demo" in app.session.transcript.text()
        finally:
            slow.go.set()


async def test_json_of_what_the_screen_shows_says_where_to_have_it() -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.typed(f"attach {scenes.RUN} --json")
        assert "--json is for programs: 'export RUN' prints the same" in screen_text(app)
        assert app.main.view == "run"


async def test_a_condition_on_runs_leaves_them_out_on_the_screen() -> None:
    async with on_stage(SCENES) as (app, stage, pilot):
        await stage.typed("runs --where state=failed")
        table: LineTable[RunRow] = app.query_one("#runs-table", LineTable)
        await until(pilot, lambda: {row.run.state for row in table.rows} == {"failed"})
        assert "filter state=failed" in screen_text(app)


async def test_help_says_what_a_verb_of_the_screen_does() -> None:
    async with on_stage(SCENES) as (app, stage, _pilot):
        await stage.typed("help watch")
        await stage.typed("check --zzz")
        assert "hint: see 'help check'" in app.session.transcript.text()
        assert "watch: say when a condition comes true" in app.session.transcript.text()


def test_what_a_folder_has_is_asked_about(tmp_path: Path) -> None:
    keep_run()
    csv = ask.Export(run="last", format=ask.ExportFormat.CSV, output=str(tmp_path / "out"))
    events = ask.Export(run="last", format=ask.ExportFormat.TENSORBOARD, output=str(tmp_path))
    assert assess(csv, 0.0)[1] is None
    assert assess(events, 0.0)[1] is None
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note.txt").touch()
    assert assess(csv, 0.0)[1] is None
    for table in ("gpus", "logs", "metrics", "ranks"):
        (tmp_path / "out" / f"{table}.csv").touch()
    (tmp_path / next(runs_dir().glob("*.db")).stem).mkdir()
    danger = assess(csv, 0.0)[1]
    assert danger.question.endswith("and 1 more?")
    assert len(danger.details) == 3
    assert assess(events, 0.0)[1] is not None
    lines = ask.Export(run="last", output=str(tmp_path / "out"))
    assert assess(lines, 0.0)[1] is None, "no file can be where a folder is"


async def test_y_copies_the_command_of_a_finding_and_hints_on_the_screen_name_keys() -> None:
    def hung() -> Iterator[Event]:
        yield from scenes.training()
        for rank, verb in ((0, "logs"), (3, "why")):
            yield RunFinding(
                t=scenes.MINUTE_LATER,
                run=scenes.RUN,
                check="run.stall",
                severity=Severity.WARN,
                summary=f"rank {rank} has stopped",
                rank=rank,
                hint=f"distconsole {verb} {scenes.RUN} says more",
            )

    def cured() -> Iterator[Event]:
        for event in scenes.checked():
            if isinstance(event, CheckEnded):
                first, *others = event.report.findings
                first = msgspec.structs.replace(
                    first, cure=Cure(env={"NCCL_SOCKET_IFNAME": "eth0"})
                )
                report = msgspec.structs.replace(event.report, findings=(first, *others))
                event = msgspec.structs.replace(event, report=report)
            yield event

    app, stage = staged(SCENES | {ask.Attach: hung, ask.Check: cured}, request=ATTACH)
    async with on_screen(app, stage, LARGE) as pilot:
        assert "hint: W says more" in screen_text(app)
        assert "distconsole why" not in screen_text(app)
        await pilot.press("y")
        assert app.clipboard == f"distconsole logs {scenes.RUN}"  # the cursor is on rank 0
        await stage.pressed("down", "y")
        assert app.clipboard == f"distconsole why {scenes.RUN}"  # rank 1 has no finding of its own
        assert f"copied: distconsole why {scenes.RUN}" in screen_text(app)
        await stage.typed("check")
        await stage.pressed("y")
        assert app.clipboard == "export NCCL_SOCKET_IFNAME=eth0"
        stage.scenes[ask.Check] = scenes.checked  # whose findings say what to do in prose
        await stage.typed("check")
        await stage.pressed("y")
        assert "nothing to copy: this finding names no command" in screen_text(app)
        assert app.clipboard == "export NCCL_SOCKET_IFNAME=eth0"


async def test_y_says_so_where_no_finding_has_a_command() -> None:
    async with on_stage(SCENES, request=ATTACH) as (app, stage, _pilot):
        await stage.pressed("y")
        assert "nothing to copy: no finding is here" in screen_text(app)
        assert app.clipboard == ""


async def test_a_page_or_a_file_that_is_written_leaves_the_view_and_says_where_it_is() -> None:
    def written() -> Iterator[Event]:
        yield Narration(text="written: x.html")

    made = {ask.ReportPage: written, ask.Export: written, ask.Trace: written}
    async with on_stage(SCENES | made, request=ATTACH) as (app, stage, _pilot):
        for line in ("report last -o x.html", "export last -o x.jsonl", "trace last"):
            await stage.typed(line)
            assert app.main.view == "run", line
            assert "written: x.html" in screen_text(app), line
        await stage.typed("export last")
        assert app.main.view == "transcript"
