"""What the hosts and a check look like after the events so far. Pure folds: they ask nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from distconsole.model.events import (
    CheckEnded,
    CheckProgress,
    CheckReport,
    Event,
    FindingMade,
    GpuSample,
    HostStatus,
    LinkChanged,
    NodeSample,
    PairReport,
)
from distconsole.model.findings import Finding, Severity

Clock = Callable[[], float]

GpuKey = tuple[str, str, str]
"""Host, the GPU's uuid (its index where the driver gives none), its MIG slice."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The times that ages are counted from; parameters, so that a picture can be drawn as of any moment."""

    unix: Clock = time.time
    monotonic: Clock = time.monotonic


@dataclass(slots=True)
class LoadPicture:
    """The hosts as last seen, by ``top``."""

    nodes: dict[str, NodeSample] = field(default_factory=dict)
    gpus: dict[GpuKey, GpuSample] = field(default_factory=dict)
    status: dict[str, HostStatus] = field(default_factory=dict)
    links: dict[str, LinkChanged] = field(default_factory=dict)
    seen_at: dict[str, float] = field(default_factory=dict)
    """Host -> monotonic seconds of its newest sample, on this machine's clock."""

    def fold(self, event: Event, now: float) -> None:
        """Take one event in, which came at ``now`` (monotonic seconds)."""
        match event:
            case NodeSample():
                self.nodes[event.host] = event
                self.seen_at[event.host] = now
            case GpuSample():
                self.gpus[event.host, event.uuid or str(event.gpu), event.mig or ""] = event
            case HostStatus():
                self.status[event.host] = event
            case LinkChanged():
                self.links[event.host] = event
            case _:
                pass

    def lost_because(self, host: str) -> str | None:
        """Return why there is no connection to ``host`` right now; None if there is one, or none yet."""
        status, link = self.status.get(host), self.links.get(host)
        if status is not None and not status.reachable:
            return status.detail or "not reachable"
        if link is not None and not link.connected:
            return link.reason or "connection lost"
        return None


@dataclass(slots=True)
class CheckPicture:
    """A check as far as it got."""

    findings: list[Finding] = field(default_factory=list)
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    """Check -> host -> outcome."""
    pairs: tuple[PairReport, ...] = ()
    report: CheckReport | None = None

    def fold(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case CheckProgress():
                self.cells.setdefault(event.check, {})[event.host] = event.outcome
            case FindingMade():
                self._find(event.finding)
            case CheckEnded():
                self.report = event.report
                self.findings = list(event.report.findings)
                self.pairs = event.report.network.pairs
                self.cells.clear()  # of stages that are no check
                for host, cells in event.report.cells.items():
                    for check, outcome in cells.items():
                        self.cells.setdefault(check, {})[host] = outcome
            case _:
                pass

    def _find(self, found: Finding) -> None:
        """Add a finding, or put it in the place of the same one from before its cure was tried."""
        same = (found.check, found.hosts, found.summary)
        for place, each in enumerate(self.findings):
            if (each.check, each.hosts, each.summary) == same:
                self.findings[place] = found
                return
        self.findings.append(found)

    def worst_first(self) -> list[Finding]:
        """Findings in the order in which they should be read."""
        return sorted(self.findings, key=lambda finding: -finding.severity.order)


OUTCOME_MARKS = {
    "running": ("…", "note"),
    "pass": ("✓", "good"),
    "warn": ("!", "warn"),
    "fail": ("✗", "bad"),
    "skipped": ("-", "faint"),
    "could_not_run": ("?", "warn"),
    "timed_out": ("T", "bad"),
}
"""How a cell of the host x check grid is drawn: a shape and a meaning."""

OUTCOME_ORDER = ("fail", "timed_out", "could_not_run", "warn", "running", "pass", "skipped")
"""Outcomes in the order in which they should be read."""

SEVERITY_MARKS = {
    Severity.OK: ("✓ ok", "good"),
    Severity.INFO: ("i info", "note"),
    Severity.WARN: ("! warn", "warn"),
    Severity.FAIL: ("✗ FAIL", "bad"),
}
