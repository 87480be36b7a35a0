"""The table of verbs: what the program knows of each kind of request, in one row.

Where a column depends on the request, the row has a function that makes the row of that request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from distconsole.model import requests as ask

FULL = ("sessions", "control", "store")
"""What an operation takes besides its request, which works on hosts and on the store."""


class Interrupt(Enum):
    """What Ctrl-C does to a request that goes on."""

    END = "ends it; it has changed nothing"
    REPORT = "ends it; what was found so far is reported"
    LEAVE_RUN = "leaves the run, which goes on"
    STOP_RUN = "stops the run on every host"
    STOP_WORK = "stops what it has started on the hosts; the screen asks first"
    END_WORK = "ends it with what it has started on the hosts; the screen asks first"


class RunRole(Enum):
    """What a request has to do with a run whose events come of it."""

    NONE = "its events are no run's"
    RECORDS = "it starts and records one"
    FOLLOWS = "it follows one"
    REPLAYS = "it shows one that is over"


class Opens(Enum):
    """Whether a request opens the screen."""

    NEVER = "it prints lines"
    ON_TERMINAL = "where there is a terminal"
    ALWAYS = "it cannot be done without"


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of request.

    Attributes:
        name: How it is typed; empty where the program alone asks.
        operation: ``module.function`` in ``operations``; imported when it is first done.
        needs: What the function takes besides the request: ``sessions`` (hosts), ``control``, ``store``, ``began``.
        view: Where the screen shows it; empty where it is seen wherever one is.
        live: Whether its view draws its events, so that the transcript need not tell them.
        asks: Whether the screen asks first, whatever it writes.
        writes: The files that it writes, and folders, which end with a slash; the screen asks before one is overwritten.
        prints: What shows its events as lines: ``text``, ``details``, ``load`` or ``logs`` of ``text.show``.
        outlives: Whether what it has started goes on without the console.
        trusts: Whether it may do what a project's file says, which must be trusted then.
        of: From this row and a request to the row of that request, where they differ.
    """

    name: str
    operation: str
    needs: tuple[str, ...] = ()
    view: str = "transcript"
    live: bool = False
    role: RunRole = RunRole.NONE
    interrupt: Interrupt = Interrupt.END
    asks: bool = False
    writes: tuple[str, ...] = ()
    opens: Opens = Opens.NEVER
    prints: str = "text"
    outlives: bool = True
    trusts: bool = True
    of: Callable[[Verb, Any], Verb] | None = None


def _check_row(verb: Verb, request: ask.Check) -> Verb:
    details = request.details or request.level is ask.Level.FULL
    prints = "details" if details else verb.prints
    return replace(verb, prints=prints, writes=_files(request.junit, request.emit_hostfile))


def _run_row(verb: Verb, request: ask.Run) -> Verb:
    if request.dry_run or request.emit is not None:
        return replace(
            verb,
            view="transcript",
            live=False,
            role=RunRole.NONE,
            interrupt=Interrupt.END,
            writes=_files(request.output),
        )
    return _rerun_row(verb, request)


def _rerun_row(verb: Verb, request: ask.Run | ask.Rerun) -> Verb:
    return replace(verb, view="transcript") if request.detach else verb


def _top_row(verb: Verb, request: ask.Top) -> Verb:
    if request.once:
        return replace(verb, view="transcript", live=False, opens=Opens.NEVER)
    return _opening_row(verb, request)


def _opening_row(verb: Verb, request: ask.Attach | ask.Demo | ask.Top) -> Verb:
    lines = request.json or getattr(request, "headless", False)
    return replace(verb, opens=Opens.NEVER) if lines else verb


def _export_row(verb: Verb, request: ask.Export) -> Verb:
    output = request.output
    files = _files(output)
    if output and request.format is ask.ExportFormat.TENSORBOARD:
        files = (f"{output}/{request.run}/",)
    elif output and request.writes_tables and not output.endswith(".csv"):
        files = tuple(f"{output}/{table}.csv" for table in ask.ExportTable)
    interrupt = Interrupt.LEAVE_RUN if request.goes_on else Interrupt.END
    return replace(verb, writes=files, interrupt=interrupt)


