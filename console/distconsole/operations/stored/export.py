"""``export`` and ``report``: a run for other programs and other people, as it is stored or while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue

from distconsole.config.paths import expand_home
from distconsole.errors import ConfigError, ConsoleError, UnavailableError
from distconsole.formats.outlets import (
    FLUSH_SECONDS,
    BesideOutlet,
    LineFile,
    Outlet,
    TableFolder,
    refusals,
    write_whole,
)
from distconsole.formats.tables import CsvLines, JsonLines, Lines, make_table
from distconsole.model.events import Event, Narration, TextMade, warn
from distconsole.model.requests import Export, ExportFormat, ExportTable, ReportPage
from distconsole.model.run_events import RunEnded, RunEvent
from distconsole.operations.attach import fold, follow_run
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource, drain
from distconsole.runs.report_data import ReportData
from distconsole.runs.store.store import RunStore

EXTRAS = {
    ExportFormat.TENSORBOARD: "tensorboard",
    ExportFormat.WANDB: "wandb",
    ExportFormat.MLFLOW: "mlflow",
    ExportFormat.OTLP: "opentelemetry-exporter-otlp-proto-http",
}
"""The package that a format needs."""
MAX_REFUSALS = 3
"""So many times a service may refuse a stored run."""


def export(
    request: Export, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield the export as text, or write it to the file or folder asked for.

    A file is put in place whole, unless ``follow`` asks for one that grows. Raises RunNotFoundError if there
    is no such run; ConfigError if it cannot be written; UnavailableError if the format's package is missing.
    """
    if request.format is ExportFormat.PROMETHEUS or request.run is None:
        # The web server takes its time to import, and no other format needs it.
        from distconsole.operations.stored.prometheus import expose  # noqa: PLC0415

        yield from expose(request, sessions, control, store)
        return
    follow = control if request.follow else None
    events = follow_run(request.run, request.where, sessions, store, follow)
    if request.output is None and request.format not in EXTRAS:
        yield from _yield_text(events, _lines(request))
        return
    said: SimpleQueue[Narration] = SimpleQueue()
    outlet, refused = make_outlet(request, said), 0
    try:
        # Closed here also if the outlet raises: it holds the run's file, and its hosts.
        with closing(events), _flush_regularly(outlet, request) as lock:
            for event in events:
                if not isinstance(event, RunEvent):
                    yield event
                    continue
                try:
                    with lock, _refusals_of(request.format):
                        outlet.take(event)
                except UnavailableError as error:
                    refused += 1
                    if refused == MAX_REFUSALS or request.format is ExportFormat.TENSORBOARD:
                        raise
                    said.put(warn(f"{error.message}; it is tried again"))
                yield from drain(said)
        with _refusals_of(request.format):
            told = outlet.close()
        yield from drain(said)
        yield Narration(text=told)
    finally:
        outlet.abandon()


def _refusals_of(form: ExportFormat) -> AbstractContextManager[None]:
    return refusals(form) if form in EXTRAS else nullcontext()


def _lines(request: Export) -> Lines:
    if request.format is ExportFormat.JSONL:
        return JsonLines()
    return CsvLines(make_table(request.table or ExportTable.NUMBERS))


def _yield_text(events: Iterator[Event], lines: Lines) -> Iterator[Event]:
    first = list(islice(events, 1))  # a run that is not there is an error before any line
    yield from (TextMade(text=line) for line in lines.beginning())
    for event in chain(first, events):
        if isinstance(event, RunEvent):
            yield from (TextMade(text=line) for line in lines.of(event))
        else:
            yield event
    yield from (TextMade(text=line) for line in lines.ending())


def make_outlet(request: Export, said: SimpleQueue[Narration]) -> Outlet:
    """Return what takes the run's events; what it has to say meanwhile goes to ``said``.

    Raises ConfigError if a file cannot be written; UnavailableError if the format's package is missing.
    """
    path = expand_home(request.output) if request.output is not None else None
    if request.format in EXTRAS:
        return _extra(request, path, said)
    assert path is not None
    if request.writes_tables and path.suffix != ".csv":
        return TableFolder(path, live=request.follow)
    return LineFile(path, _lines(request), live=request.follow)


