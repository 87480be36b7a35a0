"""``export`` and ``report``: a run for other programs and other people, as it is stored or while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distconsole.errors import ConfigError, UnavailableError
from distconsole.formats.outlets import LineFile, Outlet, TableFolder, write_whole
from distconsole.formats.tables import CsvLines, JsonLines, Lines, make_table
from distconsole.model.events import Event, Narration, TextMade
from distconsole.model.requests import Export, ExportFormat, ExportTable, ReportPage
from distconsole.model.run_events import RunEvent
from distconsole.operations.attach import follow_run
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource
from distconsole.runs.report_data import ReportData
from distconsole.runs.store.store import RunStore

FLUSH_SECONDS = 1.0
"""What follows a file of a run that goes on waits at most so long for a line."""


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
    if request.output is None:
        yield from _yield_text(events, _lines(request))
        return
    outlet = _outlet(request, Path(request.output).expanduser())
    try:
        with _flush_regularly(outlet, live=request.follow) as lock:
            for event in events:
                if isinstance(event, RunEvent):
                    with lock:
                        outlet.take(event)
                else:
                    yield event
        yield Narration(text=outlet.close())
    finally:
        outlet.abandon()


def _lines(request: Export) -> Lines:
    if request.format is ExportFormat.JSONL:
        return JsonLines()
    return CsvLines(make_table(request.table or ExportTable.NUMBERS))


def _yield_text(events: Iterator[Event], lines: Lines) -> Iterator[Event]:
    yield from (TextMade(text=line) for line in lines.beginning())
    for event in events:
        if isinstance(event, RunEvent):
            yield from (TextMade(text=line) for line in lines.of(event))
        else:
            yield event
    yield from (TextMade(text=line) for line in lines.ending())


def _outlet(request: Export, path: Path) -> Outlet:
    match request.format:
        case ExportFormat.TENSORBOARD:
            return _tensorboard(path, live=request.follow)
        case ExportFormat.CSV if request.table is None and path.suffix != ".csv":
            return TableFolder(path, live=request.follow)
        case _:
            return LineFile(path, _lines(request), live=request.follow)


def _tensorboard(path: Path, *, live: bool) -> Outlet:
    try:
        from distconsole.formats.tensorboard import TensorBoardFolder  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UnavailableError(
            f"--format tensorboard needs the package tensorboard ({error})",
            "pip install 'distconsole[tensorboard]'",
        ) from None
    return TensorBoardFolder(path, live=live)


@contextmanager
def _flush_regularly(outlet: Outlet, *, live: bool) -> Iterator[threading.Lock]:
    """Flush an outlet that others follow, also while no event comes; give the lock that guards it."""
    lock, over = threading.Lock(), threading.Event()

    def flush() -> None:
        while not over.wait(FLUSH_SECONDS):
            # What a full disk refuses stays in memory, and is tried again; the last try says so.
            with lock, suppress(ConfigError):
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
    for event in follow_run(request.run, request.where, sessions, store):
        if isinstance(event, RunEvent):
            data.apply(event)
        else:
            yield event
    data.close()
    page = page_of(data, time.time())
    path = Path(request.output or f"{data.timeline.run}.html").expanduser()
    write_whole(path, page)
    yield Narration(text=f"{path} written ({len(page) / 1024:,.0f} KiB); any browser opens it")
