"""Everything an operator can ask, as frozen values; the grammar makes them, ``operations`` does them."""

from __future__ import annotations

from typing import TypeAlias

from distconsole.model.requests.benches import (
    Bench,
    BenchCollectives,
    CollectiveName,
    PrecisionName,
    StrategyName,
)
from distconsole.model.requests.console import Demo, Notify, OpenConsole, ShowHelp, Trust
from distconsole.model.requests.hosts import Check, Explain, Level, Prepare, Target, Top
from distconsole.model.requests.launches import (
    LOST_AFTER_SECONDS,
    EmitKind,
    Foresee,
    LauncherName,
    Launches,
    PassArgs,
    Rerun,
    Run,
    Stop,
    hosts_wanted,
)
from distconsole.model.requests.runs import (
    Attach,
    Compare,
    Export,
    ExportFormat,
    ExportTable,
    Logs,
    Replay,
    ReportPage,
    Runs,
    Show,
    Why,
)
from distconsole.model.requests.where import Where

__all__ = [
    "LOST_AFTER_SECONDS",
    "Attach",
    "Bench",
    "BenchCollectives",
    "Check",
    "CollectiveName",
    "Compare",
    "Demo",
    "EmitKind",
    "Explain",
    "Export",
    "ExportFormat",
    "ExportTable",
    "Foresee",
    "LauncherName",
    "Launches",
    "Level",
    "Logs",
    "Notify",
    "OpenConsole",
    "PassArgs",
    "PrecisionName",
    "Prepare",
    "Replay",
    "ReportPage",
    "Request",
    "Rerun",
    "Run",
    "Runs",
    "Show",
    "ShowHelp",
    "Stop",
    "StrategyName",
    "Target",
    "Top",
    "Trust",
    "Where",
    "Why",
    "hosts_wanted",
]

Request: TypeAlias = (
    Check
    | Explain
    | Run
    | Top
    | Runs
    | Show
    | Attach
    | Logs
    | Stop
    | Rerun
    | Foresee
    | Launches
    | Export
    | Replay
    | Compare
    | Why
    | ReportPage
    | Bench
    | BenchCollectives
    | Prepare
    | Notify
    | Trust
    | Demo
    | OpenConsole
    | ShowHelp
)
