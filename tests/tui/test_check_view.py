"""The screen of a check: pairs that come in, one finding in full, the panel of interfaces, one check again."""

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from textual.events import Key
from textual.pilot import Pilot

from distconsole.checks.engine.results import fail
from distconsole.model import requests as ask
from distconsole.model.events import CheckEnded, CheckJudged, CheckProgress, Event
from distconsole.model.findings import Finding
from distconsole.model.reports import HostReport, PairReport
from distconsole.operations import Control, SessionSource
from distconsole.tui.app import ConsoleApp
from distconsole.tui.view_models.check import CheckModel, again_in
from distconsole.tui.view_models.pairs import (
    LOOKS,
    Grain,
    Pairs,
    State,
    cell_of,
    frame_for,
    update_pair,
)
from distconsole.tui.views.check import CheckView, Page
from distconsole.tui.views.check_rows import GridRow
from distconsole.tui.views.check_words import check_verdict, pairs_line
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.pair_matrix import PairMatrix
from fakes import scenes
from fakes.stage import LARGE, SMALL, Stage, on_screen, on_stage, screen_text, staged, until

ROOM_SMALL, ROOM_LARGE = (78, 17), (98, 36)


def report(source: str, target: str, **known: object) -> PairReport:
    fields = {"rtt_us": 50.0, "gbit_s": None, **known}
    return PairReport(source=source, target=target, **fields)  # type: ignore[arg-type]


def all_pairs(count: int, *, dead: tuple[str, ...] = ()) -> Pairs:
    names = tuple(f"node{number + 1}" for number in range(count))
    return Pairs(
        names,
        {
            (a, b): report(a, b, rtt_us=None, reachable=False, error="timeout")
            if a in dead or b in dead
            else report(a, b)
            for a in names
            for b in names
            if a != b
        },
    )


def test_every_state_of_a_pair_has_a_shape_of_its_own() -> None:
    assert len({glyph for glyph, *_ in LOOKS.values()}) == len(State)


def test_a_pair_gets_darker_as_more_is_known_of_it() -> None:
    reached = report("a", "b", rtt_us=None)
    timed, measured = report("a", "b"), report("a", "b", gbit_s=10.0)
    whole = update_pair(timed, msgspec.structs.replace(measured, rtt_us=None), "bandwidth")
    states = [Pairs(("a", "b"), {("a", "b"): each}).state("a", "b") for each in (reached, timed)]
    assert states == [State.REACHED, State.TIMED]
    assert (whole.rtt_us, whole.gbit_s) == (50.0, 10.0)
    assert Pairs(("a", "b"), {("a", "b"): whole}).state("a", "b") is State.MEASURED


def test_a_pair_is_slow_next_to_the_others() -> None:
    known = dict(all_pairs(4).known)
    known["node1", "node2"] = report("node1", "node2", rtt_us=25_000.0)
    assert Pairs(all_pairs(4).hosts, known).state("node1", "node2") is State.SLOW
    rated = {pair: msgspec.structs.replace(r, gbit_s=39.0) for pair, r in known.items()}
    rated["node3", "node1"] = msgspec.structs.replace(rated["node3", "node1"], gbit_s=8.0)
    pairs = Pairs(all_pairs(4).hosts, rated)
    assert pairs.state("node3", "node1") is State.SLOW
    assert pairs.state("node1", "node3") is State.MEASURED
    assert "slow next to the others" in pairs.told("node3", "node1")


