"""A check: findings worst first, the evidence of the one under the cursor, the host x check grid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from distconsole.model.events import CheckReport
from distconsole.model.findings import Finding, Severity
from distconsole.text.check import changes_text, proof_text
from distconsole.tui.feeds import Feed
from distconsole.tui.pictures import OUTCOME_MARKS, OUTCOME_ORDER, SEVERITY_MARKS, CheckPicture
from distconsole.tui.widgets.line_table import Column, LineTable
from distconsole.tui.widgets.lines import Words


@dataclass(frozen=True, slots=True)
class GridRow:
    """One check over all hosts."""

    check: str
    cells: tuple[str, ...]

    @property
    def worst(self) -> int:
        """How early it should be read: 0 first."""
        return min(
            (OUTCOME_ORDER.index(cell) for cell in self.cells if cell in OUTCOME_ORDER), default=99
        )


def _hosts(finding: Finding) -> str:
    if not finding.hosts:
        return "all"
    first, *others = finding.hosts
    return f"{first} +{len(others)}" if len(others) > 1 else ",".join(finding.hosts)


FINDING_COLUMNS: list[Column[Finding]] = [
    Column("", 6, lambda finding: Text(*SEVERITY_MARKS[finding.severity])),
    Column("hosts", 14, _hosts, need=1),
    Column("check", 22, lambda finding: Text(finding.check, style="faint"), need=2),
    Column("finding", 50, lambda finding: finding.summary),
]


def _marks(row: GridRow) -> Text:
    text = Text()
    for outcome in row.cells:
        mark, style = OUTCOME_MARKS.get(outcome, (" ", ""))
        text.append(f"{mark} ", style=style)
    return text


def _counts(row: GridRow) -> Text:
    """What came out, worst first, as counts; a check of all hosts together says it in a word."""
    text = Text()
    counts = Counter(cell for cell in row.cells if cell)
    for outcome in OUTCOME_ORDER:
        if counts[outcome]:
            words = outcome.replace("_", " ")
            count = f"{counts[outcome]} " if len(row.cells) > 1 else ""
            text.append(f"{count}{words}  ", style=OUTCOME_MARKS[outcome][1])
    return text


GRID_COLUMNS: list[Column[GridRow]] = [
    Column("check", 26, lambda row: row.check),
    Column("outcome", 18, _counts),
    Column("host by host", 16, _marks),
]


class CheckView(Vertical):
    """Findings, evidence, grid."""

    DEFAULT_CSS = """
    CheckView > #check-line { height: 1; padding: 0 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    CheckView > #findings { max-height: 40%; }
    CheckView > #evidence { height: auto; max-height: 35%; border-top: solid $panel; padding: 0 1; }
    CheckView > #grid { height: 1fr; border-top: solid $panel; }
    """

    _report: CheckReport | None = None

    def compose(self) -> ComposeResult:
        """The three parts."""
        yield Words("no check yet: type 'check', or press F7", id="check-line")
        yield LineTable(
            FINDING_COLUMNS,
            same=lambda finding: (finding.check, finding.hosts, finding.summary),
            empty="nothing to mend so far",
            id="findings",
        )
        with VerticalScroll(id="evidence"):
            yield Words(id="evidence-text")
        yield LineTable(
            GRID_COLUMNS, same=lambda row: row.check, empty="nothing looked at yet", id="grid"
        )

    def draw(self, feed: Feed) -> None:
        """Show how far the check of ``feed`` got."""
        with feed.reading():
            picture = feed.check
            findings = [f for f in picture.worst_first() if f.severity is not Severity.OK]
            grid = _grid(picture)
            line = _line(picture, len(grid), done=feed.done)
            self._report = picture.report
        table: LineTable[Finding] = self.query_one("#findings", LineTable)
        table.show(findings)
        self.query_one("#grid", LineTable).show(grid)
        self.query_one("#check-line", Words).show(line)
        self._explain(table.row_under_cursor())

    @on(LineTable.Moved, "#findings")
    def show_evidence(self, event: LineTable.Moved) -> None:
        """Show the evidence of the finding under the cursor."""
        self._explain(event.table.row_under_cursor())

    def _explain(self, finding: Finding | None) -> None:
        text, report = Text(), self._report
        if finding is not None:
            if len(finding.hosts) > 1:
                _labelled(text, "hosts", ", ".join(finding.hosts))
            _labelled(text, "seen", finding.seen)
            _labelled(text, "expected", finding.expected)
            for label, words in proof_text(finding):
                _labelled(text, label, words)
            _labelled(text, "hint", finding.hint)
            if report is not None and finding.severity is Severity.FAIL:
                text.append("\n".join(changes_text(report, finding.hosts or None)))
        elif report is not None:
            _labelled(text, "not covered", "; ".join(report.uncovered))
        text.rstrip()
        self.query_one("#evidence-text", Words).show(text)
        self.query_one("#evidence").display = bool(text)


def _labelled(text: Text, label: str, words: str) -> None:
    if words:
        text.append(f"{label}: ", style="note" if label == "hint" else "strong")
        text.append(f"{words}\n")


def _grid(picture: CheckPicture) -> list[GridRow]:
    """One row a check, troubled ones first; once there is a report nothing runs any more."""
    hosts = list(dict.fromkeys(host for cells in picture.cells.values() for host in cells if host))
    rows = [
        GridRow(
            check,
            tuple(cells.get(host, "") for host in hosts)
            if any(host in cells for host in hosts)
            else tuple(cells.values()),
        )
        for check, cells in sorted(picture.cells.items())
    ]
    if picture.report is not None:
        rows = [row for row in rows if set(row.cells) != {"running"}]
    return sorted(rows, key=lambda row: row.worst)


def _line(picture: CheckPicture, checks: int, *, done: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    report = picture.report
    if report is None:
        running = [check for check, cells in picture.cells.items() if "running" in cells.values()]
        now = f": {', '.join(running[:3])}" if running and not done else ""
        words = "the check ended without a report" if done else f"checking{now}"
        return text.append(words, style="warn" if done else "note")
    counts = Counter(finding.severity for finding in report.findings)
    if report.ok:
        text.append("✓ healthy", style="good")
    else:
        text.append("✗ not healthy", style="bad")
    parts = [
        f"{counts[severity]} {word}{'s' if counts[severity] > 1 else ''}"
        for severity, word in ((Severity.FAIL, "failure"), (Severity.WARN, "warning"))
        if counts[severity]
    ]
    hosts = len(report.hosts)
    parts.append(f"{checks} checks on {hosts} host{'s' if hosts != 1 else ''}")
    return text.append(f"  {', '.join(parts)}, {report.seconds:.1f} s")