def _files(*files: str | None) -> tuple[str, ...]:
    return tuple(filter(None, files))


VERBS: Mapping[type, Verb] = {
    ask.Check: Verb(
        "check", "check.check", ("sessions", "began"), "check", interrupt=Interrupt.REPORT, of=_check_row
    ),
    ask.Explain: Verb("", "check.explain", trusts=False),
    ask.Run: Verb(
        "run", "launch.launching.run", FULL, "run", live=True, role=RunRole.RECORDS, interrupt=Interrupt.STOP_RUN,
        of=_run_row,
    ),
    ask.Rerun: Verb(
        "rerun", "launch.launching.rerun", FULL, "run", live=True, role=RunRole.RECORDS,
        interrupt=Interrupt.STOP_RUN, of=_rerun_row,
    ),
    ask.Attach: Verb(
        "attach", "attach.attach", FULL, "run", live=True, role=RunRole.FOLLOWS, interrupt=Interrupt.LEAVE_RUN,
        opens=Opens.ON_TERMINAL, of=_opening_row,
    ),
    ask.Replay: Verb(
        "replay", "stored.history.replay", ("store",), "run", live=True, role=RunRole.REPLAYS, opens=Opens.ALWAYS
    ),
    ask.Demo: Verb(
        "demo", "demo.demo", ("control", "store"), "check", live=True, role=RunRole.RECORDS,
        interrupt=Interrupt.STOP_RUN, opens=Opens.ON_TERMINAL, outlives=False, of=_opening_row,
    ),
    ask.Stop: Verb(
        "stop", "stopping.stop", FULL, view="", of=lambda verb, request: replace(verb, asks=not request.yes)
    ),
    ask.Top: Verb(
        "top", "top.top", ("sessions", "control"), "cluster", live=True, opens=Opens.ON_TERMINAL, prints="load",
        of=_top_row,
    ),
    ask.Runs: Verb("runs", "stored.history.runs", ("sessions", "store"), "runs"),
    ask.Show: Verb("show", "stored.history.show", ("sessions", "store")),
    ask.Compare: Verb("compare", "stored.compare.compare_runs", ("store",), "compare"),
    ask.Logs: Verb("logs", "stored.logs.logs", FULL, prints="logs"),
    ask.Export: Verb("export", "stored.export.export", FULL, of=_export_row),
    ask.ReportPage: Verb(
        "report", "stored.export.report", ("sessions", "store"),
        of=lambda verb, request: replace(verb, writes=(request.output,)),
    ),
    ask.Why: Verb("why", "console_verbs.why"),
    ask.Bench: Verb(
        "bench strategies", "bench.comparison.bench", FULL, interrupt=Interrupt.STOP_WORK, outlives=False
    ),
    ask.BenchCollectives: Verb(
        "bench collectives", "bench.collectives.bench_collectives", ("sessions",), interrupt=Interrupt.END_WORK
    ),
    ask.Prepare: Verb("setup", "setup.installation.prepare", FULL, interrupt=Interrupt.STOP_WORK),
    ask.Init: Verb("init", "init.init.init", ("control",), interrupt=Interrupt.REPORT),
    ask.Doctor: Verb("doctor", "doctor.doctor", ("sessions", "store"), trusts=False),
    ask.Notify: Verb("notify", "notifying.notify"),
    ask.Trust: Verb("trust", "console_verbs.trust", trusts=False),
    ask.Foresee: Verb("", "launch.launching.foresee", ("sessions", "control")),
    ask.Launches: Verb("", "stored.history.launches", ("store",)),
    ask.OpenConsole: Verb("", "console_verbs.open_console", opens=Opens.ALWAYS),
    ask.ShowHelp: Verb("", "console_verbs.show_help", trusts=False),
}  # fmt: skip


def verb_of(request: ask.Request) -> Verb:
    verb = VERBS[type(request)]
    return verb if verb.of is None else verb.of(verb, request)
