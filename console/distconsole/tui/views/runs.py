"""Past and present runs: sorted, filtered, grouped, marked for comparison; Enter shows one again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message

from distconsole.errors import ConsoleError
from distconsole.formats.figures import number_text
from distconsole.model.comparison import LETTERS
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import date_text, duration_text
from distconsole.model.verbs import RunRole
from distconsole.runs.conditions.summary_fields import summary_fields
from distconsole.runs.store.store import choose_run
from distconsole.runs.summary import seen_in
from distconsole.text.tables import Column, shorten_middle
from distconsole.tui.later import run_in_thread
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.runs import (
    NO_RUNS,
    ORIGINS,
    counts_text,
    metrics_text,
    run_details,
    run_tiles,
    runs_verdict,
    state_text,
)
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.curves import Curve, PlotData
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Verdict, Words
from distconsole.tui.widgets.panel import Panel
from distconsole.tui.widgets.plots import PlotPanel
from distconsole.tui.widgets.tiles import Tiles

SHOWN_METRICS = 4
RUN_FIELDS = summary_fields()
BESIDE_CELLS, BELOW_LINES = 130, 18
"""Least cells for the chosen run beside the list, and least lines for it below."""
TITLE_CELLS = 40
PLOT_LINES, MOST_COURSES = 36, 64
"""Least lines for a plot of the chosen run; number of plots kept."""
KEYS_OF_LIST = "s sort · f filter · g group · m mark · o mine"
FROM, MINE = "from", "from=here"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, with its letter in a comparison; or the head of a group, with its first run."""

    run: RunSummary
    mark: str = ""
    head: str = ""


