"""Past and present runs: sorted, filtered, grouped, marked to be compared; Enter shows one again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from distconsole.errors import ConsoleError
from distconsole.model.comparison import LETTERS
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import date_text
from distconsole.runs.conditions.summary_fields import summary_fields
from distconsole.runs.summary import seen_in
from distconsole.text.tables import duration_text, number_text
from distconsole.tui.later import RunLine
from distconsole.tui.tasks import RequestTask
from distconsole.tui.views.row_order import RowOrder
from distconsole.tui.widgets.line_table import Column, LineTable
from distconsole.tui.widgets.lines import Words

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
    """A line of the list: a run, or the head of a group.

    Attributes:
        mark: Its letter, if it is to be compared.
        head: The name of the group and how many runs it has; then ``run`` is its first.
    """

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


def _loss(run: RunSummary) -> str:
    return _short(run.metrics.get("loss"))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _started(run: RunSummary) -> str:
    return date_text(run.started)


def _run_cell(row: RunRow) -> Text:
    if row.head:
        return Text(row.head, style="strong")
    text = Text(f"{row.mark or ' '} ", style="accent")
    return text.append(row.run.run, style="accent" if row.mark else "")


def _column(
    title: str,
    width: int,
    cell: object,
    need: int = 0,
    sort: str = "",
    *,
    right: bool = False,
) -> Column[RunRow]:
    def made(row: RunRow) -> Text | str:
        return "" if row.head else cell(row.run)  # type: ignore[operator]

    return Column(title, width, made, need, right, sort)


RUN_COLUMNS: list[Column[RunRow]] = [
    Column("  run", 24, _run_cell, sort="run"),
    _column("name", 14, lambda run: run.name, 5, "name"),
    _column("state", 11, _state, 0, "state"),
    _column("started", 16, _started, 2, "age"),
    _column("time", 7, lambda run: duration_text(run.seconds), 0, "seconds", right=True),
    _column("ranks", 5, lambda run: str(run.world_size), 4, "ranks", right=True),
    _column("hosts", 5, lambda run: str(len(run.hosts)), 6, "hosts", right=True),
    _column("by", 8, lambda run: run.launcher, 7, "launcher"),
    _column("steps", 8, lambda run: f"{run.steps or ''}", 4, "steps", right=True),
    _column("samples/s", 9, lambda run: number_text(run.samples_s), 2, "samples_s", right=True),
    _column("loss", 9, _loss, 3, "loss", right=True),
    _column("best", 9, lambda run: _short(run.best.get("loss")), 5, "loss.best", right=True),
    _column("script", 16, lambda run: run.script.rpartition("/")[2], 7, "script"),
    _column("outcome", 34, _outcome, 1, "error"),
]


class RunsView(Vertical):
    """The list of runs."""

    DEFAULT_CSS = """
    RunsView > #runs-line { height: 1; color: $text-muted; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    RunsView > #runs-table { height: 1fr; }
    """

    class Opened(Message):
        """A run should be shown: ``over`` once it has ended."""

        def __init__(self, run: str, state: str) -> None:
            super().__init__()
            self.run = run
            self.over = state not in ("running", "unknown")

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.order: RowOrder[RunSummary] = RowOrder()
        self.marked: list[str] = []
        """Runs to be compared, in the order in which they were marked."""
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        """A heading and the table."""
        yield Words("looking…", id="runs-line")
        yield LineTable(
            RUN_COLUMNS,
            same=lambda row: (row.head, row.run.run),
            empty="no runs yet: type 'run SCRIPT', or 'demo'",
            id="runs-table",
        )

    @property
    def table(self) -> LineTable[RunRow]:
        """The table."""
        return self.query_one("#runs-table", LineTable)

    def filter(self, text: str) -> None:
        """Show only runs that match ``text``; all if it is empty.

        Raises:
            UsageError: if it means nothing.
        """
        self.order = self.order.with_filter(text, RUN_FIELDS)
        self.table.to_top()

    def sort(self, name: str, *, downwards: bool | None = None) -> None:
        """Order the runs by a field, once more the other way; by nothing the newest come first, those that go on before all.

        Raises:
            UsageError: if there is no such field.
        """
        if downwards is None and name == "age" and not self.order.is_by(name):
            downwards = False
        self.order = self.order.with_sort(name, RUN_FIELDS, downwards=downwards)
        self.table.to_top()

    def group(self, name: str) -> None:
        """Put runs together that have the same in a field; ``none`` ends that.

        Raises:
            UsageError: if there is no such field.
        """
        self.order = self.order.with_group(name, RUN_FIELDS)
        self.table.to_top()

    def mark(self, run: str) -> None:
        """Mark a run to be compared, or take the mark away.

        Raises:
            ConsoleError: if there are too many.
        """
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
        """Return the run that keys are about; nothing where there is none."""
        row = self.table.row_under_cursor()
        return "" if row is None else row.run.run

    @on(LineTable.Chosen)
    def open_run(self, event: LineTable.Chosen) -> None:
        """Show the run under the cursor again."""
        row: RunRow | None = event.table.row_under_cursor()
        if row is not None and not row.head:
            self.post_message(self.Opened(row.run.run, row.run.state))

    @on(LineTable.SortAsked)
    def sort_rows(self, event: LineTable.SortAsked) -> None:
        """Order the rows by the heading that was clicked."""
        self.post_message(RunLine(f"sort {event.order}"))

    def draw(self, task: RequestTask, seen: Iterable[RequestTask]) -> None:
        """Show the runs that ``task`` listed; of those in ``seen`` this session knows how they are."""
        seen = tuple(seen)
        with task.reading():
            count, done = len(task.listed), task.done
            listed = task.listed[:count]
        live = {each.run.run: each for each in seen}
        known = {run.run: run for run in listed}
        now = {name: _as_seen(known.get(name), each) for name, each in live.items()}
        key = (id(task), count, done, self.order, tuple(self.marked), now)
        if (not done and not listed) or key == self._drawn:
            return
        self._drawn = key
        runs = _in_order([*{**known, **now}.values()])
        shown = self.order.shown(runs)
        marks = dict(zip(self.marked, LETTERS, strict=False))
        rows: list[RunRow] = []
        for name, members in self.order.grouped(shown):
            if name:
                rows.append(RunRow(members[0], head=f"{name} ({len(members)})"))
            rows += [RunRow(run, marks.get(run.run, "")) for run in members]
        self.table.filtered = self.order.condition is not None
        self.table.sorted_by = self.order.by.name if self.order.by is not None else ""
        self.table.show(rows)
        self.query_one("#runs-line", Words).show(self._words(runs, len(shown), done=done))

    def _words(self, runs: Sequence[RunSummary], shown: int, *, done: bool) -> str:
        if not runs:
            return "no runs"
        failed = sum(1 for run in runs if run.state == "failed")
        going = sum(1 for run in runs if run.state == "running")
        parts = [f"{len(runs):,} runs", f"{failed:,} failed"]
        if going:
            parts.insert(1, f"{going} going on")
        if not done:
            parts.append("reading more…")
        line = ", ".join(parts)
        if self.order.words:
            left = f", {shown:,} shown" if self.order.condition is not None else ""
            line += f"; {self.order.words}{left}"
        if self.marked:
            more = "c compares them" if len(self.marked) > 1 else "m marks another"
            return f"{line}; {len(self.marked)} marked: {more}"
        return f"{line}; Escape, Enter or a double click shows one"


def _in_order(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Those that go on first, then the newest."""
    return sorted(runs, key=lambda run: (run.state != "running", -run.started))


def _as_seen(run: RunSummary | None, task: RequestTask) -> RunSummary:
    """Return a run as the task that follows it shows it."""
    with task.reading():
        run = seen_in(run or _new(task), task.run)
    return msgspec.structs.replace(run, state="running") if task.goes_on else run


def _new(task: RequestTask) -> RunSummary:
    """Return a run that was not there when the list was made."""
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
