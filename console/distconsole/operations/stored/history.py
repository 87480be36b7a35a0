"""``runs``, ``show`` and ``replay``: the stored and the remote state of runs."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Sequence

import msgspec

from distconsole.config.paths import runs_dir
from distconsole.errors import ConsoleError
from distconsole.model.decoding import threadsafe
from distconsole.model.events import (
    Event,
    LaunchKept,
    Narration,
    RankListed,
    RunListed,
    RunShown,
    warn,
)
from distconsole.model.names import RunId, join_some
from distconsole.model.outcome import Failed
from distconsole.model.requests import Launches, Replay, Run, Runs, Show, Where
from distconsole.model.run_summary import RunSummary
from distconsole.model.time_text import age_text
from distconsole.operations.attach import ask_late, find_record, fold, follow_run, where_of
from distconsole.operations.judging import Judge
from distconsole.operations.sessions import SessionSource, at_hand, lend
from distconsole.operations.stored.remote_runs import ask_runs, find_known, summary_of_known
from distconsole.operations.watching import decode_request
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, ranks_of
from distconsole.runs.conditions.summary_fields import summary_fields
from distconsole.runs.store.catalogue import Listed, stamps_in
from distconsole.runs.store.run_file import RunFile, RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import brief, listed, stored_events, summary_of
from distconsole.runs.timeline import RunTimeline

BRIEF_SECONDS = 1.5
"""Seconds for which a list of runs reads runs for the first time; the rest comes next time."""

MAX_NAMED = 5
"""Runs without a known end that are listed one by one."""


def runs(request: Runs, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """List runs, newest first: those stored here and, where hosts are named or at hand, those that they know.

    Only the hosts know whether a run without an end goes on, so without them it is ``unknown``, and
    it is said when it was last known to run.

    Raises UsageError if a condition means nothing.
    """
    judge = Judge(summary_fields(), request.only, request.fail_if)
    summaries: dict[RunId, RunSummary] = {}
    for run, summary in list_summaries(store):
        summaries[run] = summary
        if request.as_found:
            yield RunListed(summary=summary)
    if request.where.names_hosts or at_hand(sessions):
        for event in _ask_hosts(request.where, sessions, summaries):
            if request.as_found or not isinstance(event, RunListed):
                yield event
    if broken := [run for run in stamps_in(store.folder) if run not in summaries]:
        text = f"{join_some(broken, MAX_NAMED)} cannot be read and {'is' if len(broken) == 1 else 'are'} not listed"
        yield warn(f"{store.folder}: {text}")
    yield from _say_unknown(summaries.values(), store, time.time())
    if request.as_found:
        return
    newest_first = sorted(summaries.values(), key=lambda each: -each.started)
    rows, verdict = judge.judge(newest_first)
    for summary in rows:
        yield RunListed(summary=summary)
    yield from verdict
    if not summaries:
        text = f"no runs yet (they are kept in {store.folder}): distconsole run SCRIPT makes one"
        yield Narration(text=text)


def _ask_hosts(
    where: Where, sessions: SessionSource, summaries: dict[RunId, RunSummary]
) -> Iterator[Event]:
    with sessions(where) as session:
        known, silent = ask_runs(session)
    yield from _say_silent(silent, "its runs are not listed")
    for each in known:
        for host, trouble in each.troubles:
            yield warn(
                f"{host}: what it has of {each.run} cannot be read: {trouble}; "
                "it stays until you remove it"
            )
        stored = summaries.get(each.run)
        if stored is None or stored.state == "unknown":
            made = stored and msgspec.structs.replace(stored, state=each.state)
            summaries[each.run] = made or summary_of_known(each)
            yield RunListed(summary=summaries[each.run])


def _say_silent(silent: Sequence[Failed], so: str) -> Iterator[Narration]:
    for failure in silent:
        yield warn(f"{failure.text}; {so}")


def show(request: Show, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Summarise one run, or list those of its ranks that the request's conditions are about.

    Of a run without an end its hosts are asked for what is new; where they do not answer, that is said.

    Raises RunNotFoundError if there is no such run; UsageError if a condition means nothing;
    UnavailableError if nothing is known of what ``fail_if`` asks.
    """
    if request.only is not None or request.fail_if is not None:
        yield from _show_ranks(request, sessions, store)
        return
    record = find_record(request.run, request.where, sessions, store)
    state = ""
    if record is None:
        with sessions(request.where) as session:
            known, silent = ask_runs(session)
        yield from _say_silent(silent, "what it knows of runs is not told")
        yield RunShown(summary=summary_of_known(find_known(known, request.run, store.words())))
        return
    if not record.end:
        state = yield from fetch_news(record, request.where, sessions, store)
    elif request.where.names_hosts or at_hand(sessions):
        yield from ask_late(record, request.where, sessions, store)
    with store.open(record.run) as run_file:
        summary = _date_summary(summary_of(run_file), run_file)
    if state and summary.state == "unknown":
        summary = msgspec.structs.replace(summary, state=state)
    yield from _say_unknown([summary], store, time.time())
    yield RunShown(summary=summary)


