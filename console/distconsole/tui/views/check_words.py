"""A check as rows, lines and pages for its view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from distconsole.expression import Condition
from distconsole.model.check_outcome import UNKNOWN
from distconsole.model.findings import Cure, Finding, Severity
from distconsole.model.reports import CheckOutcome, CheckReport, ChoiceReport
from distconsole.runs.conditions.check_fields import CheckRow
from distconsole.text.check import changes_text, cure_lines, passed_text, proof_text
from distconsole.text.choices import RED, panel_lines
from distconsole.text.tables import Column, count_text
from distconsole.tui.view_models.check import (
    OUTCOME_MARKS,
    OUTCOME_ORDER,
    SEVERITY_MARKS,
    CheckModel,
)
from distconsole.tui.view_models.pairs import LOOKS, Pair, Pairs


@dataclass(frozen=True, slots=True)
class GridRow:
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


def grid_rows(model: CheckModel, condition: Condition[CheckRow] | None = None) -> list[GridRow]:
    """One row a check, troubled ones first, of the cells that match; once there is a report nothing runs any more."""
    hosts = _all_hosts(model)
    matching = _matching_cells(model, condition)
    rows = []
    for check, cells in sorted(model.cells.items()):
        of_hosts = any(host in cells for host in hosts)
        places = hosts if of_hosts else tuple(cells)
        places_shown = (host for host in cells if matching is None or (check, host) in matching)
        seen = {host: cells[host] for host in places_shown}
        if seen:
            rows.append(GridRow(check, tuple(seen.get(host, "") for host in places)))
    if model.report is not None:
        rows = [row for row in rows if set(row.cells) != {"running"}]
    return sorted(rows, key=lambda row: row.worst)


def match_findings(
    model: CheckModel, condition: Condition[CheckRow] | None
) -> tuple[list[Finding], int]:
    """Return the findings that match, worst first, and how many there are of which to read."""
    found = [each for each in model.worst_first() if each.severity is not Severity.OK]
    if condition is None:
        return found, len(found)
    hosts = _all_hosts(model)
    rows = [
        CheckRow(each.check, each.hosts or hosts, each.severity.value, (each.summary,))
        for each in found
    ]
    answers = condition.answers(rows)
    return [each for each, yes in zip(found, answers, strict=True) if yes], len(found)


def _all_hosts(model: CheckModel) -> tuple[str, ...]:
    cells = model.cells.values()
    return tuple(dict.fromkeys(host for each in cells for host in each if host))


def _matching_cells(
    model: CheckModel, condition: Condition[CheckRow] | None
) -> set[tuple[str, str]] | None:
    """Return check and host of each cell that matches; None where all are shown."""
    if condition is None:
        return None
    said: dict[tuple[str, str], list[str]] = {}
    for finding in model.findings:
        for host in ("", *finding.hosts):
            said.setdefault((finding.check, host), []).append(finding.summary)
    places = [(check, host) for check, cells in model.cells.items() for host in cells]
    hosts = _all_hosts(model)
    rows = []
    for check, host in places:
        named, words = (host,) if host else hosts, tuple(said.get((check, host), ()))
        rows.append(CheckRow(check, named, model.cells[check][host], words))
    return {place for place, yes in zip(places, condition.answers(rows), strict=True) if yes}


OUTCOME_WORDS = {
    CheckOutcome.HEALTHY: ("✓ healthy", "good"),
    CheckOutcome.FAILED: ("✗ not healthy", "bad"),
    CheckOutcome.INCOMPLETE: ("? incomplete", "warn"),
}


def check_line(model: CheckModel, *, done: bool, cancelled: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    report = model.report
    running = model.running() if not done else []
    now = f": {', '.join(running[:3])}" if running else ""
    if report is None:
        words = "the check ended without a report" if done else f"checking{now}"
        if cancelled:
            words = "incomplete: cancelled" if done else "cancelling, once the hosts have answered"
        return text.append(words, style="warn" if done or cancelled else "note")
    if model.again:
        text.append_text(_again(model, now, done=done, cancelled=cancelled)).append("  ")
    counts = Counter(finding.severity for finding in report.findings)
    text.append(*OUTCOME_WORDS[report.outcome])
    parts = ["cancelled"] if report.cancelled else []
    unreached = sum(not host.reachable for host in report.hosts.values())
    if unreached and not report.cancelled:
        parts.append(f"{count_text(unreached, 'host')} not reached")
    for severity, word in ((Severity.FAIL, "failure"), (Severity.WARN, "warning")):
        if counts[severity]:
            parts.append(count_text(counts[severity], word))
    parts.append(f"{passed_text(report)} on {count_text(len(report.hosts), 'host')}")
    if report.target is not None:
        parts.append(f"for {report.target.script.rpartition('/')[2]}")
    return text.append(f"  {', '.join(parts)}, {report.seconds:.1f} s")


def _again(model: CheckModel, now: str, *, done: bool, cancelled: bool) -> Text:
    check = model.again
    if cancelled and not model.repeated:
        return Text(f"{check}: {'cancelled' if done else 'cancelling'}", style="warn")
    if not done:
        return Text(f"{check} again{now}", style="note")
    if not model.repeated:
        return Text(f"{check}: could not be made again", style="warn")
    if UNKNOWN.intersection(model.cells.get(check, {}).values()):
        return Text(f"{check}: could not be made again on every host", style="warn")
    left = any(
        found.check == check and found.severity.order >= Severity.WARN.order
        for found in model.findings
    )
    return Text(f"{check}: {'still there' if left else 'gone'}", style="warn" if left else "good")


def pairs_line(pairs: Pairs, pair: Pair | None, rounds: tuple[str, int, int]) -> Text:
    """Return what is known of one pair, how many are known, and how far what goes on is."""
    count = len(pairs.hosts)
    if not count or pair is None:
        return Text("pairs of hosts: none tried", style="faint")
    glyph, style, _ = LOOKS[pairs.state(*pair)]
    stage, number, of = rounds
    text = Text(f"{stage} round {number} of {of}  " if of else "", style="note")
    text.append(f"{glyph} ", style=style).append(pairs.told(*pair), style="strong")
    trouble = sum(number for state, number in pairs.counts.items() if state.trouble)
    parts = [f"{trouble} in trouble"] if trouble else []
    parts.append(f"{len(pairs.known)} of {count * (count - 1)} pairs known")
    return text.append(f"  {', '.join(parts)}", style="faint")


def row_words(row: GridRow, report: CheckReport | None) -> Text:
    text = Text(f"{row.check}\n\n", style="strong")
    if report is None:
        return text.append("it goes on", style="faint")
    for host, cells in report.cells.items():
        outcome = cells.get(row.check, "")
        mark, style = OUTCOME_MARKS.get(outcome, (" ", ""))
        why = report.why.get(host, {}).get(row.check, "")
        text.append(f"{mark} ", style=style).append(f"{host}: {outcome.replace('_', ' ')}")
        text.append(f": {why}\n" if why else "\n")
    text.rstrip()
    return text


def finding_words(finding: Finding, report: CheckReport | None) -> Text:
    text = Text()
    mark, style = SEVERITY_MARKS[finding.severity]
    text.append(f"{mark}  ", style=style).append(f"{finding.check}\n", style="faint")
    text.append(f"{finding.summary}\n\n", style="strong")
    add_label(text, "hosts", ", ".join(finding.hosts) or "all of them", apart=True)
    text.append_text(evidence_words(finding, report, apart=True))
    text.rstrip()
    return text


def evidence_words(finding: Finding, report: CheckReport | None, *, apart: bool = False) -> Text:
    """Return what was seen and what to do; ``apart``, as on a page of its own, also the cure as lines."""
    text = Text()
    cure = _cure_words(finding.cure) if finding.cure is not None and apart else ""
    facts = (("seen", finding.seen), ("expected", finding.expected), *proof_text(finding))
    for label, words in (*facts, ("hint", finding.hint), ("cure", cure)):
        add_label(text, label, words, apart=apart)
    if report is not None and finding.severity is Severity.FAIL:
        text.append("\n".join(changes_text(report, finding.hosts or None)))
    return text


def _cure_words(cure: Cure) -> str:
    by_run = [f"`distconsole run`: {cure.by_run}"] if cure.by_run else []
    return "\n".join([*cure_lines(cure), *by_run])


def pair_words(pair: Pair, pairs: Pairs, report: CheckReport | None) -> Text:
    text = Text()
    for source, target in (pair, pair[::-1]):
        glyph, style, _ = LOOKS[pairs.state(source, target)]
        text.append(f"{glyph} ", style=style).append(f"{pairs.told(source, target)}\n")
    text.append("\n")
    for finding in report.findings if report is not None else ():
        if set(finding.hosts) & set(pair) and finding.severity.order >= Severity.WARN.order:
            text.append(finding_words(finding, None)).append("\n\n")
    text.rstrip()
    return text


def add_label(text: Text, label: str, words: str, *, apart: bool = False) -> None:
    """Add words, if any, under a label; ``apart`` puts several lines below it and an empty one after them."""
    if not words:
        return
    text.append(f"{label}: ", style="note" if label == "hint" else "strong")
    if apart and "\n" in words:
        words = "\n  " + words.replace("\n", "\n  ")
    text.append(f"{words}\n" + ("\n" if apart else ""))


def choices_words(choices: Sequence[ChoiceReport], width: int, *, done: bool) -> Text:
    """Return which interface each engine takes on each host; ``done`` says that no more will come."""
    if not choices:
        end = "no engine that takes an interface was looked at"
        return Text(end if done else "the interfaces that each engine takes: not known yet")
    text = Text("\n".join(panel_lines(choices, len(choices), width)))
    text.highlight_regex(rf"{RED}\S*", "bad")
    return text