@pytest.mark.parametrize(
    ("count", "dead", "room", "grain", "lines"),
    [
        (16, (), ROOM_SMALL, Grain.WHOLE, 16),
        (18, (), ROOM_SMALL, Grain.BLOCKS, 9),
        (36, (), ROOM_LARGE, Grain.WHOLE, 36),
        (64, ("node7",), ROOM_SMALL, Grain.TROUBLED, 1),
        (64, (), ROOM_SMALL, Grain.BLOCKS, 16),
        (512, (), ROOM_LARGE, Grain.BLOCKS, 35),
        (512, ("node500",), ROOM_LARGE, Grain.TROUBLED, 1),
    ],
)
def test_what_fits_is_shown(
    count: int, dead: tuple[str, ...], room: tuple[int, int], grain: Grain, lines: int
) -> None:
    frame = frame_for(all_pairs(count, dead=dead), *room)
    assert (frame.grain, len(frame.rows)) == (grain, lines)
    assert len(frame.rows) <= room[1]
    assert frame.label_width + frame.width * len(frame.columns) <= room[0]
    assert {name for group in frame.columns for name in group} >= set(dead)


def test_a_block_shows_its_worst_pair_and_else_the_least_known() -> None:
    pairs = all_pairs(64)
    known = {**pairs.known, ("node9", "node60"): report("node9", "node60", error="2 of 9 ports")}
    del known["node1", "node64"]
    some = Pairs(pairs.hosts, known)
    frame = frame_for(pairs, *ROOM_SMALL)
    row, column = (
        next(at for at, group in enumerate(frame.rows) if name in group)
        for name in ("node9", "node60")
    )
    assert cell_of(some, frame, row, column) == (State.PARTIAL, ("node9", "node60"))
    assert cell_of(some, frame, 0, len(frame.columns) - 1)[0] is State.UNTRIED
    assert cell_of(pairs, frame, row, column)[0] is State.TIMED


def matrix(app: ConsoleApp) -> PairMatrix:
    return app.query_one(PairMatrix)


def staged_pairs(count: int = 16, **how: object) -> tuple[ConsoleApp, Stage]:
    scene = partial(scenes.paired, count, **how)
    return staged({ask.Top: scenes.hosts, ask.Check: scene})


async def checked(app: ConsoleApp, stage: Stage, pilot: Pilot[int], *lines: str) -> str:
    for line in ("check", *lines):
        await stage.typed(line)
    return screen_text(app)


async def test_sixteen_hosts_fit_a_small_screen_and_fill_while_rounds_come_in() -> None:
    app, stage = staged_pairs(ended=False)
    async with on_screen(app, stage, SMALL) as pilot:
        text = await checked(app, stage, pilot, "pairs")
        rows = [line for line in text.splitlines() if line.strip()[:2].strip().isdecimal()]
        assert [row.split()[1] for row in rows] == [f"node{number + 1}" for number in range(16)]
        assert "▓" in rows[0]
        assert "▒" in rows[-1]
        assert "▓" not in rows[-1]


async def test_of_sixty_four_hosts_the_one_in_trouble_is_shown_beside_the_findings() -> None:
    app, stage = staged_pairs(64, dead=1, rated=False)
    async with on_screen(app, stage, LARGE) as pilot:
        text = await checked(app, stage, pilot)
        assert "net.reach_tcp" in text
        assert "Interfaces with `run` · by hand" in text
        (last,) = (
            line.partition("64 node64 ")[2] for line in text.splitlines() if "64 node64 " in line
        )
        assert last.count("✗") == 63  # it answers nobody


def test_the_line_of_pairs_says_how_far_the_rounds_are() -> None:
    going = pairs_line(all_pairs(4), ("node1", "node2"), ("bandwidth", 3, 30))
    assert going.plain.startswith("bandwidth round 3 of 30  ▒ node1 -> node2: round trip 50 µs")
    assert pairs_line(Pairs(), None, ("", 0, 0)).plain == "pairs of hosts: none tried"


async def test_the_cursor_tells_the_pair_below_it() -> None:
    app, stage = staged_pairs(dead=1)
    async with on_screen(app, stage, SMALL) as pilot:
        assert "✗ node1 -> node16: 17 of 17 ports: timeout" in await checked(
            app, stage, pilot, "pairs"
        )
        await stage.pressed("home", "down", "right", "right", "right", "right")
        assert matrix(app).pair == ("node2", "node5")
        assert "! node2 -> node5: 2 of 17 ports: timeout, round trip 48 µs" in screen_text(app)
        await pilot.press("n")
        assert matrix(app).pair == ("node2", "node16")
        row = next(
            at
            for at, line in enumerate(screen_text(app).splitlines())
            if line.split()[:2] == ["4", "node4"]
        )
        place = matrix(app).region
        await pilot.click(offset=(place.x + 1 + 12 + 2 * 6, row))
        assert matrix(app).pair is not None
        assert matrix(app).pair[0] == "node4"


