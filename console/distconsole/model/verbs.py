"""The table of verbs: one row for each kind of request.

Where a column depends on the request, the row has a function that makes the row of that request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from distconsole.model import requests as ask

FULL = ("sessions", "control", "store")
"""Arguments of an operation besides its request."""


class Interrupt(Enum):
    """The effect of Ctrl-C on a request that goes on."""

    END = "ends it; it has changed nothing"
    REPORT = "ends it; what was found so far is reported"
    LEAVE_RUN = "leaves the run, which goes on"
    STOP_RUN = "stops the run on every host"
    STOP_WORK = "stops what it has started on the hosts; the screen asks first"
    END_WORK = "ends it with what it has started on the hosts; the screen asks first"


class RunRole(Enum):
    """Relation of a request to the run whose events it yields."""

    NONE = "its events are no run's"
    RECORDS = "it starts and records one"
    FOLLOWS = "it follows one"
    REPLAYS = "it shows one that is over"


class Opens(Enum):
    """When a request opens the screen."""

    NEVER = "it prints lines"
    ON_TERMINAL = "where there is a terminal"
    ALWAYS = "it cannot be done without"


class Group(Enum):
    """Headings of verbs, in the help's order."""

    START = "start"
    WATCH = "watch"
    PAST = "past runs"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class Verb:
    """One kind of request.

    Attributes:
        name: Its word; empty if the program alone makes it.
        examples: Lines of it, as the help shows them.
        operation: ``module.function`` in ``operations``; imported when it is first done.
        needs: Further arguments of the function: ``sessions`` (hosts), ``control``, ``store``, ``began``.
        view: The view that shows it; empty if every view does.
        live: Its view draws its events, so that the transcript need not show them.
        asks: The screen asks first, whatever it writes.
        writes: The files that it writes, and folders, which end with a slash; the screen asks before one is overwritten.
        prints: The function that shows its events as lines: ``text``, ``details``, ``load`` or ``logs`` of ``text.show``.
        outlives: Whether its work goes on without the console.
        trusts: It may execute a project's file, which must be trusted then.
        of: From this row and a request to the row of that request, if they differ.
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
    group: Group = Group.MANAGE
    examples: tuple[str, ...] = ()


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


def _opening_row(verb: Verb, request: ask.Attach | ask.Demo | ask.Top | ask.Watch) -> Verb:
    lines = request.json or getattr(request, "headless", False)
    return replace(verb, opens=Opens.NEVER) if lines else verb


def _export_row(verb: Verb, request: ask.Export) -> Verb:
    output = request.output
    files = _files(output)
    if output and request.format is ask.ExportFormat.TENSORBOARD:
        files = (f"{output}/{request.run}/",)
    elif output and request.format is ask.ExportFormat.WANDB:
        files = (f"{output}/wandb/",)
    elif output and request.format is ask.ExportFormat.MLFLOW:
        files = (f"{output}/mlflow.db",)
    elif output and request.writes_tables and not output.endswith(".csv"):
        files = tuple(f"{output}/{table}.csv" for table in ask.ExportTable)
    interrupt = Interrupt.LEAVE_RUN if request.goes_on else Interrupt.END
    view = "" if output else verb.view  # there is nothing to read
    return replace(verb, writes=files, interrupt=interrupt, view=view)


def _files(*files: str | None) -> tuple[str, ...]:
    return tuple(filter(None, files))


VERBS: Mapping[type, Verb] = {
    ask.Check: Verb(
        "check", "check.check", ("sessions", "began"), "check", interrupt=Interrupt.REPORT, of=_check_row,
        group=Group.START,
        examples=("check --hosts gpu1,gpu2", "check --hosts gpu1,gpu2 -- torchrun --nproc-per-node 4 train.py"),
    ),
    ask.Explain: Verb("", "check.explain", trusts=False),
    ask.Run: Verb(
        "run", "launch.launching.run", FULL, "run", live=True, role=RunRole.RECORDS,
        interrupt=Interrupt.STOP_RUN, of=_run_row, group=Group.START,
        examples=("run --hosts gpu1:4,gpu2:4 --sync train.py --epochs 3",
                  'run --slurm "-N2 --gres=gpu:4 -t 1:00:00" train.py'),
    ),
    ask.Rerun: Verb(
        "rerun", "launch.launching.rerun", FULL, "run", live=True, role=RunRole.RECORDS,
        interrupt=Interrupt.STOP_RUN, of=_rerun_row, group=Group.START,
        examples=("rerun last", "rerun last --exclude gpu2"),
    ),
    ask.Attach: Verb(
        "attach", "attach.attach", FULL, "run", live=True, role=RunRole.FOLLOWS, interrupt=Interrupt.LEAVE_RUN,
        opens=Opens.ON_TERMINAL, of=_opening_row, group=Group.WATCH,
        examples=("attach", "attach last --json"),
    ),
    ask.Replay: Verb(
        "replay", "stored.history.replay", ("store",), "run", live=True, role=RunRole.REPLAYS,
        opens=Opens.ALWAYS, group=Group.PAST,
        examples=("replay last", "replay last --at 40%"),
    ),
    ask.Demo: Verb(
        "demo", "demo.demo", ("control", "store"), "check", live=True, role=RunRole.RECORDS,
        interrupt=Interrupt.STOP_RUN, opens=Opens.ON_TERMINAL, outlives=False, of=_opening_row, group=Group.START,
        examples=("demo", "demo --torch --nodes 4"),
    ),
    ask.Stop: Verb(
        "stop", "stopping.stop", FULL, view="", of=lambda verb, request: replace(verb, asks=not request.yes),
        group=Group.WATCH,
        examples=("stop last", "stop train-1123-89c0dd --grace 60"),
    ),
    ask.Top: Verb(
        "top", "top.top", ("sessions", "control"), "cluster", live=True, opens=Opens.ON_TERMINAL, prints="load",
        of=_top_row, group=Group.WATCH,
        examples=("top --hosts gpu1,gpu2", "top --cluster lab --once --fail-if 'util<10'"),
    ),
    ask.Runs: Verb(
        "runs", "stored.history.runs", ("sessions", "store"), "runs", group=Group.PAST,
        examples=("runs", "runs --where 'state=failed and age<1d'"),
    ),
    ask.Show: Verb(
        "show", "stored.history.show", ("sessions", "store"), group=Group.PAST,
        examples=("show last", "show last --fail-if 'step_ms > 1.1 * median(step_ms)'"),
    ),
    ask.Compare: Verb(
        "compare", "stored.compare.compare_runs", ("sessions", "store"), "compare", group=Group.PAST,
        examples=("compare last train-1123-89c0dd", "compare big small --json"),
    ),
    ask.Logs: Verb(
        "logs", "stored.logs.logs", FULL, prints="logs", group=Group.WATCH,
        examples=("logs last --errors", "logs last --rank 0-3 --follow"),
    ),
    ask.Export: Verb(
        "export", "stored.export.export", FULL, of=_export_row, group=Group.PAST,
        examples=("export last --format csv -o metrics.csv",
                  "export last --format prometheus --listen 127.0.0.1:9400"),
    ),
    ask.ReportPage: Verb(
        "report", "stored.export.report", ("sessions", "store"), view="",
        of=lambda verb, request: replace(verb, writes=_files(request.output)), group=Group.PAST,
        examples=("report", "report train-1123-89c0dd -o ~/run.html"),
    ),
    ask.Trace: Verb(
        "trace", "tracing.trace", ("sessions", "store"), view="", group=Group.WATCH,
        of=lambda verb, request: replace(verb, writes=_files(request.output)),
        examples=("trace last", "trace last --seconds 0.5 --ranks 0-3 -o slow.json.gz"),
    ),
    ask.Why: Verb(
        "why", "why.why", ("sessions", "store"), group=Group.WATCH,
        examples=("why last --json", "why --hosts gpu1,gpu2"),
    ),
    ask.Watch: Verb(
        "watch", "job_watch.watch", ("sessions", "control"), "run", live=True, role=RunRole.FOLLOWS,
        interrupt=Interrupt.LEAVE_RUN, opens=Opens.ON_TERMINAL, of=_opening_row, group=Group.WATCH,
        examples=("watch --hosts gpu1,gpu2", "watch --hosts gpu1,gpu2 --job 2 --json"),
    ),
    ask.Bench: Verb(
        "bench strategies", "bench.comparison.bench", FULL, interrupt=Interrupt.STOP_WORK, outlives=False,
        group=Group.START,
        examples=("bench strategies --hosts gpu1:2,gpu2:2",),
    ),
    ask.BenchCollectives: Verb(
        "bench collectives", "bench.collectives.bench_collectives", ("sessions",), interrupt=Interrupt.END_WORK,
        group=Group.START,
        examples=("bench collectives --hosts gpu1,gpu2",),
    ),
    ask.Prepare: Verb(
        "setup", "setup.installation.prepare", FULL, interrupt=Interrupt.STOP_WORK,
        examples=("setup --hosts gpu1,gpu2", "setup --hosts gpu1,gpu2 --dry-run"),
    ),
    ask.Notify: Verb(
        "notify", "notifying.notify",
        examples=("notify", "notify test"),
    ),
    ask.Trust: Verb(
        "trust", "console_verbs.trust", trusts=False,
        examples=("trust", "trust ~/project --revoke"),
    ),
    ask.Init: Verb(
        "init", "init.init.init", ("control",), interrupt=Interrupt.REPORT, group=Group.START,
        examples=("init", "init --hosts gpu1,gpu2 --yes"),
    ),
    ask.Doctor: Verb(
        "doctor", "doctor.doctor", ("sessions", "store"), trusts=False,
        examples=("doctor", "doctor --hosts gpu1,gpu2"),
    ),
    ask.InstallCompletion: Verb(
        "completion", "completion.install_completion", trusts=False,
        examples=("completion", "completion fish --show"),
    ),
    ask.Foresee: Verb("", "launch.launching.foresee", ("sessions", "control")),
    ask.Launches: Verb("", "stored.history.launches", ("store",)),
    ask.OpenConsole: Verb("", "console_verbs.open_console", opens=Opens.ALWAYS),
    ask.ShowHelp: Verb("", "console_verbs.show_help", trusts=False),
}  # fmt: skip


def verb_of(request: ask.Request) -> Verb:
    verb = VERBS[type(request)]
    return verb if verb.of is None else verb.of(verb, request)
