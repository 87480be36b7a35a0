"""Past and present runs: sorted, filtered, grouped, marked to be compared; Enter shows one again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.message import Message

from distconsole.errors import ConsoleError
from distconsole.formats.figures import number_text
from distconsole.model.comparison import LETTERS
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import date_text, duration_text
from distconsole.runs.conditions.summary_fields import summary_fields
from distconsole.runs.summary import seen_in
from distconsole.text.tables import Column
from distconsole.tui.tasks import RequestTask
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line

SHOWN_METRICS = 4
RUN_FIELDS = summary_fields()

STATE_STYLES = {
    "running": ("● running", "good"),
    "succeeded": ("✓ succeeded", "faint"),
    "failed": ("✗ failed", "bad"),
    "stopped": ("■ stopped", "warn"),
    "unknown": ("? unknown", "note"),
    "unreadable": ("! unreadable", "warn"),
}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, with the letter by which it is compared; or the head of a group, whose first it is then."""

    run: RunSummary
    mark: str = ""
    head: str = ""


def _state(run: RunSummary) -> Text:
    words, style = STATE_STYLES.get(run.state, (run.state, ""))
    return Text(words, style=style)


def _outcome(run: RunSummary) -> Text:
    """What there is to say in the end: the error, or the last metrics, accuracy and loss first."""
    if run.first_failure is not None:
        return Text(run.first_failure.short_blame, style="bad")
    first_names = [name for name in run.metrics if "acc" in name] + ["loss"]
    names = [name for name in dict.fromkeys((*first_names, *run.metrics)) if name in run.metrics]
    return Text(", ".join(f"{name} {run.metrics[name]:.4g}" for name in names[:SHOWN_METRICS]))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _run_cell(row: RunRow) -> Text:
    if row.head:
        return Text(row.head, style="strong")
    text = Text(f"{row.mark or ' '} ", style="accent")
    return text.append(row.run.run, style="accent" if row.mark else "")


def _row_column(column: Column[RunSummary]) -> Column[RunRow]:
    return column.adapt(lambda row: "" if row.head else column.cell(row.run))


FIGURES: list[Column[RunSummary]] = [
    Column("name", 14, lambda run: run.name, 5, sort="name"),
    Column("state", 11, _state, sort="state"),
    Column("started", 16, lambda run: date_text(run.started), 2, sort="age"),
    Column("time", 7, lambda run: duration_text(run.seconds), 0, True, "seconds"),
    Column("ranks", 5, lambda run: str(run.world_size), 4, True, "ranks"),
    Column("hosts", 5, lambda run: str(len(run.hosts)), 6, True, "hosts"),
    Column("by", 8, lambda run: run.launcher, 7, sort="launcher"),
    Column("steps", 8, lambda run: f"{run.steps or ''}", 4, True, "steps"),
    Column("samples/s", 9, lambda run: number_text(run.samples_s), 2, True, "samples_s"),
    Column("loss", 9, lambda run: _short(run.metrics.get("loss")), 3, True, "loss"),
    Column("best", 9, lambda run: _short(run.best.get("loss")), 5, True, "loss.best"),
    Column("script", 16, lambda run: run.script.rpartition("/")[2], 7, sort="script"),
    Column("outcome", 34, _outcome, 1, sort="error"),
]
RUN_COLUMNS: list[Column[RunRow]] = [
    Column("  run", 24, _run_cell, sort="run"),
    *map(_row_column, FIGURES),
]


class RunsView(OrderedView[RunSummary]):
    DEFAULT_CSS = """
    RunsView > #runs-line { color: $text-muted; }
    RunsView > #runs-table { height: 1fr; }
    """

    @dataclass
    class Opened(Message):
        run: str
        over: bool

    _drawn: object = None

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(RUN_FIELDS, id)
        self.marked: list[str] = []
        """Runs to be compared, in the order in which they were marked."""

    def compose(self) -> ComposeResult:
        yield Line("looking…", id="runs-line")
        yield LineTable(
            RUN_COLUMNS,
            same=lambda row: (row.head, row.run.run),
            empty="no runs yet: type 'run SCRIPT', or 'demo'",
            id="runs-table",
        )

    @property
    def table(self) -> LineTable[RunRow]:
        return self.query_one("#runs-table", LineTable)

    def sort(self, name: str, *, downwards: bool | None = None) -> None:
        """Order the runs by a field; by nothing the newest come first, those that go on before all."""
        if downwards is None and name == "age" and not self.order.is_by(name):
            downwards = False
        super().sort(name, downwards=downwards)

    def mark(self, run: str) -> None:
        """Mark a run to be compared, or take the mark away; raises ``ConsoleError`` if there are too many."""
        if run in self.marked:
            self.marked.remove(run)
        elif len(self.marked) >= len(LETTERS):
            raise ConsoleError(f"{len(LETTERS)} runs are marked, and that is enough", "unmark one")
        else:
            self.marked.append(run)

    def to_compare(self) -> str:
        """The runs that are marked, and the one under the cursor if that is one alone; nothing if too few."""
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
            over = row.run.state not in ("running", "unknown")
            self.post_message(self.Opened(row.run.run, over))

    def draw(self, task: RequestTask, seen: Iterable[RequestTask]) -> None:
        """Show the runs that ``task`` listed; of those in ``seen`` this session knows how they are."""
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
        self.table.show(rows)
        self.query_one("#runs-line", Line).show(self._words(runs, len(shown), done=done))

    def _words(self, runs: Sequence[RunSummary], shown: int, *, done: bool) -> str:
        if not runs:
            return "no runs"
        states = Counter(run.state for run in runs)
        going = f", {states['running']} going on" if states["running"] else ""
        line = f"{len(runs):,} runs{going}, {states['failed']:,} failed"
        if not done:
            line += ", reading more…"
        if self.order.words:
            left = f", {shown:,} shown" if self.order.condition is not None else ""
            line += f"; {self.order.words}{left}"
        if self.marked:
            more = "c compares them" if len(self.marked) > 1 else "m marks another"
            return f"{line}; {len(self.marked)} marked: {more}"
        return f"{line}; Escape, Enter or a double click shows one"


def _refresh(run: RunSummary | None, task: RequestTask) -> RunSummary:
    with task.lock:
        run = seen_in(run or _new(task), task.run)
    return msgspec.structs.replace(run, state="running") if task.goes_on else run


def _new(task: RequestTask) -> RunSummary:
    timeline, plan = task.run, task.run.plan
    return RunSummary(
        run=timeline.run,
        name=plan.name if plan is not None else "",
        state="unknown",
        started=timeline.started or 0.0,
        seconds=None,
        script=plan.script if plan is not None else "",
        launcher=plan.launcher if plan is not None else "",
        world_size=plan.world_size if plan is not None else len(timeline.ranks),
        hosts=tuple(host.host for host in plan.hosts) if plan is not None else (),
    )
