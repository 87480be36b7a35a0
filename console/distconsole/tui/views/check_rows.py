"""A check as rows: findings, and the outcome of each check on each host, by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.text import Text

from distconsole.expression import Condition
from distconsole.model.findings import Finding, Severity
from distconsole.runs.conditions.check_fields import CheckRow
from distconsole.text.tables import Column, shorten_middle
from distconsole.tui.view_models.check import (
    OUTCOME_MARKS,
    OUTCOME_ORDER,
    SEVERITY_MARKS,
    CheckModel,
)
from distconsole.tui.views.row_order import RowOrder
from distconsole.tui.widgets.bars import level_bar

Thing = TypeVar("Thing")

MADE = ("pass", "warn", "fail")
"""Outcomes of a check that was made."""
BAR_CELLS = 8


@dataclass(frozen=True, slots=True)
class GridRow:
    """One check, or a group of them, with the result on each host; ``checks`` is 0 for a check."""

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
    """Its place in the reading order, from 0."""
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
"""Least cells for a host's column of marks, one a check; with fewer it has one mark, the worst."""


def _name(row: GridRow) -> Text:
    return Text(row.check, style="strong") if row.checks else Text(f"  {row.check}")


def _bar(row: GridRow) -> Text:
    return level_bar(100 * row.done / max(1, len(row.outcomes)), BAR_CELLS)


def _host_heading(rows: Sequence[GridRow], room: int) -> str:
    hosts = max((row.hosts for row in rows), key=len, default=())
    each = min(MOST_HOST_CELLS, room // max(1, len(hosts)))
    if not hosts or each < HOST_CELLS:
        return "host by host" if len(hosts) <= room else "on how many hosts"
    return "".join(shorten_middle(host, each - 1).ljust(each) for host in hosts)


def _marks(row: GridRow, room: int = MOST_HOST_CELLS) -> Text:
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
    """Counts of outcomes, worst first."""
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


def groups_with_room(rows: Iterable[GridRow], lines: int) -> frozenset[str]:
    """Return the groups of ``rows``, the worst first, whose checks fit into ``lines`` together with all groups."""
    counts = Counter(row.check.partition(".")[0] for row in rows)
    room, found = lines - len(counts), set()
    for name, count in counts.items():
        if count <= room:
            found.add(name)
            room -= count
    return frozenset(found)


def match_findings(model: CheckModel, order: RowOrder[CheckRow]) -> tuple[list[Finding], int]:
    """Return the findings that match, in ``order``, else worst first, and the number of those to read."""
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
    """Return check and host of each cell that matches; None if all are shown."""
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
