"""Whatever a node may say within the contract: no picture, line, page or table of a run breaks by it."""

from __future__ import annotations

import io
import json
import random
from contextlib import closing
from typing import Any

import msgspec
import pytest

from distconsole.cli.streams import Streams
from distconsole.formats.gauges import run_page
from distconsole.formats.page import page_of
from distconsole.formats.tables import CsvLines, JsonLines, Lines, make_table
from distconsole.model import requests as ask
from distconsole.model.names import RunId
from distconsole.model.notices import NoticeKind
from distconsole.model.requests import ExportTable
from distconsole.model.run_events import LogLine, RunEvents
from distconsole.rpc import frames, wire
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, ranks_of
from distconsole.runs.health import health_line
from distconsole.runs.logs.buffer import LogBuffer
from distconsole.runs.logs.rows import LogRows
from distconsole.runs.notices import Notices
from distconsole.runs.points import Point, reduce_points
from distconsole.runs.rank_history import RankHistory
from distconsole.runs.reduce import RunReducer
from distconsole.runs.report_data import ReportData
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.summary import summarise
from distconsole.runs.timeline import RunTimeline
from distconsole.text.show import show_for
from fakes.any_entry import any_entries

HOSTS = ("n0", "n1")
ENTRIES = 120


class Everything:
    """All that is made of a run's events."""

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


def decoded(entry: dict[str, Any]) -> frames.JournalEntry:
    said = json.loads(json.dumps({"entries": [entry]}))
    return wire.decode_as(wire.check_item("follow", said), frames.Entries).entries[0]


@pytest.mark.parametrize("seed", [10, 58, 138, 1280])
def test_nothing_that_the_wire_lets_through_breaks_what_is_made_of_a_run(seed: int) -> None:
    reducer, made = RunReducer("r", HOSTS), Everything()
    for host, entry in any_entries(random.Random(seed), ENTRIES):
        known = decoded(entry)
        for event in reducer.feed(host, known, known.t):
            made.take(event)
        made.look(known.t)
    for event in reducer.lost_for_good(1e9):
        made.take(event)
    made.end(1e9)
    for out in made.printed:
        assert "\x1b]" not in out.getvalue()
        assert "\u202e" not in out.getvalue()


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan")])
def test_samples_that_weigh_nothing_are_no_weight(weight: float) -> None:
    reduced = reduce_points([Point(1, 0.5, 1.0), Point(1, 0.7, weight)])
    assert reduced == (pytest.approx(0.6), None)
