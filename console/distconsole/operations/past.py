"""``runs``, ``show`` and ``replay``: what is known of runs. It changes nothing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from distconsole.model.events import (
    Event,
    Narration,
    RankListed,
    RunEvent,
    RunListed,
    RunShown,
    RunSummary,
)
from distconsole.model.findings import Severity
from distconsole.model.names import RunId
from distconsole.model.requests import Replay, Runs, Show, Where
from distconsole.monitor.rank_fields import RANK_FIELDS, ranks_of
from distconsole.monitor.store import RunRecord, RunStore
from distconsole.monitor.summary import brief, listed, stored_events, summary_of
from distconsole.monitor.summary_fields import summary_fields
from distconsole.monitor.timeline import RunTimeline
from distconsole.operations.judging import Judge
from distconsole.operations.kept import run_so_far
from distconsole.operations.remote_runs import known_runs, summary_of_known
from distconsole.operations.sessions import SessionSource

BRIEF_SECONDS = 1.5
"""A list of runs looks so long into runs that it has not yet looked into; the rest comes next time."""

TOLD_UNKNOWN = 5
"""Runs whose end is not known, and that are told of one by one."""


def runs(request: Runs, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """List runs, newest first: those stored here and, where hosts are named, those that they know.

    Only the hosts know whether a run without an end goes on, so without them it is ``unknown``, and
    it is said when it was last known to run.

    Raises:
        UsageError: if a condition means nothing.
    """
    judge = Judge(summary_fields(), request.only, request.fail_if)
    records = {record.run: record for record in store.runs()}
    enough = time.monotonic() + BRIEF_SECONDS
    summaries = {run: _stored(record, store, enough) for run, record in records.items()}
    if request.where.names_hosts:
        with sessions(request.where) as session:
            known, silent = known_runs(session)
        for failure in silent:
            yield Narration(
                text=f"{failure.host}: {failure.error.message}; its runs are not listed",
                severity=Severity.WARN,
            )
        for run in known:
            stored = summaries.get(run.run)
            if stored is None:
                summaries[run.run] = summary_of_known(run)
            elif stored.state == "unknown":
                summaries[run.run] = msgspec.structs.replace(stored, state=run.state)
    yield from _say_unknown(summaries.values(), records, time.time())
    found = judge.judged(sorted(summaries.values(), key=lambda each: -each.started))
    for summary in found.rows:
        yield RunListed(summary=summary)
    yield from found.verdict


def show(request: Show, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Summarise one stored run, or list those of its ranks that the request's conditions are about.

    Raises:
        RunNotFoundError: if there is no such run.
        UsageError: if a condition means nothing.
        UnavailableError: if nothing is known of what ``fail_if`` asks.
    """
    if request.only is not None or request.fail_if is not None:
        yield from _ranks(request, sessions, store)
        return
    with store.open(store.resolve(request.run)) as run_file:
        yield RunShown(summary=summary_of(run_file))


def replay(request: Replay, store: RunStore) -> Iterator[Event]:
    """Yield a stored run's events with the times at which they happened.

    Raises:
        RunNotFoundError: if there is no such run.
    """
    with store.open(store.resolve(request.run)) as run_file:
        yield from stored_events(run_file)


def _ranks(request: Show, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    judge = Judge(RANK_FIELDS, request.only, request.fail_if, always_some=True)
    timeline = RunTimeline()
    for event in run_so_far(request.run, Where(), sessions, store):
        if isinstance(event, RunEvent):
            timeline.apply(event)
        else:
            yield event
    found = judge.judged(ranks_of(timeline))
    named = judge.names or ("step", "step_ms", "samples_s")
    shown = tuple(dict.fromkeys(("rank", "host", "state", *named)))
    for row in found.rows:
        values = RANK_FIELDS.values(row) | {
            f"metric.{name}": value for name, value in sorted(row.view.metrics.items())
        }
        yield RankListed(run=timeline.run, fields=values, shown=shown)
    yield from found.verdict


def _stored(record: RunRecord, store: RunStore, enough: float) -> RunSummary:
    """Return what is stored of a run; without looking into it once it is ``enough`` (monotonic)."""
    with store.open(record.run) as run_file:
        summary = brief(run_file) if time.monotonic() < enough else listed(record)
        if summary.state != "unknown":
            return summary
        seen = run_file.last_seen(record.hosts) or record.started
        return msgspec.structs.replace(summary, last_seen=seen)


def _say_unknown(
    summaries: Iterable[RunSummary], records: Mapping[RunId, RunRecord], now: float
) -> Iterator[Narration]:
    """Say of runs without an end what is known, and what asks their hosts."""
    unknown = sorted(
        (summary for summary in summaries if summary.state == "unknown"),
        key=lambda each: -each.started,
    )
    for summary in unknown[:TOLD_UNKNOWN]:
        ago = ago_text(now - (summary.last_seen or summary.started))
        where = _words(records[RunId(summary.run)].where, summary.hosts)
        yield Narration(
            text=f"{summary.run} was running when last seen {ago} on {','.join(summary.hosts)}; "
            f"distconsole runs {where} asks"
        )
    if len(unknown) > TOLD_UNKNOWN:
        yield Narration(text=f"and {len(unknown) - TOLD_UNKNOWN} older runs without an end")


def ago_text(seconds: float) -> str:
    """Return a span of time as people say it, ``3 min ago``."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (size < 86400 and seconds >= size):
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def _words(where: Where, hosts: Iterable[str]) -> str:
    """Return the options that name a run's hosts as they were named."""
    if not where.names_hosts:
        where = Where(hosts=",".join(hosts), ssh_config=where.ssh_config)
    given = {
        "--ssh-config": where.ssh_config,
        "--hosts": where.hosts,
        "--hostfile": where.hostfile,
        "--cluster": where.cluster,
    }
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in given.items() if value)
