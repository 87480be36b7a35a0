"""From a request to the operation that does it; every verb's work is in a module of its own.

A verb's module is imported when the verb is first done: all of them together take longer to load than
most verbs to do, and the screen would have to wait for them, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from distconsole.config.paths import runs_dir
from distconsole.errors import UnavailableError
from distconsole.model import requests as ask
from distconsole.model.events import Event, TextMade
from distconsole.monitor.store import RunStore
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource


def perform(
    request: ask.Request, sessions: SessionSource, control: Control | None = None
) -> Iterator[Event]:
    """Do what was asked and yield what happens, lazily, on the caller's thread.

    Args:
        request: What to do.
        sessions: Called only by verbs that need hosts.
        control: Stops a run from another thread or a signal handler; None for nobody will.

    Yields:
        Events in the order in which they are known. A run's last one is ``RunEnded``, whose
        ``exit_code`` is the process's; closing the iterator earlier leaves the run going.

    Raises:
        ConsoleError: if it cannot be done at all.
    """
    control = control or Control()
    try:
        yield from _operation(request, sessions, control, RunStore(runs_dir()))
    finally:
        control.close()


def _operation(  # noqa: C901, PLR0915  (one case a verb, nothing nested)
    request: ask.Request, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    match request:
        case ask.Check():
            from distconsole.operations import check

            return check.check(request, sessions, control.began)
        case ask.Explain():
            from distconsole.operations import check

            return check.explain(request)
        case ask.Run():
            from distconsole.operations import launching

            return launching.run(request, sessions, control, store)
        case ask.Rerun():
            from distconsole.operations import launching

            return launching.rerun(request, sessions, control, store)
        case ask.Foresee():
            from distconsole.operations import foreseeing

            return foreseeing.foresee(request, sessions, control)
        case ask.Launches():
            from distconsole.operations import past

            return past.launches(request, store)
        case ask.Attach():
            from distconsole.operations import attach

            return attach.attach(request, sessions, control, store)
        case ask.Logs():
            from distconsole.operations import logs

            return logs.logs(request, sessions, control, store)
        case ask.Stop():
            from distconsole.operations import stopping

            return stopping.stop(request, sessions, control, store)
        case ask.Top():
            from distconsole.operations import top

            return top.top(request, sessions, control)
        case ask.Runs():
            from distconsole.operations import past

            return past.runs(request, sessions, store)
        case ask.Show():
            from distconsole.operations import past

            return past.show(request, sessions, store)
        case ask.Replay():
            from distconsole.operations import past

            return past.replay(request, store)
        case ask.Compare():
            from distconsole.operations import compare

            return compare.compare_runs(request, store)
        case ask.Export():
            from distconsole.operations import export

            return export.export(request, sessions, control, store)
        case ask.Demo():
            from distconsole.operations import demo

            return demo.demo(request, control, store)
        case ask.ShowHelp():
            return iter((TextMade(text=request.text),))
        case ask.Why():
            return _later("why", f"until then: distconsole logs {request.run}")
        case ask.ReportPage():
            from distconsole.operations import report

            return report.report(request, sessions, store)
        case ask.Bench():
            from distconsole.operations import bench

            return bench.bench(request, sessions, control, store)
        case ask.BenchCollectives():
            from distconsole.operations import bench_collectives

            return bench_collectives.bench_collectives(request, sessions)
        case ask.Prepare():
            from distconsole.operations import setup

            return setup.prepare(request, sessions, control, store)
        case ask.Notify():
            from distconsole.operations import notifying

            return notifying.notify(request)
        case ask.Trust():
            from distconsole.operations import trusting

            return trusting.trust(request)
        case ask.OpenConsole():
            return _later("a console inside an operation", "run distconsole without a verb")
        case _:
            assert_never(request)


def _later(verb: str, hint: str) -> Iterator[Event]:
    raise UnavailableError(f"{verb} comes with a later version", hint)
