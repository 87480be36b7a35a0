"""A check: findings worst first, hosts by checks, pairs of hosts, interfaces taken, and one finding in full."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widget import Widget

from distconsole.expression import Condition
from distconsole.model.findings import Finding
from distconsole.model.reports import CheckReport
from distconsole.runs.conditions.check_fields import CheckRow, check_condition
from distconsole.text.check import target_text
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.check import same_finding
from distconsole.tui.view_models.pairs import Pairs
from distconsole.tui.views.check_words import (
    FINDING_COLUMNS,
    GRID_COLUMNS,
    GridRow,
    add_label,
    check_line,
    choices_words,
    evidence_words,
    finding_words,
    grid_rows,
    match_findings,
    pair_words,
    pairs_line,
    row_words,
)
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line, Words
from distconsole.tui.widgets.pair_matrix import PairMatrix


class Page(StrEnum):
    """What a small screen shows one of, by the id of its widget; a large one shows the first three side by side."""

    FINDINGS = "findings"
    PAIRS = "pairs"
    CHOICES = "choices"
    FINDING = "finding"


class FindingPage(VerticalScroll, can_focus=True):
    """One page; Escape, Enter or a click on its first line leaves it."""

    DEFAULT_CSS = """
    FindingPage { padding: 0 1; height: 1fr; scrollbar-size-vertical: 1; }
    FindingPage > #page-back { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,backspace,q", "leave", "Back", show=False)
    ]

    class Left(Message):
        """The page was read."""

    def compose(self) -> ComposeResult:
        yield Words("◂ back: Escape, Enter, or click here", id="page-back")
        yield Words(id="page-words")

    def show(self, words: Text, *, from_top: bool = True) -> None:
        """Show ``words``; from their beginning unless somebody reads them already."""
        self.query_one("#page-words", Words).show(words)
        if from_top:
            self.scroll_home(animate=False)

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def on_click(self, event: events.Click) -> None:
        if event.widget is self.query_one("#page-back"):
            self.action_leave()


WIDE_COLUMNS, WIDE_LINES = 140, 34
"""From so much room on, pairs and interfaces stand beside the findings."""


