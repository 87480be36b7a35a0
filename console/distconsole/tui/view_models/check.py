"""The state of a check after the events so far, and the repetition of one of its checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from distconsole.model.check_outcome import INCOMPLETE, with_outcome
from distconsole.model.events import (
    CheckEnded,
    CheckJudged,
    CheckProgress,
    Event,
    FindingMade,
    PairProgress,
)
from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import CheckReport, ChoiceReport, NetworkReport, PairReport
from distconsole.tui.view_models.pairs import Pair, Pairs, update_pair


@dataclass(slots=True)
class CheckModel:
    """The state of a check so far.

    ``cells`` are outcomes by check and host; ``stage`` is the last reported progress; ``rounds`` are those of
    the running stage of pairs. ``again`` is the check that is repeated, with all others as before. ``strict``:
    warnings fail.
    """

    findings: list[Finding] = field(default_factory=list)
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    known: dict[Pair, PairReport] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    stage: CheckProgress | None = None
    rounds: tuple[str, int, int] = ("", 0, 0)
    report: CheckReport | None = None
    again: str = ""
    repeated: bool = False
    strict: bool = False
    _pairs: Pairs | None = None

    def repeat(self, check: str, *, strict: bool = False) -> CheckModel:
        return CheckModel(
            findings=list(self.findings),
            cells={check: dict(cells) for check, cells in self.cells.items()},
            known=dict(self.known),
            report=self.report,
            again=check,
            strict=strict,
        )

    def fold(self, event: Event) -> None:
        match event:
            case CheckProgress():
                self.stage = event
                is_check = event.host and event.outcome == "running"
                if is_check and self.again in ("", event.check):
                    self.cells.setdefault(event.check, {})[event.host] = event.outcome
            case CheckJudged() if self.again in ("", event.check):
                self.cells.setdefault(event.check, {}).update(event.outcomes)
            case PairProgress():
                self.hosts = event.hosts
                self._learn(event.pairs, event.stage)
                self.rounds = (event.stage, event.round, event.rounds)
            case FindingMade() if not self.again:
                self._find(event.finding)
            case CheckEnded() if self.again and event.report.cancelled:
                pass  # it stands as it was before
            case CheckEnded() if self.again and self.report is not None:
                self._end(again_in(self.report, event.report, self.again, strict=self.strict))
            case CheckEnded():
                self._end(event.report)
            case _:
                pass

    def _find(self, found: Finding) -> None:
        """Add a finding, or replace the same one from before its cure."""
        for place, each in enumerate(self.findings):
            if same_finding(each) == same_finding(found):
                self.findings[place] = found
                return
        self.findings.append(found)

    def _end(self, report: CheckReport) -> None:
        self.report = report
        self.repeated = bool(self.again)
        self.findings = list(report.findings)
        self._learn(report.network.pairs, "")
        self.cells.clear()  # of stages that are no check
        for host, cells in report.cells.items():
            for check, outcome in cells.items():
                self.cells.setdefault(check, {})[host] = outcome

    def _learn(self, pairs: Iterable[PairReport], stage: str) -> None:
        for report in pairs:
            pair = (report.source, report.target)
            self.known[pair] = update_pair(self.known.get(pair), report, stage)
        self._pairs = None

    def worst_first(self) -> list[Finding]:
        return sorted(self.findings, key=lambda finding: -finding.severity.order)

    @property
    def pairs(self) -> Pairs:
        if self._pairs is None:
            tried = {name for pair in self.known for name in pair}
            order = self.hosts if self.report is None else tuple(self.report.hosts)
            self._pairs = Pairs(tuple(each for each in order if each in tried), dict(self.known))
        return self._pairs

    @property
    def choices(self) -> tuple[ChoiceReport, ...]:
        return () if self.report is None else self.report.choices


def again_in(
    before: CheckReport, after: CheckReport, check: str, *, strict: bool = False
) -> CheckReport:
    """Return ``before`` with the results for the repeated ``check`` in ``after``, and for reaching hosts."""
    from distconsole.checks.engine.report import find_unmade  # noqa: PLC0415
    from distconsole.checks.rules.network.ssh import REACHING  # noqa: PLC0415 - loaded by the check itself

    older = {check, INCOMPLETE}
    findings = [
        found
        for found in before.findings
        if found.check not in older
        and not (found.check in REACHING and after.hosts.keys() >= set(found.hosts))
    ]
    findings += [found for found in after.findings if found.check != INCOMPLETE]
    cells, why = before.cells, before.why
    for each in (check, *REACHING):
        cells, why = _with(cells, after.cells, each), _with(why, after.why, each)
    newer = {(pair.source, pair.target): pair for pair in after.network.pairs}
    pairs = {(pair.source, pair.target): pair for pair in before.network.pairs} | newer
    merged = msgspec.structs.replace(
        before,
        hosts={
            name: msgspec.structs.replace(host, reachable=after.hosts.get(name, host).reachable)
            for name, host in before.hosts.items()
        },
        findings=(*findings, *find_unmade(cells, why, findings, before.only)),
        network=NetworkReport(pairs=tuple(pairs.values())),
        choices=after.choices or before.choices,
        cells=cells,
        why=why,
        stage_seconds=before.stage_seconds | after.stage_seconds,
    )
    return with_outcome(merged, strict=strict)


def _with(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]], check: str
) -> dict[str, dict[str, str]]:
    whole = {host: dict(cells) for host, cells in before.items()}
    for host, cells in after.items():
        mine = whole.setdefault(host, {})
        mine.pop(check, None)
        if check in cells:
            mine[check] = cells[check]
    return whole


def same_finding(finding: Finding) -> tuple[str, tuple[str, ...], str]:
    """Return the identity of a finding, the same after an attempt at its cure."""
    return finding.check, finding.hosts, finding.summary


OUTCOME_MARKS = {
    "running": ("…", "note"),
    "pass": ("✓", "good"),
    "warn": ("!", "warn"),
    "fail": ("✗", "bad"),
    "skipped": ("-", "faint"),
    "could_not_run": ("?", "warn"),
    "timed_out": ("T", "bad"),
}
"""Shape and meaning of a cell in the grid of hosts and checks."""

OUTCOME_ORDER = ("fail", "timed_out", "could_not_run", "warn", "running", "pass", "skipped")
"""Outcomes in the order of reading."""

SEVERITY_MARKS = {
    Severity.OK: ("✓ ok", "good"),
    Severity.INFO: ("i info", "note"),
    Severity.WARN: ("! warn", "warn"),
    Severity.FAIL: ("✗ FAIL", "bad"),
}
