"""``report``: a run, over or going on, as one page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from distconsole.formats.outlets import write_whole
from distconsole.model.events import Event, Narration
from distconsole.model.requests import ReportPage
from distconsole.model.run_events import RunEvent
from distconsole.operations.attach import follow_run
from distconsole.operations.sessions import SessionSource
from distconsole.runs.report_data import ReportData
from distconsole.runs.store.store import RunStore


def report(request: ReportPage, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Write the page and say how large it is.

    Raises RunNotFoundError if neither this machine nor a host knows the run; ConfigError if the
    file cannot be written.
    """
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
    path = Path(request.output).expanduser()
    write_whole(path, page)
    yield Narration(text=f"{path} written ({len(page) / 1024:,.0f} KiB); any browser opens it")
