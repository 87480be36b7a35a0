"""One run in a few numbers, from its picture or from what is stored. It follows nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from distconsole.model.events import PlanMade, RunEnded, RunEvents, RunSummary
from distconsole.monitor.follow import decode_entry, replay
from distconsole.monitor.reduce import RunReducer
from distconsole.monitor.store import RunFile, RunRecord
from distconsole.monitor.timeline import RunTimeline

BRIEF_ENTRIES = 2000
"""Entries, of all hosts together, that a list reads of a run."""


def listed(record: RunRecord) -> RunSummary:
    """Return what is known of a run without reading its entries."""
    plan, end = stored_plan(record), stored_end(record)
    return RunSummary(
        run=record.run,
        name=record.name,
        state=end.state.value if end else "unknown",
        started=record.started,
        seconds=end.seconds if end else None,
        script=plan.script if plan else "",
        launcher=plan.launcher if plan else "",
        world_size=plan.world_size if plan else 0,
        hosts=record.hosts,
        exit_code=end.exit_code if end else None,
        restarts=(end.restarts or 0) if end else 0,
        first_failure=None if not end or end.first_failure is UNSET else end.first_failure,
    )


def summarise(record: RunRecord, timeline: RunTimeline) -> RunSummary:
    """Return the summary of a run whose picture is there."""
    return seen_in(listed(record), timeline)


def seen_in(summary: RunSummary, timeline: RunTimeline) -> RunSummary:
    """Return ``summary`` with what the run's picture shows: how far it is and how it goes."""
    end = timeline.end
    steps = timeline.steps
    if end is not None:
        summary = msgspec.structs.replace(
            summary,
            state=end.state.value,
            seconds=end.seconds,
            exit_code=end.exit_code,
            restarts=end.restarts or 0,
            first_failure=None if end.first_failure is UNSET else end.first_failure,
        )
    if timeline.restart is not None:
        summary = msgspec.structs.replace(summary, restarts=timeline.restart.restart)
    return msgspec.structs.replace(
        summary,
        steps=None if steps is None else steps + 1,
        samples_s=mean_samples_s(timeline),
        step_ms_spread=timeline.spread,
        metrics={name: metric.value for name, metric in sorted(timeline.metric_last.items())},
    )


def brief(run_file: RunFile) -> RunSummary:
    """Return the summary of a stored run for a list: from its last entries, and made only once.

    Samples a second are then the mean over these. What is kept is used while the end is the same.
    """
    record = run_file.record()
    summary = listed(record)
    if kept := run_file.kept_summary():
        with contextlib.suppress(msgspec.MsgspecError):
            before = msgspec.json.decode(kept, type=RunSummary)
            if before.state == summary.state:
                return before
    timeline, reducer = RunTimeline(), RunReducer(record.run, record.hosts)
    each = max(100, BRIEF_ENTRIES // max(1, len(record.hosts)))
    with contextlib.suppress(msgspec.MsgspecError):  # a list shows what can be read
        for stored in run_file.tail(record.hosts, each):
            for event in reducer.feed(stored.host, decode_entry(stored.body), stored.t):
                timeline.apply(event)
    found = seen_in(summary, timeline)
    # The end that was kept is that of all hosts; the last entries may show that of one.
    known = {name: getattr(summary, name) for name in ("state", "seconds", "exit_code")}
    found = msgspec.structs.replace(found, **known, first_failure=summary.first_failure)
    if record.end:
        run_file.keep_summary(msgspec.json.encode(found))
    return found


def summary_of(run_file: RunFile) -> RunSummary:
    """Return the summary of a stored run: of one that is over the one that is kept, else by folding."""
    record = run_file.record()
    if record.end and (kept := run_file.kept_summary(whole=True)):
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(kept, type=RunSummary)
    timeline = RunTimeline()
    for event in stored_events(run_file):
        timeline.apply(event)
    return keep_whole(run_file, timeline)


def keep_whole(run_file: RunFile, timeline: RunTimeline) -> RunSummary:
    """Return the summary of a run all of whose events ``timeline`` has; keep it if the run is over."""
    record = run_file.record()
    summary = summarise(record, timeline)
    if record.end:
        with contextlib.suppress(sqlite3.Error):  # a full disk shows a run, too
            run_file.keep_summary(msgspec.json.encode(summary), whole=True)
    return summary


def stored_events(run_file: RunFile) -> Iterator[RunEvents]:
    """Yield a stored run's events, its plan first and its end last if they are known."""
    record = run_file.record()
    plan = stored_plan(record)
    if plan is not None:
        yield plan
    reducer = RunReducer(record.run, record.hosts)
    yield from replay(run_file, reducer)
    end = stored_end(record)
    if reducer.ended is None and end is not None:
        yield end  # of a run whose last host never came back


def mean_samples_s(timeline: RunTimeline) -> float | None:
    """Return samples a second over all ranks, averaged over the run; None where unknown."""
    values = timeline.throughput.values
    return sum(values) / len(values) if values else None


def stored_plan(record: RunRecord) -> PlanMade | None:
    """Return the run's plan as stored, or None."""
    return msgspec.json.decode(record.plan, type=PlanMade) if record.plan else None


def stored_end(record: RunRecord) -> RunEnded | None:
    """Return the run's end as stored, or None."""
    return msgspec.json.decode(record.end, type=RunEnded) if record.end else None