def _extra(request: Export, path: Path | None, said: SimpleQueue[Narration]) -> Outlet:
    with refusals(request.format):
        try:
            outlet = _make_extra(request, path)
        except ImportError as error:
            raise UnavailableError(
                f"--format {request.format} needs the package {EXTRAS[request.format]} ({error})",
                f"pip install 'distconsole[{request.format}]'",
            ) from None
    if not request.follow or request.format is ExportFormat.TENSORBOARD:
        return outlet

    def say(text: str) -> None:
        said.put(warn(text))

    return BesideOutlet(outlet, say, request.format)


def _make_extra(request: Export, path: Path | None) -> Outlet:
    match request.format:
        case ExportFormat.TENSORBOARD:
            from distconsole.formats.tensorboard import TensorBoardFolder  # noqa: PLC0415 - extras

            assert path is not None
            return TensorBoardFolder(path, live=request.follow)
        case ExportFormat.WANDB:
            from distconsole.formats.wandb import WandbRun  # noqa: PLC0415

            return WandbRun(path)
        case ExportFormat.MLFLOW:
            from distconsole.formats.mlflow import MlflowRun  # noqa: PLC0415

            return MlflowRun(path)
        case _:
            from distconsole.formats.otlp import OtlpRun  # noqa: PLC0415

            return OtlpRun(request.interval_seconds, time.time if request.follow else None)


def export_along(events: Iterator[Event], services: Iterable[ExportFormat]) -> Iterator[Event]:
    """Yield the events of a run, and show it in services meanwhile; what goes wrong there is a warning.

    Raises UnavailableError before anything is started if a package is missing or nobody has logged in, and
    at the end of a run with exit code 0 if a service lacks some of it.
    """
    said: SimpleQueue[Narration] = SimpleQueue()
    requests = [Export("", service, follow=True) for service in services]
    outlets = [make_outlet(request, said) for request in requests]
    exit_code = 0
    try:
        for event in events:
            if isinstance(event, RunEvent):
                for outlet in outlets:
                    outlet.take(event)
            if isinstance(event, RunEnded):
                exit_code = event.exit_code
            yield event
            yield from drain(said)
    finally:
        lacking = list[ConsoleError]()
        for outlet in outlets:
            try:
                said.put(Narration(text=outlet.close()))
            except ConsoleError as error:
                lacking.append(error)
    yield from drain(said)
    if lacking and not exit_code:
        raise UnavailableError("; ".join(error.message for error in lacking))
    yield from (warn(error.message) for error in lacking)


@contextmanager
def _flush_regularly(outlet: Outlet, request: Export) -> Iterator[threading.Lock]:
    """Flush an outlet that others follow, also while no event comes; give the lock that guards it."""
    lock, over, live = threading.Lock(), threading.Event(), request.follow

    def flush() -> None:
        while not over.wait(FLUSH_SECONDS):
            # Records that a full disk refuses stay in memory, and are tried again; the last try reports the failure.
            with lock, suppress(ConfigError, UnavailableError), _refusals_of(request.format):
                outlet.flush()

    thread = threading.Thread(target=flush, name="export-flush", daemon=True)
    if live:
        thread.start()
    try:
        yield lock
    finally:
        over.set()
        if live:
            thread.join()


def report(request: ReportPage, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Write the page and say how large it is; raises RunNotFoundError, or ConfigError if it cannot."""
    # Jinja2 takes its time to import, and no other verb needs it.
    from distconsole.formats.page import page_of  # noqa: PLC0415

    data = ReportData()
    events = follow_run(request.run, request.where, sessions, store, timeline=data.timeline)
    yield from fold(events, data.apply)
    data.close()
    page = page_of(data, time.time())
    path = expand_home(request.output or f"{data.timeline.run}.html")
    write_whole(path, page)
    yield Narration(text=f"{path} written ({len(page) / 1024:,.0f} KiB); any browser opens it")