class CheckView(Vertical):
    DEFAULT_CSS = """
    CheckView > #check-line { text-style: bold; }
    CheckView > #check-filter { display: none; color: $text-accent; }
    CheckView #check-left { width: 1fr; }
    CheckView #findings { max-height: 40%; }
    CheckView #evidence { height: auto; max-height: 35%; border-top: solid $panel; padding: 0 1; }
    CheckView #grid { height: 1fr; border-top: solid $panel; }
    CheckView #check-right { width: 1fr; }
    CheckView #choices { padding: 0 1; scrollbar-size-vertical: 1; }
    CheckView #pairs-line { color: $text-muted; }
    CheckView.-wide #check-right { border-left: solid $panel; }
    CheckView.-wide #choices { height: auto; max-height: 40%; border-top: solid $panel; }
    """

    page = Page.FINDINGS
    _before = Page.FINDINGS
    _report: CheckReport | None = None
    _pairs = Pairs()
    _rounds = ("", 0, 0)
    _done = True
    _opened: Finding | None = None
    condition: Condition[CheckRow] | None = None

    def compose(self) -> ComposeResult:
        yield Line("no check yet: type 'check', or press F7", id="check-line")
        yield Line(id="check-filter")
        with Horizontal(id="check-panes"):
            with Vertical(id="check-left"):
                none = "nothing to mend so far"
                yield LineTable(FINDING_COLUMNS, same=same_finding, empty=none, id="findings")
                with VerticalScroll(id="evidence"):
                    yield Words(id="evidence-text")
                none = "nothing looked at yet"
                yield LineTable(GRID_COLUMNS, same=lambda row: row.check, empty=none, id="grid")
            with Vertical(id="check-right"):
                yield Line(id="pairs-line")
                yield PairMatrix(id="pairs")
                with VerticalScroll(id="choices"):
                    yield Words(id="choices-text")
        yield FindingPage(id="finding")

    def on_mount(self) -> None:
        self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    @property
    def is_wide(self) -> bool:
        return self.size.width >= WIDE_COLUMNS and self.size.height >= WIDE_LINES

    def filter(self, text: str) -> None:
        """Show only findings and cells of the grid that match ``text``; all if it is empty; raises ``UsageError`` if it means nothing."""
        self.condition = check_condition(text) if text else None
        self.page = Page.FINDINGS
        self._lay_out()
        for table in self.query(LineTable):
            table.to_top()

    def turn_to(self, page: Page) -> None:
        """Show ``page``, or the findings again if it is shown, and put the cursor there."""
        if page is not Page.FINDING and page is self.page and not self.is_wide:
            page = Page.FINDINGS
        if page is Page.FINDING and self.page is not Page.FINDING:
            self._before = self.page
        self.page = page
        self._lay_out()
        self.call_after_refresh(self._focus_page)

    def step_back(self) -> bool:
        """Leave the page that stands in place of the findings; return whether there was one."""
        if self.page is Page.FINDING:
            self.leave_page()
        elif self.page is not Page.FINDINGS and not self.is_wide:
            self.turn_to(Page.FINDINGS)
        else:
            return False
        return True

    def _focus_page(self) -> None:
        self.screen.set_focus(self.query_one(f"#{self.page}", Widget))

    def _lay_out(self) -> None:
        wide, page = self.is_wide, self.page
        self.set_class(wide, "-wide")
        inside = page is not Page.FINDING
        self.query_one("#finding").display = not inside
        self.query_one("#check-panes").display = inside
        self.query_one("#check-left").display = wide or page is Page.FINDINGS
        self.query_one("#check-right").display = wide or page in (Page.PAIRS, Page.CHOICES)
        for each in ("#pairs", "#pairs-line"):
            self.query_one(each).display = wide or page is Page.PAIRS
        self.query_one("#choices").display = wide or page is Page.CHOICES

    def draw(self, task: RequestTask) -> None:
        with task.lock:
            model = task.check
            findings, count = match_findings(model, self.condition)
            grid = grid_rows(model, self.condition)
            checks = len(grid if self.condition is None else grid_rows(model))
            line = check_line(model, done=task.done, cancelled=task.is_cancelled)
            self._report, self._pairs = model.report, model.pairs
            choices, self._rounds = model.choices, model.rounds
            self._done, known = task.done, list(model.findings)
        table: LineTable[Finding] = self.query_one("#findings", LineTable)
        cells: LineTable[GridRow] = self.query_one("#grid", LineTable)
        told, condition = self.query_one("#check-filter", Line), self.condition
        told.display = table.filtered = cells.filtered = condition is not None
        left = f"{len(findings)} of {count} findings, {len(grid)} of {checks} checks"
        told.show(f"filter {condition.text}  {left}" if condition is not None else "")
        table.show(findings)
        cells.show(grid)
        self.query_one("#check-line", Line).show(line)
        self.query_one(PairMatrix).show(self._pairs)
        self.tell_pair()
        width = max(1, self.query_one("#choices").content_size.width)
        self.query_one("#choices-text", Words).show(choices_words(choices, width, done=task.done))
        self._explain(table.row_under_cursor())
        self._freshen(known)

    def _freshen(self, findings: list[Finding]) -> None:
        """Show an opened finding as it is now: its cure may have been tried since."""
        before = self._opened
        if before is None or self.page is not Page.FINDING:
            return
        newer = (each for each in findings if same_finding(each) == same_finding(before))
        finding = next(newer, before)
        if finding != before:
            self._opened = finding
            self.query_one(FindingPage).show(finding_words(finding, self._report), from_top=False)

    def check_under_cursor(self) -> str:
        """Return the check that is pointed at: in the grid while that has the focus, else of the finding."""
        if self.page is Page.FINDING and self._opened is not None:
            return self._opened.check
        grid, findings = self.query_one("#grid", LineTable), self.query_one("#findings", LineTable)
        row = grid.row_under_cursor() if grid.has_focus else findings.row_under_cursor()
        return "" if row is None else str(row.check)

    def open(self) -> None:
        """Show everything about the finding, or the pair, that is pointed at."""
        matrix = self.query_one(PairMatrix)
        finding: Finding | None = self.query_one("#findings", LineTable).row_under_cursor()
        if (matrix.has_focus or self.page is Page.PAIRS) and matrix.pair is not None:
            self._show_pair(PairMatrix.Chosen(matrix.pair))
        elif finding is not None:
            self._open(finding)

    @on(LineTable.Moved, "#findings")
    def show_evidence(self, event: LineTable.Moved) -> None:
        self._explain(event.table.row_under_cursor())

    @on(LineTable.Chosen, "#findings")
    def show_finding(self, event: LineTable.Chosen) -> None:
        finding = event.table.row_under_cursor()
        if finding is not None:
            self._open(finding)

    @on(LineTable.Chosen, "#grid")
    def show_check(self, event: LineTable.Chosen) -> None:
        row = event.table.row_under_cursor()
        if row is None:
            return
        findings = self._report.findings if self._report is not None else ()
        finding = next((each for each in findings if each.check == row.check), None)
        if finding is not None:
            self._open(finding)
        else:
            self._show_page(row_words(row, self._report))

    @on(PairMatrix.Moved)
    def tell_pair(self) -> None:
        pair = self.query_one(PairMatrix).pair
        rounds = ("", 0, 0) if self._done else self._rounds
        self.query_one("#pairs-line", Line).show(pairs_line(self._pairs, pair, rounds))

    @on(PairMatrix.Chosen)
    def _show_pair(self, event: PairMatrix.Chosen) -> None:
        self._show_page(pair_words(event.pair, self._pairs, self._report))

    def _open(self, finding: Finding) -> None:
        self._show_page(finding_words(finding, self._report), finding)

    def _show_page(self, words: Text, finding: Finding | None = None) -> None:
        self._opened = finding
        self.query_one(FindingPage).show(words)
        self.turn_to(Page.FINDING)

    @on(FindingPage.Left)
    def leave_page(self) -> None:
        self.turn_to(self._before)

    def _explain(self, finding: Finding | None) -> None:
        text, report = Text(), self._report
        if finding is not None:
            if len(finding.hosts) > 1:
                add_label(text, "hosts", ", ".join(finding.hosts))
            text.append_text(evidence_words(finding, report))
        elif report is not None:
            if report.target is not None:
                text.append("\n".join(target_text(report.target)) + "\n")
            add_label(text, "not covered", "; ".join(report.uncovered))
        text.rstrip()
        self.query_one("#evidence-text", Words).show(text)
        self.query_one("#evidence").display = bool(text)