async def test_enter_on_a_pair_shows_both_ways_and_the_findings_about_them() -> None:
    app, stage = staged_pairs(dead=1)
    async with on_screen(app, stage, SMALL) as pilot:
        await checked(app, stage, pilot, "pairs")
        await stage.pressed("enter")
        text = screen_text(app)
        assert "✗ node1 -> node16" in text
        assert "✗ node16 -> node1" in text
        assert "no TCP connection between node16 and its peers" in text
        await stage.pressed("escape")
        assert app.query_one(CheckView).page is Page.PAIRS
        assert app.focused is matrix(app)


async def test_two_escapes_at_once_on_a_page_leave_the_page_and_not_the_view() -> None:
    app, stage = staged_pairs(dead=1)
    async with on_screen(app, stage, SMALL) as pilot:
        await checked(app, stage, pilot, "pairs")
        await stage.pressed("enter")
        for _ in range(2):  # before the first one is answered
            app.post_message(Key("escape", None))
        await stage.settled()
        assert (app.main.view, app.query_one(CheckView).page) == ("check", Page.PAIRS)


async def test_beside_the_pairs_a_finding_under_the_cursor_opens_as_such() -> None:
    app, stage = staged_pairs(dead=1)
    async with on_screen(app, stage, LARGE) as pilot:
        await checked(app, stage, pilot, "pairs")
        app.query_one("#findings").focus()
        await stage.pressed("enter")
        words = str(app.query_one("#page-words").render())
        assert words.startswith("✗ FAIL  no TCP connection between node16 and its peers")


async def test_a_finding_opens_in_full_and_closes() -> None:
    app, stage = staged_pairs(dead=1)
    async with on_screen(app, stage, SMALL) as pilot:
        await checked(app, stage, pilot)
        for by in ("keys", "mouse", "prompt"):
            match by:
                case "keys":
                    await pilot.press("enter")
                case "mouse":
                    await pilot.click("#findings", offset=(10, 1), times=2)
                case _:
                    await stage.typed("open")
            await stage.settled()
            view = app.query_one(CheckView)
            words = str(app.query_one("#page-words").render())
            assert view.page is Page.FINDING, by
            for said in (
                "no TCP connection between node16",
                "node8 -> node16: timeout",
                "expected  connections to and from",
                "do        a firewall",
                "hosts.node16.nic = ",
                "before: timeout (a connection to node16)",
                "after: 0.2 ms: cured",
            ):
                assert said in words
            if by == "mouse":
                await pilot.click("#page-back", offset=(3, 0))
            else:
                await pilot.press("escape")
            await stage.settled()
            assert view.page is Page.FINDINGS, by
            assert app.focused is app.query_one("#findings")


def shown_checks(app: ConsoleApp, table: str) -> list[str]:
    rows: LineTable[Finding | GridRow] = app.query_one(table, LineTable)
    return [row.check for row in rows.rows]


async def test_sort_on_a_check_orders_its_own_tables() -> None:
    async with on_stage({ask.Check: scenes.checked}) as (app, stage, pilot):
        await checked(app, stage, pilot)
        worst = shown_checks(app, "#findings"), shown_checks(app, "#grid")
        assert worst[0] == ["os.hostname_bindable", "python.version"]
        assert worst[1] == ["os", "net", "python", "ssh", "torch"]
        await stage.typed("sort check down")
        assert shown_checks(app, "#findings") == worst[0][::-1]
        assert shown_checks(app, "#grid") == ["torch", "ssh", "python", "os", "net"]
        await stage.typed("sort outcome")
        assert (shown_checks(app, "#findings"), shown_checks(app, "#grid")) == worst
        assert app.main.views.loaded("run") is None  # whose ranks it does not sort