def fetch_news(
    record: RunRecord, where: Where, sessions: SessionSource, store: RunStore
) -> Generator[Event, None, str]:
    """Store the news of the hosts of a run without an end; return its state by the hosts, or nothing."""
    try:
        with sessions(where_of(record, where)) as session:
            yield from fold(follow_run(record.run, where, lend(session), store), lambda _: None)
            known, _ = ask_runs(session, record.hosts)
            return next((each.state for each in known if each.run == record.run), "")
    except ConsoleError as error:
        yield warn(f"{error.message}; only what is stored here is shown")
        return ""


def open_kept(run: str) -> RunFile:
    """Return the open file of the run that is meant; raises RunNotFoundError, or ConsoleError."""
    store = RunStore(runs_dir())
    return store.open(store.resolve(run))


def replay(request: Replay, store: RunStore) -> Iterator[Event]:
    """Yield a stored run's events with their own times; raises RunNotFoundError."""
    with store.open(store.resolve(request.run)) as run_file:
        yield from stored_events(run_file)


def launches(request: Launches, store: RunStore) -> Iterator[Event]:
    """Yield launches from here, the newest first, equal ones once."""
    told: list[Run] = []
    for record in store.runs():
        if len(told) >= request.limit:
            return
        again = decode_request(record)
        if again is not None and again not in told:
            told.append(again)
            yield LaunchKept(summary=listed(record), request=again)


def _show_ranks(request: Show, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    judge = Judge(RANK_FIELDS, request.only, request.fail_if, always_some=True)
    timeline = RunTimeline()
    events = follow_run(request.run, request.where, sessions, store, timeline=timeline)
    yield from fold(events, timeline.apply)
    rows, verdict = judge.judge(ranks_of(timeline))
    named = judge.names or ("step", "step_ms", "samples_s")
    shown = tuple(dict.fromkeys(("rank", "host", "state", *named)))
    for row in rows:
        metrics = {f"metric.{name}": each for name, each in sorted(row.view.metrics.items())}
        fields = RANK_FIELDS.values(row) | metrics
        yield RankListed(run=timeline.run, fields=fields, shown=shown)
    yield from verdict


def list_summaries(store: RunStore) -> Iterator[tuple[RunId, RunSummary]]:
    """Yield every run that is stored, those written last first; only what no list has seen is opened."""
    known, stamps = store.catalogue.read(), stamps_in(store.folder)
    enough = time.monotonic() + BRIEF_SECONDS
    fresh: list[tuple[RunId, RunSummary, bool]] = []
    try:
        for run, stamp in stamps.items():
            kept, summary = known.get(run), None
            whole = time.monotonic() < enough
            if kept is not None and kept.stamp == stamp and (kept.whole or not whole):
                with contextlib.suppress(msgspec.MsgspecError):
                    summary = msgspec.json.decode(kept.summary, type=threadsafe(RunSummary))
                    summary = summary if summary.origin else None  # kept by an older version
            if summary is None:
                try:
                    with store.open(RunId(run)) as run_file:
                        made = brief(run_file) if whole else listed(run_file.record())
                        summary = _date_summary(made, run_file)
                except (ConsoleError, sqlite3.Error, msgspec.MsgspecError):
                    continue  # said by the count of those that cannot be read
                fresh.append((RunId(run), summary, whole))
            yield RunId(run), summary
    finally:  # also where nobody wants the rest
        _keep(store, fresh, known.keys() - stamps.keys())


def _keep(
    store: RunStore, fresh: Sequence[tuple[RunId, RunSummary, bool]], gone: Iterable[str]
) -> None:
    if not fresh and not gone:
        return
    stamps = stamps_in(store.folder)  # to look into a run may have written to its file
    rows = (
        Listed(run, stamps.get(run, ""), made.name, made.started, msgspec.json.encode(made), whole)
        for run, made, whole in fresh
    )
    store.catalogue.keep(rows, gone)


def _date_summary(summary: RunSummary, run_file: RunFile) -> RunSummary:
    if summary.state != "unknown":
        return summary
    seen = run_file.last_seen(summary.hosts) or summary.started
    return msgspec.structs.replace(summary, last_seen=seen)


def _say_unknown(
    summaries: Iterable[RunSummary], store: RunStore, now: float
) -> Iterator[Narration]:
    unknown = [summary for summary in summaries if summary.state == "unknown"]
    unknown.sort(key=lambda each: -each.started)
    for summary in unknown[:MAX_NAMED]:
        with store.open(RunId(summary.run)) as run_file:
            record = run_file.record()
            seen = summary.last_seen or run_file.last_seen(record.hosts) or summary.started
        ago = age_text(max(0.0, now - seen))
        where = _host_options(record.where, summary.hosts)
        yield Narration(
            text=f"{summary.run} was running when last seen {ago} ago on {','.join(summary.hosts)}; "
            f"distconsole runs {where} asks"
        )
    if len(unknown) > MAX_NAMED:
        yield Narration(text=f"and {len(unknown) - MAX_NAMED} older runs without an end")


def _host_options(where: Where, hosts: Iterable[str]) -> str:
    if not where.names_hosts:
        where = Where(
            hosts=",".join(hosts), ssh_config=where.ssh_config, transport=where.transport
        )
    given = {
        "--ssh-config": where.ssh_config,
        "--transport": where.transport,
        "--hosts": where.hosts,
        "--hostfile": where.hostfile,
        "--cluster": where.cluster,
    }
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in given.items() if value)
