"""Entries and events of one run, of which a test says only what it is about: rank N is on host ``hN``."""

from collections.abc import Iterable
from typing import Any

import msgspec

from distconsole.model.run_events import LogLine, Metric, RankChanged, RankState, Window
from distconsole.rpc.frames import JournalEntry
from distconsole.runs.timeline import RunTimeline
from fakes.blank import blank

T, RUN = 1000.0, "run-1"


def entry(kind: str, seq: int, t: float, /, **body: Any) -> JournalEntry:
    """Return an entry of a journal as the console takes it from a node."""
    raw = {"kind": kind, "seq": seq, "t": t, **body}
    made: JournalEntry = msgspec.convert(raw, JournalEntry)  # type: ignore[arg-type]
    return made


def timeline_of(events: Iterable[Any]) -> RunTimeline:
    timeline = RunTimeline()
    for event in events:
        timeline.apply(event)
    return timeline


def window(rank: int, t: float = T, ms: float | None = 10.0, **fields: Any) -> Window:
    """Return a window of ten steps; the figures that are not given are unknown but ``samples_s``."""
    usual = {"step": 9, "steps": 10, "samples_s": 100.0, "host": f"h{rank}", "step_ms_p95": ms}
    return blank(Window, t=t, run=RUN, rank=rank, step_ms_mean=ms, **{**usual, **fields})


def rank_is(rank: int, state: RankState, **fields: Any) -> RankChanged:
    place = {"rank": rank, "host": f"h{rank}", "pid": 9}
    return blank(RankChanged, t=T, run=RUN, state=state, **place, **fields)


def metric(name: str, value: float, step: int = 7) -> Metric:
    return blank(
        Metric, t=T, run=RUN, name=name, step=step, value=value, min=value, max=value, ranks=1
    )


def log(line: str, t: float = T, rank: int = 0, **fields: Any) -> LogLine:
    return LogLine(t=t, run=RUN, host="h0", stream="out", line=line, rank=rank, **fields)