async def test_enter_lists_the_checks_of_a_group_and_says_what_became_of_one() -> None:
    async with on_stage({ask.Check: scenes.checked}) as (app, stage, pilot):
        await checked(app, stage, pilot, "sort check down")
        app.query_one("#grid", LineTable).focus()
        await stage.pressed("enter")
        assert shown_checks(app, "#grid")[:3] == ["torch", "torch.version", "ssh"]
        await stage.pressed("down", "enter")
        assert "- node2: skipped" in screen_text(app)
        await stage.pressed("escape", "g", "enter")
        assert shown_checks(app, "#grid")[:2] == ["torch", "ssh"]


async def test_the_panel_marks_where_hosts_do_not_meet() -> None:
    app, stage = staged_pairs()
    async with on_screen(app, stage, SMALL) as pilot:
        await checked(app, stage, pilot)
        await stage.pressed("i")
        text = screen_text(app)
        assert "eth0 · ✗lo" in text
        assert "node1 and 14 more" in text
        assert "127.0.1.1 is loopback" in " ".join(text.split())
        await stage.pressed("i")
        assert app.query_one(CheckView).page is Page.FINDINGS


class Again:
    """Answers a check by a scene, and the same check again by what ``mended`` makes of it."""

    def __init__(self) -> None:
        self.asked: list[ask.Check] = []

    def __call__(self) -> Iterator[Event]:
        yield from scenes.checked()

    def perform(
        self, request: ask.Request, _sessions: SessionSource, _control: Control
    ) -> Iterator[Event]:
        if not isinstance(request, ask.Check):
            return
        self.asked.append(request)
        if not request.only:
            yield from scenes.checked()
            return
        for event in scenes.checked(ok=True):
            if isinstance(event, CheckEnded):
                cells = {host: {request.only[0]: "pass"} for host in event.report.cells}
                yield CheckEnded(report=msgspec.structs.replace(event.report, cells=cells))
            elif isinstance(event, CheckProgress | CheckJudged) and event.check == request.only[0]:
                yield event


async def performed(app: ConsoleApp, pilot: Pilot[int]) -> str:
    """Wait for every task that the operator asked for, and return the screen."""
    for task in app.session.tasks:
        assert task.join(10)
    for _ in range(2):
        app.main.redraw()
        await pilot.pause()
    return screen_text(app)


async def test_r_makes_one_check_again_and_leaves_the_rest_as_it_was() -> None:
    again = Again()
    app = ConsoleApp(ask.OpenConsole(where=ask.Where(hosts="node1,node2")), perform=again.perform)
    app.session.begin()
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.main.stands)
        app.main.run_command("check --level full --strict --junit out.xml")
        assert "✗ NOT HEALTHY  1 failure, 1 warning in 8 of 10 checks" in await performed(
            app, pilot
        )
        await pilot.press("r")
        text = await performed(app, pilot)
        first, second = again.asked
        assert second == replace(first, only=("os.hostname_bindable",), junit=None)
        assert "os.hostname_bindable: gone" in text
        assert "1 warning" in text  # which --strict still minds
        assert "NOT HEALTHY" in text
        table: LineTable[object] = app.query_one("#findings", LineTable)
        assert [row.check for row in table.rows] == ["python.version"]  # type: ignore[attr-defined]
        grid: LineTable[object] = app.query_one("#grid", LineTable)
        assert len(grid.rows) == 5
        said = app.session.transcript.text()
        assert "> check --only os.hostname_bindable --level full" in said
    app.session.end()


