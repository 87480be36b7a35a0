"""One run in a few numbers, from its timeline or from what is stored."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec
from msgspec import UNSET

from distconsole.model.decoding import threadsafe
from distconsole.model.findings import Severity
from distconsole.model.run_events import RunEvents, RunFinding
from distconsole.model.run_summary import NoticedFinding, RunSummary
from distconsole.runs.detectors.conclusions import FIRST_FAILURE
from distconsole.runs.following.follow import decode_entry, replay
from distconsole.runs.store.planned import reducer_of, stored_end, stored_plan
from distconsole.runs.store.run_file import RunFile, RunRecord
from distconsole.runs.timeline import RunTimeline, Totals

MAX_NOTICED = 20

UNSUMMED = ("sample", "log", "phase")
"""Kinds of entries that a summary says nothing of."""
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
    return msgspec.structs.replace(
        seen_in(listed(record), timeline), findings=noticed(timeline.findings)
    )


def noticed(findings: Iterable[RunFinding]) -> tuple[NoticedFinding, ...]:
    """Return the warnings and failures, the first failure left out, at most ``MAX_NOTICED``."""
    wanted = (
        finding
        for finding in findings
        if finding.severity in (Severity.WARN, Severity.FAIL) and finding.check != FIRST_FAILURE
    )
    return tuple(
        NoticedFinding(
            t=finding.t,
            check=finding.check,
            severity=finding.severity,
            summary=finding.summary,
            hint=finding.hint,
        )
        for finding in islice(wanted, MAX_NOTICED)
    )


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
        # A script that spawns its ranks has more than were planned.
        world_size=max(summary.world_size, len(timeline.ranks)),
        steps=None if steps is None else steps + 1,
        samples_s=timeline.mean_samples_s,
        step_ms_spread=timeline.spread,
        metrics={name: metric.value for name, metric in sorted(timeline.metric_last.items())},
        best=dict(sorted(timeline.best.items())),
    )


def brief(run_file: RunFile) -> RunSummary:
    """Return the summary of a stored run for a list: from its last entries, and made only once.

    Samples a second are then the mean over these, and which metric was when at its best is not known. What is kept is used while the end is the same.
    """
    record = run_file.record()
    summary = listed(record)
    if kept := run_file.kept_summary():
        with contextlib.suppress(msgspec.MsgspecError):
            before = msgspec.json.decode(kept, type=threadsafe(RunSummary))
            if before.state == summary.state:
                return before
    timeline, reducer = RunTimeline(), reducer_of(record)
    each = max(100, BRIEF_ENTRIES // max(1, len(record.hosts)))
    with contextlib.suppress(ValueError):  # a list shows what can be read
        for stored in run_file.tail(record.hosts, each):
            for event in reducer.feed(stored.host, decode_entry(stored.body), stored.t):
                timeline.apply(event)
    found = seen_in(summary, timeline)
    # The end that was kept is that of all hosts; the last entries may show that of one.
    known = {name: getattr(summary, name) for name in ("state", "seconds", "exit_code")}
    found = msgspec.structs.replace(found, **known, first_failure=summary.first_failure, best={})
    _keep(run_file, record, found)
    return found


def summary_of(run_file: RunFile) -> RunSummary:
    """Return the summary of a stored run: of one that is over the one that is kept, else by folding."""
    record = run_file.record()
    if record.end and (kept := run_file.kept_summary(whole=True)):
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(kept, type=threadsafe(RunSummary))
    timeline = Totals()
    for event in stored_events(run_file, without=UNSUMMED):
        timeline.apply(event)
    return keep_whole(run_file, timeline)


def keep_whole(run_file: RunFile, timeline: RunTimeline) -> RunSummary:
    """Return the summary of a run all of whose events ``timeline`` has; keep it if the run is over."""
    record = run_file.record()
    summary = summarise(record, timeline)
    _keep(run_file, record, summary, whole=True)
    return summary


def _keep(
    run_file: RunFile, record: RunRecord, summary: RunSummary, *, whole: bool = False
) -> None:
    """Keep the summary of a run that is over; a disk that refuses costs time alone."""
    if record.end:
        with contextlib.suppress(sqlite3.Error):
            run_file.keep_summary(msgspec.json.encode(summary), whole=whole)


def stored_events(run_file: RunFile, without: tuple[str, ...] = ()) -> Iterator[RunEvents]:
    """Yield a stored run's events, its plan first and its end last if they are known.

    Args:
        without: Kinds of entries that nobody wants, as ``replay`` has them.
    """
    record = run_file.record()
    plan = stored_plan(record)
    if plan is not None:
        yield plan
    reducer = reducer_of(record)
    spoilt: Counter[str] = Counter()
    yield from replay(run_file, reducer, spoilt, without)
    seen = run_file.last_seen(record.hosts) or record.started
    damage = damage_finding(record, spoilt, run_file, seen)
    if damage is not None:
        yield damage
    end = stored_end(record)
    if reducer.ended is None and end is not None:
        yield end  # of a run whose last host never came back


def damage_finding(
    record: RunRecord, spoilt: Mapping[str, int], run_file: RunFile, t: float
) -> RunFinding | None:
    """Return what is to be said of a record that can be read in part only; None of a sound one.

    Args:
        record: The run.
        spoilt: Host -> entries that mean nothing.
        run_file: It was read, and knows why entries of it could not be.
        t: When the record ends (UNIX seconds).
    """
    damage = run_file.damage
    if not spoilt and not damage:
        return None
    seen = [f"{count} entries of {host} cannot be read" for host, count in sorted(spoilt.items())]
    seen += [f"{host or 'the file'}: {why}" for host, why in sorted(damage.items())]
    lost = sum(spoilt.values())
    words = "entries on a damaged part of the file are" if damage else f"{lost} entries are"
    return RunFinding(
        t=t,
        run=record.run,
        check="run.record_damaged",
        severity=Severity.WARN,
        hosts=tuple(sorted({*spoilt, *damage} - {""})),
        summary=f"the kept record of this run is damaged: {words} left out",
        seen="; ".join(seen),
        expected="every entry can be read",
        hint="what can be read is shown; hosts know a run for 14 days after its end, and tell it anew, "
        f"though not how to rerun it: mv {run_file.path} {run_file.path}.damaged; distconsole attach "
        f"{record.run} --hosts {','.join(record.hosts)}",
    )
