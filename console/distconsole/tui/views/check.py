"""A check: verdict, findings worst first with cause and cure, checks by host, pairs of hosts, chosen interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widget import Widget

from distconsole.model import requests as ask
from distconsole.model.findings import Finding
from distconsole.model.reports import CheckReport
from distconsole.runs.conditions.check_fields import CHECK_FIELDS, CheckRow, check_condition
from distconsole.text.check import stages_text
from distconsole.tui.later import RunLine
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.check import same_finding
from distconsole.tui.view_models.pairs import Pair, Pairs
from distconsole.tui.views import check_words
from distconsole.tui.views.check_rows import (
    FINDING_COLUMNS,
    GRID_COLUMNS,
    GRID_LEGEND,
    GridRow,
    grid_rows,
    group_rows,
    groups_with_room,
    match_findings,
)
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line, Verdict, Words
from distconsole.tui.widgets.pair_matrix import PairMatrix
from distconsole.tui.widgets.panel import Panel
from distconsole.tui.widgets.tiles import Tiles


class Page(StrEnum):
    """Parts by their widgets' ids: a small screen shows one, a large one the first three side by side."""

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
        """The page was read. Said twice, by keys that come together, it is the same as once."""

    def compose(self) -> ComposeResult:
        yield Words("◂ back: Escape, Enter, or click here", id="page-back")
        yield Words(id="page-words")

    def show(self, words: Text, *, from_top: bool = True) -> None:
        """Show ``words``, from their beginning or at the reader's place."""
        self.query_one("#page-words", Words).show(words)
        if from_top:
            self.scroll_home(animate=False)

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def on_click(self, event: events.Click) -> None:
        if event.widget is self.query_one("#page-back"):
            self.action_leave()


WIDE_COLUMNS, WIDE_LINES = 140, 34
"""Least size of a view that shows pairs and interfaces beside the findings."""
TILES = 5
SLOWEST_STAGES = 2
LEAST_ROWS = 2
"""Rows of findings and checks, in however small a view."""