def test_a_check_again_judges_nothing_of_what_is_not_there() -> None:
    (before,) = (e.report for e in scenes.checked(ok=True) if isinstance(e, CheckEnded))
    cells = {host: {"gpu.count": "skipped"} for host in before.hosts}
    why = {host: {"gpu.count": "no GPU"} for host in before.hosts}
    before = msgspec.structs.replace(before, only=("gpu",), cells=cells, why=why, findings=())
    whole = again_in(before, before, "gpu.count")
    assert whole.outcome == "incomplete"
    assert [each.summary for each in whole.findings] == ["no check of gpu was made: no GPU"]


def test_a_check_again_that_reaches_no_host_leaves_nothing_healthy() -> None:
    (before,) = (e.report for e in scenes.checked(ok=True) if isinstance(e, CheckEnded))
    gone = fail("node2 is down", ("node2",), check="ssh.connect")
    after = msgspec.structs.replace(
        before,
        hosts={**before.hosts, "node2": HostReport(reachable=False, facts={})},
        findings=(gone,),
        cells={"node1": {}, "node2": {"python.version": "could_not_run"}},
        why={"node2": {"python.version": "the host was not reached"}},
    )
    whole = again_in(before, after, "python.version")
    assert (whole.outcome, whole.ok, whole.findings) == ("incomplete", False, (gone,))
    picture = CheckModel(report=before).repeat("python.version")
    picture.fold(CheckEnded(report=after))
    tone, mark, words = check_verdict(picture, done=True, cancelled=False)
    assert (tone, mark) == ("warn", "?")
    assert words.startswith(
        "python.version: could not be made again on every host  INCOMPLETE  1 host not reached"
    )
    mended = again_in(whole, before, "python.version")
    assert (mended.outcome, mended.findings) == ("healthy", ())


class Endless:
    """A check that goes on until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.going = threading.Event()

    def perform(
        self, request: ask.Request, _sessions: SessionSource, control: Control
    ) -> Iterator[Event]:
        if not isinstance(request, ask.Check):
            return
        try:
            while not self.closed.wait(0.01):
                yield CheckProgress(
                    check="coll.init",
                    host="node2",
                    outcome="pass",
                    judged=12,
                    total=31,
                    going=("coll.init", "coll.sum"),
                    answered=(1, 0),
                    hosts=2,
                )
                self.going.set()
        finally:
            self.closed.set()


async def test_x_cancels_the_check_that_goes_on() -> None:
    endless = Endless()
    app = ConsoleApp(
        ask.OpenConsole(where=ask.Where(hosts="node1,node2")), perform=endless.perform
    )
    app.session.begin()
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.main.stands)
        app.main.run_command("check")
        assert endless.going.wait(10)
        app.main.redraw()
        await pilot.pause()
        far = r"CHECKING  12 of 31 checks, \d+ s: coll\.init 1 of 2 hosts, coll\.sum"
        assert re.search(far, screen_text(app))
        await pilot.press("r")  # nothing is repeated meanwhile
        await pilot.press("x")
        assert endless.closed.wait(10)
        assert "cancelled" in await performed(app, pilot)
        app.main.run_command("cancel")
        await pilot.pause(0.2)
        assert len(app.session.tasks) <= 2
    app.session.end()


def odd_hosts(events: Iterable[Event], odd: str) -> Iterator[Event]:
    """The same events, with a last host of another name."""
    for event in events:
        text = msgspec.json.encode(event).decode()
        yield msgspec.json.decode(
            text.replace('"node4"', msgspec.json.encode(odd).decode()), type=type(event)
        )


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.campaign)])
async def test_whatever_a_host_is_called_is_shown_as_it_is(size: tuple[int, int]) -> None:
    odd = "[b]x[/] [@click=app.quit] [link='z"
    scene = partial(odd_hosts, list(scenes.paired(4, dead=1)), odd)
    async with on_stage({ask.Top: scenes.hosts, ask.Check: scene}, size) as (app, stage, _pilot):
        for line in ("check", "pairs", "open"):
            await stage.typed(line)
            assert "[b]x[/]" in screen_text(app)
        await stage.typed("interfaces")
        await stage.typed("pairs")
        assert "[b]x[/]" in screen_text(app)
        assert app.is_running
