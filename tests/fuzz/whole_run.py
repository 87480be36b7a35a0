"""All that is made of a run's events: pictures, lines, pages and tables."""

import io
from contextlib import closing

import msgspec

from distconsole.cli.streams import Streams
from distconsole.formats.gauges import run_page
from distconsole.formats.page import page_of
from distconsole.formats.tables import CsvLines, JsonLines, Lines, make_table
from distconsole.model import requests as ask
from distconsole.model.names import RunId
from distconsole.model.notices import NoticeKind
from distconsole.model.requests import ExportTable
from distconsole.model.run_events import LogLine, RunEvents
from distconsole.operations.notifying import Notices
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, ranks_of
from distconsole.runs.health import health_line
from distconsole.runs.logs.buffer import LogBuffer
from distconsole.runs.logs.rows import LogRows
from distconsole.runs.rank_history import RankHistory
from distconsole.runs.report_data import ReportData
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.summary import summarise
from distconsole.runs.timeline import RunTimeline
from distconsole.ssh.plain import without_colours
from distconsole.text.show import show_for

HOSTS = ("n0", "n1")


class Everything:
    """A fold of events into each of them."""

    def __init__(self) -> None:
        self.timeline, self.history = RunTimeline(), RankHistory()
        self.data, self.book = ReportData(), LogBuffer()
        self.notices = Notices(frozenset(NoticeKind), 0.0)
        tables: list[Lines] = [CsvLines(make_table(table)) for table in ExportTable]
        self.lines = [JsonLines(), *tables]
        self.printed = [io.StringIO(), io.StringIO()]
        self.shows = [
            show_for(ask.Run(script="x.py", json=as_json), Streams(out, io.StringIO()))
            for as_json, out in zip((True, False), self.printed, strict=True)
        ]

    def take(self, event: RunEvents) -> None:
        for fold in (self.timeline, self.history, self.data):
            fold.apply(event)
        self.notices.see(event)
        for lines in self.lines:
            list(lines.of(event))
        for show in self.shows:
            show.event(event)
        if isinstance(event, LogLine) and not event.transient:
            self.book.add(event)

    def look(self, t: float) -> None:
        health_line(self.timeline, t)
        run_page(self.timeline, self.timeline.last_t or 0.0).text()
        for row in ranks_of(self.timeline):
            RANK_FIELDS.values(row)

    def end(self, t: float) -> None:
        for lines in self.lines:
            list(lines.ending())
        for show in self.shows:
            show.finish()
        self.data.close()
        page_of(self.data, t)
        msgspec.json.encode(summarise(RunRecord(RunId("r"), hosts=HOSTS), self.timeline))
        with closing(self.book), closing(LogRows(self.book)) as rows:
            while not rows.advance(1.0):
                pass

    def shown(self) -> list[str]:
        """Return what was printed, without its colours."""
        return [without_colours(out.getvalue()) for out in self.printed]