class CheckView(OrderedView[CheckRow]):
    DEFAULT_CSS = """
    CheckView Tile:last-child { width: 4fr; }
    CheckView #check-left { width: 3fr; }
    CheckView #check-right { width: 2fr; }
    CheckView #grid-panel, CheckView #choices-panel, CheckView > #page-panel { height: 1fr; }
    CheckView #findings, CheckView #grid, CheckView #evidence, CheckView #choices { height: 1fr; }
    CheckView #evidence, CheckView #choices { scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    CheckView #pairs, CheckView #finding { padding: 0; }
    CheckView #pairs-line { padding: 0; color: $text-muted; }
    """

    fields = CHECK_FIELDS
    usual = "outcome"
    page = Page.FINDINGS
    _before = Page.FINDINGS
    _report: CheckReport | None = None
    _pairs = Pairs()
    _rounds = ("", 0, 0)
    _done = True
    _beside = True
    """True if there is, or may come, news of pairs or interfaces."""
    _opened: Finding | GridRow | Pair | None = None
    _opener: Widget | None = None
    """The focused widget before the page was opened."""
    _checks: Sequence[GridRow] = ()
    _turned: frozenset[str] = frozenset()
    """Groups folded in spite of room for their checks, or unfolded without."""

    def compose(self) -> ComposeResult:
        yield Verdict("no check yet: type 'check', or press F7", id="check-line")
        yield Tiles(TILES, id="check-tiles")
        with Horizontal(id="check-panes"):
            with Vertical(id="check-left"):
                with Panel("Findings", keys="Enter open · s sort · f filter", id="findings-panel"):
                    none = "no findings so far"
                    yield LineTable(FINDING_COLUMNS, same=same_finding, empty=none, id="findings")
                with Panel(id="evidence-panel"), VerticalScroll(id="evidence"):
                    yield Words(id="evidence-text")
                with Panel("Checks", keys="Enter its checks", legend=GRID_LEGEND, id="grid-panel"):
                    none = "nothing looked at yet"
                    yield LineTable(
                        GRID_COLUMNS,
                        same=lambda row: (row.check, row.checks),
                        empty=none,
                        id="grid",
                    )
            with Vertical(id="check-right"):
                with Panel("Network between hosts", keys="n next in trouble", id="pairs-panel"):
                    yield Line(id="pairs-line")
                    yield PairMatrix(id="pairs")
                title = "Interfaces with `run` · by hand"
                panel = Panel(title, id="choices-panel")
                with panel, VerticalScroll(id="choices"):
                    yield Words(id="choices-text")
        with Panel(keys="Esc back", id="page-panel"):
            yield FindingPage(id="finding")

    def on_mount(self) -> None:
        self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    @property
    def is_wide(self) -> bool:
        return self.size.width >= WIDE_COLUMNS and self.size.height >= WIDE_LINES

    def filter(self, text: str) -> None:
        """Show only findings and cells that match ``text``; all if it is empty; raises ``UsageError`` if it is invalid."""
        self._take(replace(self.order, condition=check_condition(text) if text else None))
        self.page = Page.FINDINGS
        self._lay_out()

    def turn_to(self, page: Page, focus: Widget | None = None) -> None:
        """Show ``page``, or the findings again if it is shown, and focus it, or ``focus``."""
        if page is not Page.FINDING and page is self.page and not self.is_wide:
            page = Page.FINDINGS
        if page is Page.FINDING and self.page is not Page.FINDING:
            self._before = self.page
        self.page = page
        self._lay_out()
        self.call_after_refresh(
            self.screen.set_focus, focus or self.query_one(f"#{self.page}", Widget)
        )

    def turn_beside(self, what: str) -> None:
        """Show the ``pairs`` or the ``interfaces``, or the findings again."""
        self.turn_to(Page.PAIRS if what == "pairs" else Page.CHOICES)

    def step_back(self) -> bool:
        """Leave the page in place of the findings; return False without one."""
        if self.page is Page.FINDING:
            self.leave_page()
        elif self.page is not Page.FINDINGS and not self.is_wide:
            self.turn_to(Page.FINDINGS)
        else:
            return False
        return True

    def _lay_out(self) -> None:
        wide, page = self.is_wide, self.page
        inside = page is not Page.FINDING
        self.query_one("#page-panel").display = not inside
        self.query_one("#check-panes").display = inside
        self.query_one("#check-left").display = wide or page is Page.FINDINGS
        right = wide and self._beside if page is Page.FINDINGS else True
        self.query_one("#check-right").display = right
        self.query_one("#pairs-panel").display = wide or page is Page.PAIRS
        self.query_one("#choices-panel").display = wide or page is Page.CHOICES
        self.query_one("#check-tiles").display = wide or page is Page.FINDINGS
        self._share_lines()

    def draw(self, task: RequestTask) -> None:
        with task.lock:
            model = task.check
            findings, count = match_findings(model, self.order)
            checks = grid_rows(model, self.order)
            total = len(model.cells)
            request = task.request
            level = request.level.value if isinstance(request, ask.Check) else ""
            about = check_words.check_about(model.report, level)
            seconds = task.load_clock() - task.began
            cancelled = task.is_cancelled
            verdict = check_words.check_verdict(
                model, done=task.done, cancelled=cancelled, seconds=seconds
            )
            tiles = check_words.check_tiles(model)
            self._report, self._pairs = model.report, model.pairs
            choices, self._rounds = model.choices, model.rounds
            self._done, known = task.done, list(model.findings)
        self.query_one("#check-line", Verdict).say(*verdict, about)
        self.query_one("#check-tiles", Tiles).show(tiles)
        whole = self.order.condition is None
        found = f"{count}" if whole else f"{len(findings)} of {count}"
        self.query_one("#findings-panel", Panel).entitle(f"Findings {found}", self.order.words)
        self.query_one("#findings", LineTable).show(findings)
        self._checks = checks
        title = f"Checks {total} by group" if whole else f"Checks {len(checks)} of {total}"
        report = self._report
        slowest = stages_text(report, SLOWEST_STAGES) if report is not None else ""
        self.query_one("#grid-panel", Panel).entitle(title, slowest)
        self.query_one(PairMatrix).show(self._pairs)
        self.tell_pair()
        width = max(1, self.query_one("#choices").scrollable_content_region.width)
        self.query_one("#choices-text", Words).show(
            check_words.choices_words(choices, width, done=task.done)
        )
        self._explain()
        self._freshen(known)
        self._beside = bool(self._pairs.hosts or choices or not task.done)
        self._lay_out()

    def _share_lines(self) -> None:
        """Share the lines: findings and interfaces take their need, up to some part; checks and pairs the rest."""
        panels = {
            each: self.query_one(f"#{each}-panel", Panel)
            for each in ("findings", "evidence", "grid", "pairs")
        }
        frame = 2 if panels["grid"].framed else 1
        lines = self.size.height - 1 - (frame + 1 if frame > 1 else 1)
        listed = len(self.query_one("#findings", LineTable).rows)
        folded = len(self._grid_rows(0))
        least = frame + 1 + min(folded, LEAST_ROWS if frame == 1 else 3 * LEAST_ROWS)
        room = max(0, lines - least)
        findings = min(frame + 1 + max(1, listed), max(frame + 1 + LEAST_ROWS, room // 2))
        words = check_words.line_count(self.query_one("#evidence-text", Words))
        evidence = min(frame + words, room - findings) if words else 0
        evidence = evidence if evidence > frame else 0
        panels["evidence"].display = bool(evidence)
        panels["findings"].styles.height = findings
        panels["evidence"].styles.height = evidence
        left = lines - findings - evidence - frame - 1
        self.query_one("#grid", LineTable).show(self._grid_rows(left if self.is_wide else 0))
        pairs = frame + 1 + self.query_one(PairMatrix).wanted_lines
        panels["pairs"].styles.height = min(pairs, lines * 2 // 3) if self.is_wide else "1fr"

    def _grid_rows(self, lines: int) -> Sequence[GridRow]:
        """Return the checks by group; on a large screen those that fit into ``lines`` are unfolded."""
        if self.order.condition is not None:
            return self._checks
        return group_rows(self._checks, groups_with_room(self._checks, lines) ^ self._turned)

    def _freshen(self, findings: list[Finding]) -> None:
        """Update an opened page: a cure may have been tried since."""
        before = self._opened
        if self.page is not Page.FINDING:
            return
        if isinstance(before, Finding):
            same = (each for each in findings if same_finding(each) == same_finding(before))
            self._opened = next(same, before)
        self.query_one(FindingPage).show(self._page_words(), from_top=False)

    def _page_words(self) -> Text:
        opened, width = (
            self._opened,
            max(1, self.query_one(FindingPage).scrollable_content_region.width),
        )
        match opened:
            case Finding():
                return check_words.finding_words(opened, self._report, width)
            case GridRow():
                return check_words.row_words(opened, self._report, width)
            case None:
                return Text()
            case pair:
                return check_words.pair_words(pair, self._pairs, self._report, width)

    def finding_under_cursor(self) -> Finding | None:
        if self.page is Page.FINDING:
            return self._opened if isinstance(self._opened, Finding) else None
        return self.query_one("#findings", LineTable).row_under_cursor()

    def check_under_cursor(self) -> str:
        """Return the check under the cursor: in the grid while focused, else of the finding."""
        opened = self._opened if self.page is Page.FINDING else None
        if isinstance(opened, Finding | GridRow):
            return opened.check
        grid, findings = self.query_one("#grid", LineTable), self.query_one("#findings", LineTable)
        row = grid.row_under_cursor() if grid.has_focus else findings.row_under_cursor()
        return "" if row is None or (isinstance(row, GridRow) and row.checks) else str(row.check)

    @on(LineTable.Chosen)
    @on(PairMatrix.Chosen)
    def open(self) -> None:
        """Open the page of the item under the cursor, or leave it; fold or unfold a group of checks."""
        matrix, grid = self.query_one(PairMatrix), self.query_one("#grid", LineTable)
        findings = self.query_one("#findings", LineTable)
        finding: Finding | None = findings.row_under_cursor()
        listed = grid.has_focus or findings.has_focus
        if self.page is Page.FINDING:
            self.leave_page()
        elif (matrix.has_focus or (self.page is Page.PAIRS and not listed)) and matrix.pair:
            self._open(matrix.pair, " - ".join(matrix.pair))
        elif grid.has_focus:
            self._open_check(grid.row_under_cursor())
        elif finding is not None:
            self._open(finding, check_words.title_of(finding))

    @on(LineTable.Moved, "#findings")
    def show_evidence(self) -> None:
        self._explain()
        self._share_lines()

    def _open_check(self, row: GridRow | None) -> None:
        if row is None:
            return
        if row.checks:
            self._turned ^= {row.check}
            self.post_message(RunLine("view check"))
            return
        findings = self._report.findings if self._report is not None else ()
        finding = next((each for each in findings if each.check == row.check), None)
        self._open(
            finding or row, check_words.title_of(finding) if finding is not None else row.check
        )

    @on(PairMatrix.Moved)
    def tell_pair(self) -> None:
        pair = self.query_one(PairMatrix).pair
        rounds = ("", 0, 0) if self._done else self._rounds
        told, line = (
            check_words.pairs_line(self._pairs, pair, rounds),
            self.query_one("#pairs-line", Line),
        )
        line.show(told)
        panel = self.query_one("#pairs-panel", Panel)
        line.display = panel.framed
        panel.entitle(
            "Network between hosts" if panel.framed else told.plain,
            check_words.pairs_count(self._pairs),
        )

    def _open(self, what: Finding | GridRow | Pair, title: str) -> None:
        self._opened = what
        self._opener = self.screen.focused if self.has_focus_within else None
        self.query_one("#page-panel", Panel).entitle(title)
        self.turn_to(Page.FINDING)
        page = self.query_one(FindingPage)
        page.show(self._page_words())

    @on(FindingPage.Left)
    def leave_page(self) -> None:
        if self.page is Page.FINDING:
            self.turn_to(self._before, self._opener)

    def _explain(self) -> None:
        """Show the evidence and cure of the finding under the cursor; without one, notes on the check itself."""
        finding: Finding | None = self.query_one("#findings", LineTable).row_under_cursor()
        width = max(1, self.query_one("#evidence").scrollable_content_region.width)
        text = check_words.report_words(self._report, width)
        if finding is not None:
            text = check_words.finding_words(finding, self._report, width)
        title = "About this check" if finding is None else check_words.title_of(finding)
        self.query_one("#evidence-panel", Panel).entitle(title)
        self.query_one("#evidence-text", Words).show(text)
