"""A check as rows, lines, tiles and pages for its view."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.text import Text

from distconsole.expression import Condition
from distconsole.model.check_outcome import UNKNOWN
from distconsole.model.findings import Finding, Severity
from distconsole.model.names import count_text
from distconsole.model.reports import CheckOutcome, CheckReport, ChoiceReport
from distconsole.runs.conditions.check_fields import CheckRow
from distconsole.text.check import OUTCOME_WORDS as WORDS
from distconsole.text.check import changes_text, cure_lines, proof_text, target_text
from distconsole.text.choices import RED, panel_lines
from distconsole.text.tables import Column, bar_text, shorten_middle
from distconsole.tui.prompt.completion_index import checks_by_id
from distconsole.tui.view_models.check import (
    OUTCOME_MARKS,
    OUTCOME_ORDER,
    SEVERITY_MARKS,
    CheckModel,
)
from distconsole.tui.view_models.pairs import LOOKS, Pair, Pairs
from distconsole.tui.views.row_order import RowOrder
from distconsole.tui.widgets.tiles import TileData

Thing = TypeVar("Thing")

MADE = ("pass", "warn", "fail")
"""Outcomes of a check that was made."""
BAR_CELLS = 8


@dataclass(frozen=True, slots=True)
class GridRow:
    """One check, or a group of them, with what came out on each host; ``checks`` is 0 for a check."""

    check: str
    cells: Mapping[str, tuple[str, ...]]
    hosts: tuple[str, ...]
    checks: int = 0

    @property
    def outcomes(self) -> list[str]:
        return [outcome for cells in self.cells.values() for outcome in cells]

    @property
    def done(self) -> int:
        return sum(outcome in MADE for outcome in self.outcomes)


def _urgency(outcome: str) -> int:
    """How early it should be read: 0 first."""
    return OUTCOME_ORDER.index(outcome) if outcome in OUTCOME_ORDER else len(OUTCOME_ORDER)


def _hosts(finding: Finding) -> str:
    if not finding.hosts:
        return "all"
    first, *others = finding.hosts
    return f"{first} +{len(others)}" if len(others) > 1 else ",".join(finding.hosts)


FINDING_COLUMNS: list[Column[Finding]] = [
    Column("", 6, lambda finding: Text(*SEVERITY_MARKS[finding.severity]), sort="outcome"),
    Column("hosts", 14, _hosts, need=1, sort="host"),
    Column("check", 22, lambda finding: Text(finding.check, style="faint"), need=2, sort="check"),
    Column("finding", 50, lambda finding: finding.summary, sort="finding"),
]
HOST_CELLS, MOST_HOST_CELLS = 8, 26
"""With so many cells each host has a column of marks, a check each; with fewer one mark, the worst."""


def _name(row: GridRow) -> Text:
    return Text(row.check, style="strong") if row.checks else Text(f"  {row.check}")


def _bar(row: GridRow) -> Text:
    done = round(BAR_CELLS * row.done / max(1, len(row.outcomes)))
    return Text("█" * done, style="curve").append("░" * (BAR_CELLS - done), style="faint")


def _host_heading(rows: Sequence[GridRow], room: int) -> str:
    hosts = max((row.hosts for row in rows), key=len, default=())
    each = min(MOST_HOST_CELLS, room // max(1, len(hosts)))
    if not hosts or each < HOST_CELLS:
        return "host by host" if len(hosts) <= room else "on how many hosts"
    return "".join(shorten_middle(host, each - 1).ljust(each) for host in hosts)


def _marks(row: GridRow, room: int = MOST_HOST_CELLS) -> Text:
    """What came out on each host, as marks in so many cells, or as counts where hosts have not even one each."""
    places = row.hosts or tuple(row.cells)
    each = min(MOST_HOST_CELLS, room // max(1, len(places)))
    if not each:
        return _counts(row)
    text = Text()
    for host in places:
        outcomes = sorted(row.cells.get(host, ()), key=_urgency)[
            : None if each >= HOST_CELLS else 1
        ]
        marks = Text.assemble(*(OUTCOME_MARKS.get(outcome, (" ", "")) for outcome in outcomes))
        column = each if each >= HOST_CELLS else min(2, each)
        if len(outcomes) >= column > 2:
            marks.truncate(column - 1, overflow="ellipsis")
        marks.pad_right(column - len(marks))
        text.append_text(marks)
    return text


def _counts(row: GridRow) -> Text:
    """How often what came out, worst first."""
    text, counts = Text(), Counter(row.outcomes)
    for outcome in OUTCOME_ORDER:
        if counts[outcome]:
            words = f"{counts[outcome]:,} {outcome.replace('_', ' ')}  "
            text.append(words, style=OUTCOME_MARKS[outcome][1])
    return text


GRID_COLUMNS: list[Column[GridRow]] = [
    Column("check", 22, _name, sort="check", middle=True),
    Column("done", 10, lambda row: f"{row.done:,} of {len(row.outcomes):,}", need=1),
    Column("", BAR_CELLS, _bar, need=2),
    Column("host by host", 12, _marks, fill=_marks, heading=_host_heading, sort="outcome"),
]
GRID_LEGEND = "✓ pass  ✗ fail  ! warn  - not done  ? could not run"


def grid_rows(model: CheckModel, order: RowOrder[CheckRow]) -> list[GridRow]:
    """One row a check, of the cells that match, in ``order``, else the troubled ones first; once there is a report nothing runs any more."""
    hosts = _all_hosts(model)
    matching = _matching_cells(model, order.condition)
    rows = []
    for check, cells in sorted(model.cells.items()):
        seen = {
            host: (outcome,)
            for host, outcome in cells.items()
            if matching is None or (check, host) in matching
        }
        if seen:
            rows.append(GridRow(check, seen, hosts if any(seen) else ()))
    if model.report is not None:
        rows = [row for row in rows if set(row.outcomes) != {"running"}]
    rows.sort(key=lambda row: min(map(_urgency, row.outcomes)))
    asked = [CheckRow(row.check, tuple(row.cells), "") for row in rows]
    return _in_order(rows, asked, replace(order, condition=None))


def _in_order(
    things: Sequence[Thing], rows: Sequence[CheckRow], order: RowOrder[CheckRow]
) -> list[Thing]:
    """Return those of ``things`` whose row matches, in ``order``."""
    by_row = {id(row): thing for row, thing in zip(rows, things, strict=True)}
    return [by_row[id(row)] for row in order.shown(rows)]


def group_rows(rows: Iterable[GridRow], opened: Collection[str]) -> list[GridRow]:
    """One row a group of ``rows``, the worst first, and below those that are ``opened`` their checks."""
    groups: dict[str, list[GridRow]] = {}
    for row in rows:
        groups.setdefault(row.check.partition(".")[0], []).append(row)
    found = []
    for name, members in groups.items():
        cells: dict[str, tuple[str, ...]] = {}
        for row in members:
            for host, outcomes in row.cells.items():
                cells[host] = (*cells.get(host, ()), *outcomes)
        hosts = max((row.hosts for row in members), key=len)
        found.append(GridRow(name, cells, hosts, len(members)))
        found += members if name in opened else []
    return found


def match_findings(model: CheckModel, order: RowOrder[CheckRow]) -> tuple[list[Finding], int]:
    """Return the findings that match, in ``order``, else worst first, and how many there are of which to read."""
    found = [each for each in model.worst_first() if each.severity is not Severity.OK]
    hosts = _all_hosts(model)
    rows = [
        CheckRow(each.check, each.hosts or hosts, each.severity.value, (each.summary,))
        for each in found
    ]
    return _in_order(found, rows, order), len(found)


def _all_hosts(model: CheckModel) -> tuple[str, ...]:
    if model.report is not None:
        return tuple(model.report.hosts)
    names = {host for cells in model.cells.values() for host in cells if host}
    return tuple(sorted(names, key=lambda name: (len(name), name)))


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


OUTCOME_TONES = {
    CheckOutcome.HEALTHY: ("good", "✓"),
    CheckOutcome.FAILED: ("bad", "✗"),
    CheckOutcome.INCOMPLETE: ("warn", "?"),
}


def check_verdict(model: CheckModel, *, done: bool, cancelled: bool) -> tuple[str, str, str]:
    """Return tone, mark and sentence: how it came out, what was found, how many checks were made and how many were not."""
    report, cells = model.report, _count_cells(model)
    made = sum(cells[each] for each in MADE)
    running = model.running() if not done else []
    now = f": {', '.join(running[:3])}" if running else ""
    if report is None:
        words = "the check ended without a report" if done else f"CHECKING  {made:,} made{now}"
        if cancelled:
            words = "INCOMPLETE  cancelled" if done else "cancelling, once the hosts have answered"
        return ("warn", "■", words) if done or cancelled else ("note", "…", words)
    parts = ["cancelled"] if report.cancelled else []
    unreached = sum(not host.reachable for host in report.hosts.values())
    if unreached and not report.cancelled:
        parts.append(f"{count_text(unreached, 'host')} not reached")
    counts = Counter(finding.severity for finding in report.findings)
    for severity, noun in ((Severity.FAIL, "failure"), (Severity.WARN, "warning")):
        parts += [count_text(counts[severity], noun)] if counts[severity] else []
    again = f"{_again(model, now, done=done, cancelled=cancelled)}  " if model.again else ""
    word, found = WORDS[report.outcome][0].upper(), ", ".join(parts) or "nothing wrong"
    left = cells.total() - made
    of = f"{made:,} of {count_text(cells.total(), 'check')}, {left:,} not done"
    if not left:
        of = f"all {count_text(made, 'check')}"
    return *OUTCOME_TONES[report.outcome], f"{again}{word}  {found} in {of}"


def check_about(report: CheckReport | None, level: str) -> str:
    """Return what was checked, how closely, and how long that took."""
    if report is None:
        return level
    script = f", for {report.target.script.rpartition('/')[2]}" if report.target else ""
    of = f"{count_text(len(report.hosts), 'host')}, {report.seconds:.1f} s{script}"
    return f"{level}, {of}" if level else of


def _count_cells(model: CheckModel) -> Counter[str]:
    return Counter(outcome for cells in model.cells.values() for outcome in cells.values())


def _again(model: CheckModel, now: str, *, done: bool, cancelled: bool) -> str:
    check = model.again
    if cancelled and not model.repeated:
        return f"{check}: {'cancelled' if done else 'cancelling'}"
    if not done:
        return f"{check} again{now}"
    if not model.repeated:
        return f"{check}: could not be made again"
    if UNKNOWN.intersection(model.cells.get(check, {}).values()):
        return f"{check}: could not be made again on every host"
    left = any(
        found.check == check and found.severity.order >= Severity.WARN.order
        for found in model.findings
    )
    return f"{check}: {'still there' if left else 'gone'}"


def check_tiles(model: CheckModel) -> list[TileData]:
    """Return what passed, what was found, and why the rest was not done."""
    cells = _count_cells(model)
    if not cells:
        return []
    found = Counter(finding.severity for finding in model.findings)
    whole = cells.total() - cells["running"]
    share = bar_text(cells["pass"] / max(1, whole), BAR_CELLS, plain=False)
    tiles = [TileData("pass", f"{cells['pass']:,}", "good", more=[(share, "good")])]
    for severity in (Severity.FAIL, Severity.WARN, Severity.INFO):
        style = SEVERITY_MARKS[severity][1] if found[severity] else "faint"
        tiles.append(TileData(severity.value, f"{found[severity]:,}", style))
    left = whole - sum(cells[each] for each in MADE)
    more = [(f"{cells['running']:,} running", "note")] if cells["running"] else []
    more += [(f"{why} {count:,}", "faint") for why, count in _count_reasons(model).most_common()]
    return [*tiles, TileData("not done", f"{left:,}", "strong" if left else "faint", more=more)]


def _count_reasons(model: CheckModel) -> Counter[str]:
    """Return why how many checks were not made."""
    report = model.report
    return Counter(
        said
        for host, of in (report.why.items() if report is not None else ())
        for check, said in of.items()
        if model.cells.get(check, {}).get(host) not in MADE
    )


def pairs_line(pairs: Pairs, pair: Pair | None, rounds: tuple[str, int, int]) -> Text:
    """Return what is known of one pair, and how far what goes on is."""
    if not pairs.hosts or pair is None:
        return Text("pairs of hosts: none tried", style="faint")
    glyph, style, _ = LOOKS[pairs.state(*pair)]
    stage, number, of = rounds
    text = Text(f"{stage} round {number} of {of}  " if of else "", style="note")
    return text.append(f"{glyph} ", style=style).append(pairs.told(*pair), style="strong")


def pairs_count(pairs: Pairs) -> str:
    """Return how many pairs are in trouble, and how many are known."""
    count = len(pairs.hosts)
    trouble = sum(number for state, number in pairs.counts.items() if state.trouble)
    parts = [f"{trouble:,} in trouble"] if trouble else []
    parts += [f"{len(pairs.known):,} of {count * (count - 1):,} pairs known"] if count else []
    return ", ".join(parts)


def row_words(row: GridRow, report: CheckReport | None, width: int) -> Text:
    text = Text()
    add_fact(text, "means", checks_by_id().get(row.check, ""), width)
    text.append("\n" if text else "")
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


LABEL_CELLS = 10


def add_fact(text: Text, label: str, words: str, width: int) -> None:
    """Add words, if any, beside their label, in ``width`` cells."""
    room = max(LABEL_CELLS, width - LABEL_CELLS)
    lines = [part for line in words.splitlines() for part in textwrap.wrap(line, room) or [""]]
    for place, line in enumerate(lines):
        style = "" if place else "note" if label == "do" else "strong"
        text.append(("" if place else label).ljust(LABEL_CELLS), style=style).append(f"{line}\n")


def finding_words(finding: Finding, report: CheckReport | None, width: int) -> Text:
    """Return a finding in ``width`` cells: what was seen, what it means, what to do, and the proof of that."""
    text = Text()
    mark, style = SEVERITY_MARKS[finding.severity]
    words = textwrap.wrap(f"{mark}  {finding.summary}", max(1, width))
    text.append("\n".join([*words, ""]), style="strong").stylize(style, 0, len(mark))
    cure = finding.cure
    by_run = f"`distconsole run`: {cure.by_run}" if cure is not None and cure.by_run else ""
    facts = (
        ("hosts", ", ".join(finding.hosts) if len(finding.hosts) > 1 else ""),
        ("seen", finding.seen),
        ("expected", finding.expected),
        ("do", finding.hint),
        ("means", checks_by_id().get(finding.check, "")),
        ("cure", "\n".join([*(cure_lines(cure) if cure is not None else ()), by_run])),
        ("proof", "\n".join(f"{when}: {what}" for when, what in proof_text(finding))),
    )
    for label, said in facts:
        add_fact(text, label, said.strip(), width)
    if report is not None and finding.severity is Severity.FAIL:
        add_fact(text, "", "\n".join(changes_text(report, finding.hosts or None)), width)
    text.rstrip()
    return text


def pair_words(pair: Pair, pairs: Pairs, report: CheckReport | None, width: int) -> Text:
    text = Text()
    for source, target in (pair, pair[::-1]):
        glyph, style, _ = LOOKS[pairs.state(source, target)]
        text.append(f"{glyph} ", style=style).append(f"{pairs.told(source, target)}\n")
    text.append("\n")
    for finding in report.findings if report is not None else ():
        if set(finding.hosts) & set(pair) and finding.severity.order >= Severity.WARN.order:
            text.append_text(finding_words(finding, None, width)).append("\n\n")
    text.rstrip()
    return text


def report_words(report: CheckReport | None, width: int) -> Text:
    """Return what a check was of, and what it does not say."""
    text = Text()
    if report is not None:
        text.append("\n".join([*target_text(report.target), ""]) if report.target else "")
        add_fact(text, "not seen", "\n".join(report.uncovered), width)
    text.rstrip()
    return text


def choices_words(choices: Sequence[ChoiceReport], width: int, *, done: bool) -> Text:
    """Return which interface each engine takes on each host; ``done`` says that no more will come."""
    if not choices:
        end = "no engine that takes an interface was looked at"
        return Text(end if done else "the interfaces that each engine takes: not known yet")
    text = Text("\n".join(panel_lines(choices, len(choices), width)[1:]))
    text.highlight_regex(rf"{RED}\S*", "bad")
    return text