def _outcome(run: RunSummary) -> Text:
    """The error, or the last metrics, accuracy and loss first; else the origin of a foreign run."""
    if run.first_failure is not None:
        return Text(run.first_failure.short_blame, style="bad")
    metrics = metrics_text(run, SHOWN_METRICS)
    return (
        Text(metrics)
        if metrics
        else Text(ORIGINS.get(run.origin, "").partition(";")[0], style="faint")
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _run_cell(row: RunRow) -> Text:
    if row.head:
        return Text(row.head, style="strong")
    return Text(f"{row.mark or ' '} {row.run.run}", style="accent" if row.mark else "")


def _row_column(column: Column[RunSummary]) -> Column[RunRow]:
    return column.adapt(lambda row: "" if row.head else column.cell(row.run))


FIGURES: list[Column[RunSummary]] = [
    Column("name", 14, lambda run: run.name, 5, sort="name"),
    Column("state", 11, state_text, sort="state"),
    Column(FROM, 9, lambda run: run.origin, 3, sort="from"),
    Column("started", 11, lambda run: date_text(run.started, "%m-%d %H:%M"), 2, sort="age"),
    Column("time", 11, lambda run: duration_text(run.seconds), 0, True, "seconds"),
    Column("ranks", 5, lambda run: str(run.world_size), 4, True, "ranks"),
    Column("hosts", 5, lambda run: str(len(run.hosts)), 6, True, "hosts"),
    Column("by", 8, lambda run: run.launcher, 7, sort="launcher"),
    Column("steps", 8, lambda run: f"{run.steps:,}" if run.steps else "", 4, True, "steps"),
    Column("samples/s", 9, lambda run: number_text(run.samples_s), 2, True, "samples_s"),
    Column("loss", 9, lambda run: _short(run.metrics.get("loss")), 3, True, "loss"),
    Column("best", 9, lambda run: _short(run.best.get("loss")), 5, True, "loss.best"),
    Column("script", 16, lambda run: run.script.rpartition("/")[2], 7, sort="script"),
    Column("outcome", 28, _outcome, 1, sort="error"),
]
RUN_COLUMNS: list[Column[RunRow]] = [
    Column("  run", 24, _run_cell, sort="run", middle=True),
    *map(_row_column, FIGURES),
]


class RunsView(OrderedView[RunSummary]):
    DEFAULT_CSS = """
    RunsView > #runs-row { height: 1fr; }
    RunsView #runs-panel { width: 5fr; height: 100%; }
    RunsView #runs-table { height: 1fr; }
    RunsView #run-side { width: 3fr; height: 100%; }
    RunsView #run-panel { height: 1fr; }
    RunsView #run-details { height: 1fr; }
    RunsView #run-plot { height: 12; display: none; }
    RunsView.-below > #runs-row { layout: vertical; }
    RunsView.-below #runs-panel { width: 1fr; height: 1fr; }
    RunsView.-below #run-side { width: 1fr; height: auto; }
    RunsView.-below #run-tiles { display: none; }
    RunsView.-below #run-panel { height: auto; }
    """

    @dataclass
    class Opened(Message):
        run: str
        over: bool

    fields = RUN_FIELDS
    _drawn: object = None
    _runs: Sequence[RunSummary] = ()
    _done = False
    """True once all runs are listed."""
    _reading = False
    """True while a thread reads a run's course."""

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._courses: dict[Hashable, PlotData | None] = {}
        """By run and its state when the course was read."""
        self.marked: list[str] = []
        """Runs to compare, in the order of marking."""

    def compose(self) -> ComposeResult:
        yield Verdict("looking…", id="runs-line")
        with Horizontal(id="runs-row"):
            with Panel("Runs", keys=KEYS_OF_LIST, legend="Enter shows one", id="runs-panel"):
                yield LineTable(
                    RUN_COLUMNS,
                    same=lambda row: (row.head, row.run.run),
                    empty=NO_RUNS,
                    id="runs-table",
                )
            with Vertical(id="run-side"):
                yield Tiles(3, id="run-tiles")
                with Panel(keys="R again · r report", id="run-panel"):
                    yield Words(id="run-details")
                yield PlotPanel(id="run-plot")

    @property
    def table(self) -> LineTable[RunRow]:
        return self.query_one("#runs-table", LineTable)

    def sort(self, name: str, *, downwards: bool | None = None) -> None:
        """Order the runs by a field; without one the newest come first, running ones before all."""
        if downwards is None and name == "age" and not self.order.is_by(name):
            downwards = False
        super().sort(name, downwards=downwards)

    def mark(self, wanted: str) -> None:
        """Mark or unmark a run of the list, by id, name (its newest) or unique begin of an id; raises ConsoleError."""
        ids = [each.run for each in self._runs]
        named = ((each.name, each.run) for each in self._runs)
        run = wanted if wanted in ids else choose_run(wanted, ids, named)
        if run is None:
            raise ConsoleError(f"no run {wanted} is in the list", "F6 shows the list")
        if run in self.marked:
            self.marked.remove(run)
        elif len(self.marked) >= len(LETTERS):
            raise ConsoleError(f"{len(LETTERS)} runs are marked, and that is enough", "unmark one")
        else:
            self.marked.append(run)

    def turn_mine(self) -> None:
        """Show only the runs launched from here, or all again."""
        on = self.order.condition is not None and self.order.condition.text == MINE
        self.filter("" if on else MINE)

    def to_compare(self) -> str:
        """The marked runs, and the one under the cursor if only one is marked; empty if too few."""
        runs = list(self.marked)
        row = self.table.row_under_cursor()
        if len(runs) < 2 and row is not None and row.run.run not in runs:
            runs.append(row.run.run)
        return " ".join(runs) if len(runs) > 1 else ""

    def run_under_cursor(self) -> str:
        row = self.table.row_under_cursor()
        return "" if row is None else row.run.run

    @on(LineTable.Chosen)
    def open_run(self, event: LineTable.Chosen) -> None:
        row: RunRow | None = event.table.row_under_cursor()
        if row is not None and not row.head:
            over = row.run.state not in ("running", "unknown") and row.run.origin != "elsewhere"
            self.post_message(self.Opened(row.run.run, over))

    def draw(self, task: RequestTask, seen: Iterable[RequestTask]) -> None:
        """Show the runs listed by ``task``; those in ``seen`` are known better in this session."""
        with task.lock:
            listed, done = list(task.listed), task.done
        known = {run.run: run for run in listed}
        now = {each.run.run: _refresh(known.get(each.run.run), each) for each in seen}
        key = (id(task), len(listed), done, self.order, tuple(self.marked), now)
        if (not done and not listed) or key == self._drawn:
            return
        self._drawn = key
        runs = sorted(
            (known | now).values(), key=lambda run: (run.state != "running", -run.started)
        )
        shown = self.order.shown(runs)
        marks = dict(zip(self.marked, LETTERS, strict=False))
        rows: list[RunRow] = []
        for name, members in self.order.grouped(shown):
            if name:
                rows.append(RunRow(members[0], head=f"{name} ({len(members)})"))
            rows += [RunRow(run, marks.get(run.run, "")) for run in members]
        self._runs, self._done = runs, done
        others = any(run.origin not in ("", "here") for run in runs)
        self.table.leave_out(() if others else (FROM,))
        self.table.show(rows)
        self._entitle(runs, len(shown), done=done)
        self._show_chosen()

    def on_resize(self) -> None:
        size = self.size
        self.set_class(size.width < BESIDE_CELLS, "-below")
        self._show_chosen()

    @on(LineTable.Moved)
    def _show_chosen(self) -> None:
        """Show the run under the cursor beside the list or below it, if there is room."""
        row, size = self.table.row_under_cursor(), self.size
        chosen = next(iter(self._runs), None) if row is None else row.run
        self.query_one("#runs-line", Verdict).say(*runs_verdict(chosen, done=self._done))
        side = self.query_one("#run-side")
        below = self.has_class("-below")
        side.display = row is not None and not (below and size.height < BELOW_LINES)
        if row is None or not side.display:
            return
        cells = size.width if below else size.width * 3 // 8
        details = run_details(row.run, self._runs, cells - 5)
        words = self.query_one("#run-details", Words)
        words.styles.height = max(5, size.height // 3) if below else None
        words.show(details)
        state = state_text(row.run)
        self.query_one("#run-panel", Panel).entitle(
            shorten_middle(row.run.run, TITLE_CELLS), state.plain
        )
        if not below:
            self.query_one("#run-tiles", Tiles).show(run_tiles(row.run, self._runs))
        self._show_course(row.run, room=not below and size.height >= PLOT_LINES)

    def _show_course(self, run: RunSummary, *, room: bool) -> None:
        key = run.run, run.state, run.steps
        course, panel = self._courses.get(key), self.query_one("#run-plot", PlotPanel)
        panel.display = room and course is not None
        if panel.display and course is not None:
            panel.show(course)
        elif room and key not in self._courses and not self._reading:
            self._reading = True
            run_in_thread(self.post_message, partial(self._read_course, run.run, key), "course")

    def _read_course(self, run: str, key: Hashable) -> Callable[[], None]:
        """Read the stored course of ``run`` in a thread; return the call that shows it."""
        course = course_of(run)

        def take() -> None:
            self._reading = False
            while len(self._courses) >= MOST_COURSES:
                del self._courses[next(iter(self._courses))]
            self._courses[key] = course
            self._show_chosen()

        return take

    def _entitle(self, runs: Sequence[RunSummary], shown: int, *, done: bool) -> None:
        state = [] if done else ["reading more…"]
        if self.marked:
            more = "c compares them" if len(self.marked) > 1 else "m marks another"
            state.append(f"{len(self.marked)} marked: {more}")
        if self.order.words:
            state.append(self.order.words)
        said = " · ".join(state) or counts_text(runs)
        some = f"{shown:,} of {len(runs):,}" if shown != len(runs) else f"{shown:,}"
        self.query_one("#runs-panel", Panel).entitle(f"Runs {some}", said)


def course_of(run: str) -> PlotData | None:
    """Return the plot of a stored run's course; None if the store has none. It waits for the disk."""
    from distconsole.operations.stored.history import open_kept  # noqa: PLC0415 - only who looks back needs it
    from distconsole.runs.summary import sketch_of  # noqa: PLC0415

    try:
        with open_kept(run) as run_file:
            sketch = sketch_of(run_file)
    except (ConsoleError, sqlite3.Error, msgspec.MsgspecError, ValueError):
        return None
    if sketch is None:
        return None
    curve = Curve(sketch.xs, sketch.values, sketch.values, sketch.values)
    # Other figures of the run are means of all ranks.
    last = ((f"rank {sketch.rank}, last {number_text(sketch.values[-1])}", "faint"),)
    legend = f"{len(sketch.xs)} points of rank {sketch.rank} over run time"
    return PlotData(sketch.name, (curve,), last, zero=True, legend=legend, key=run)


def _refresh(run: RunSummary | None, task: RequestTask) -> RunSummary:
    with task.lock:
        run = seen_in(run or _new(task), task.run)
    return msgspec.structs.replace(run, state="running") if task.goes_on else run


def _new(task: RequestTask) -> RunSummary:
    timeline, plan = task.run, task.run.plan
    return RunSummary(
        run=timeline.run,
        origin="here" if task.verb.role is RunRole.RECORDS else "attached",
        name=plan.name if plan is not None else "",
        state="unknown",
        started=timeline.started or 0.0,
        seconds=None,
        script=plan.script if plan is not None else "",
        launcher=plan.launcher if plan is not None else "",
        world_size=plan.world_size if plan is not None else len(timeline.ranks),
        hosts=tuple(host.host for host in plan.hosts) if plan is not None else (),
    )
