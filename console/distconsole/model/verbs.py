"""The table of verbs: what the program knows of each kind of request, in one row.

The operations, the command line and the screen read it; a new verb is its own module and a row here. A column that
depends on the request has a function of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from distconsole.model import requests as ask

Value = TypeVar("Value")
Column: TypeAlias = Value | Callable[[Any], Value]
"""The same for all requests of a kind, or a function of the request."""

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
        role: What it has to do with a run.
        interrupt: What Ctrl-C does.
        asks: Whether the screen asks first, whatever it writes.
        writes: The files that it writes; the screen asks before one is overwritten.
        opens: Whether it opens the screen.
        outlives: Whether what it has started goes on without the console.
        trusts: Whether it may do what a project's file says, which must be trusted then.
    """

    name: str
    operation: str
    needs: tuple[str, ...] = ()
    view: Column[str] = "transcript"
    live: Column[bool] = False
    role: Column[RunRole] = RunRole.NONE
    interrupt: Column[Interrupt] = Interrupt.END
    asks: Column[bool] = False
    writes: Column[tuple[str | None, ...]] = ()
    opens: Column[Opens] = Opens.NEVER
    outlives: bool = True
    trusts: bool = True


def _starts(request: ask.Run) -> bool:
    return not request.dry_run and request.emit is None


def _on_terminal(*unless: str) -> Callable[[Any], Opens]:
    """Return a column: on a terminal, but where one of these fields is set."""

    def opens(request: object) -> Opens:
        lines = any(getattr(request, name) for name in unless)
        return Opens.NEVER if lines else Opens.ON_TERMINAL

    return opens


VERBS: Mapping[type, Verb] = {
    ask.Check: Verb(
        "check", "check.check", ("sessions", "began"), view="check", interrupt=Interrupt.REPORT,
        writes=lambda request: (request.junit, request.emit_hostfile),
    ),
    ask.Explain: Verb("", "check.explain", trusts=False),
    ask.Run: Verb(
        "run", "launch.launching.run", FULL, interrupt=Interrupt.STOP_RUN,
        view=lambda request: "run" if _starts(request) and not request.detach else "transcript",
        live=_starts, role=lambda request: RunRole.RECORDS if _starts(request) else RunRole.NONE,
        writes=lambda request: (request.output,) if request.emit is not None else (),
    ),
    ask.Rerun: Verb(
        "rerun", "launch.launching.rerun", FULL, live=True, role=RunRole.RECORDS, interrupt=Interrupt.STOP_RUN,
        view=lambda request: "transcript" if request.detach else "run",
    ),
    ask.Attach: Verb(
        "attach", "attach.attach", FULL, "run", live=True, role=RunRole.FOLLOWS, interrupt=Interrupt.LEAVE_RUN,
        opens=_on_terminal("json"),
    ),
    ask.Replay: Verb(
        "replay", "stored.past.replay", ("store",), "run", live=True, role=RunRole.REPLAYS, opens=Opens.ALWAYS
    ),
    ask.Demo: Verb(
        "demo", "demo.demo", ("control", "store"), "check", live=True, role=RunRole.RECORDS,
        interrupt=Interrupt.STOP_RUN, opens=_on_terminal("json", "headless"), outlives=False,
    ),
    ask.Stop: Verb("stop", "stopping.stop", FULL, view="", asks=lambda request: not request.yes),
    ask.Top: Verb(
        "top", "top.top", ("sessions", "control"), opens=_on_terminal("json", "once"),
        view=lambda request: "transcript" if request.once else "cluster", live=lambda request: not request.once,
    ),
    ask.Runs: Verb("runs", "stored.past.runs", ("sessions", "store"), "runs"),
    ask.Show: Verb("show", "stored.past.show", ("sessions", "store")),
    ask.Compare: Verb("compare", "stored.compare.compare_runs", ("store",), "compare"),
    ask.Logs: Verb("logs", "stored.logs.logs", FULL),
    ask.Export: Verb(
        "export", "stored.export.export", FULL, writes=lambda request: (request.output,),
        interrupt=lambda request: Interrupt.LEAVE_RUN if request.goes_on else Interrupt.END,
    ),
    ask.ReportPage: Verb(
        "report", "stored.report.report", ("sessions", "store"), writes=lambda request: (request.output,)
    ),
    ask.Why: Verb("why", "console_verbs.why"),
    ask.Bench: Verb(
        "bench strategies", "bench.comparison.bench", FULL, interrupt=Interrupt.STOP_WORK, outlives=False
    ),
    ask.BenchCollectives: Verb(
        "bench collectives", "bench.collectives.bench_collectives", ("sessions",), interrupt=Interrupt.END_WORK
    ),
    ask.Prepare: Verb("setup", "setup.installation.prepare", FULL, interrupt=Interrupt.STOP_WORK),
    ask.Notify: Verb("notify", "notifying.notify"),
    ask.Trust: Verb("trust", "trusting.trust", trusts=False),
    ask.Foresee: Verb("", "launch.foreseeing.foresee", ("sessions", "control")),
    ask.Launches: Verb("", "stored.past.launches", ("store",)),
    ask.OpenConsole: Verb("", "console_verbs.open_console", opens=Opens.ALWAYS),
    ask.ShowHelp: Verb("", "console_verbs.show_help", trusts=False),
}  # fmt: skip


def verb_of(request: ask.Request) -> Verb:
    """Return the row of ``request``."""
    return VERBS[type(request)]


def view_of(request: ask.Request) -> str:
    """Return the view that shows ``request``; nothing where it is seen wherever one is."""
    return _value(verb_of(request).view, request)


def is_live(request: ask.Request) -> bool:
    """Whether a view draws the events of ``request``."""
    return _value(verb_of(request).live, request)


def role_of(request: ask.Request) -> RunRole:
    """Return what ``request`` has to do with a run."""
    return _value(verb_of(request).role, request)


def interrupt_of(request: ask.Request) -> Interrupt:
    """Return what Ctrl-C does to ``request``."""
    return _value(verb_of(request).interrupt, request)


def asks_first(request: ask.Request) -> bool:
    """Whether ``request`` destroys something other than files."""
    return _value(verb_of(request).asks, request)


def files_of(request: ask.Request) -> tuple[str, ...]:
    """Return the files that ``request`` would write."""
    return tuple(filter(None, _value(verb_of(request).writes, request)))


def opens_of(request: ask.Request) -> Opens:
    """Return whether ``request`` opens the screen."""
    return _value(verb_of(request).opens, request)


def _value(column: Column[Value], request: ask.Request) -> Value:
    return column(request) if callable(column) else column
