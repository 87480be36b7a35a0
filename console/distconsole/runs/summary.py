"""A stored run: its events, and the run in a few numbers."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from distconsole.model.decoding import threadsafe
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, count_text
from distconsole.model.run_events import RunEnded, RunEvents, RunFinding
from distconsole.model.run_summary import NoticedFinding, RunSummary
from distconsole.rpc.frames import EndEntry, JournalEntry, LogEntry, WindowEntry
from distconsole.runs.detectors.conclusions import FIRST_FAILURE
from distconsole.runs.following.waiting_lines import WaitingLine, WaitingLines
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.planned import reducer_of, stored_end, stored_plan
from distconsole.runs.store.run_file import KIND_BYTES, RunFile, RunRecord
from distconsole.runs.timeline import RunTimeline

MAX_NOTICED = 20

UNSUMMED = ("sample", "log", "phase")
"""Kinds of entries that a summary does not use."""
END_FIELDS = ("state", "seconds", "exit_code", "first_failure")
BRIEF_ENTRIES = 2000
"""Entries, of all hosts together, that a list reads of a run."""


def listed(record: RunRecord) -> RunSummary:
    plan, end = stored_plan(record), stored_end(record)
    return RunSummary(
        run=record.run,
        name=record.name,
        started=record.started,
        script=plan.script if plan else "",
        launcher=plan.launcher if plan else "",
        world_size=plan.world_size if plan else 0,
        hosts=record.hosts,
        origin=_origin_of(record),
        **(_how_it_ended(end) if end else {"state": "unknown", "seconds": None}),
    )


def _origin_of(record: RunRecord) -> str:
    return "here" if record.request else "attached"


def _how_it_ended(end: RunEnded) -> dict[str, Any]:
    return {
        "state": end.state.value,
        "seconds": end.seconds,
        "exit_code": end.exit_code,
        "restarts": end.restarts or 0,
        "first_failure": None if end.first_failure is UNSET else end.first_failure,
    }


def summarise(record: RunRecord, timeline: RunTimeline) -> RunSummary:
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
    end = timeline.end
    steps = timeline.steps
    if end is not None:
        summary = msgspec.structs.replace(summary, **_how_it_ended(end))
    if timeline.restart is not None:
        summary = msgspec.structs.replace(summary, restarts=timeline.restart.restart)
    return msgspec.structs.replace(
        summary,
        # A script that spawns its ranks has more than were planned.
        world_size=max(summary.world_size, len(timeline.ranks)),
        steps=None if steps is None else steps + 1,
        unit="batches" if timeline.in_batches else "",
        samples_s=timeline.mean_samples_s,
        step_ms_spread=timeline.spread,
        own_ms_spread=timeline.own_spread,
        metrics={name: metric.value for name, metric in sorted(timeline.metric_last.items())},
        best=dict(sorted(timeline.best.items())),
    )


def brief(run_file: RunFile) -> RunSummary:
    """Return the summary of a stored run for a list: the kept one, else one of its last entries.

    Samples a second are then the mean over these, and the metrics' best values are unknown.
    """
    record = run_file.record()
    summary = listed(record)
    kept = _kept_summary(run_file)
    if kept is not None and kept.state == summary.state:
        return kept
    reducer = reducer_of(record)
    timeline = RunTimeline(reducer.stragglers)
    each = max(100, BRIEF_ENTRIES // max(1, len(record.hosts)))
    with contextlib.suppress(ValueError):  # a list shows the readable part
        for stored in run_file.tail(record.hosts, each):
            for event in reducer.feed(stored.host, decode_entry(stored.body), stored.t):
                timeline.apply(event)
    # The end that was kept is that of all hosts; the last entries may show that of one.
    known = {name: getattr(summary, name) for name in END_FIELDS}
    return msgspec.structs.replace(seen_in(summary, timeline), **known, best={})


def summary_of(run_file: RunFile) -> RunSummary:
    """Return the summary of a stored run: of one that is over the one that is kept, else by folding."""
    kept = _kept_summary(run_file) if run_file.record().end else None
    if kept is not None:
        return kept
    return keep_whole(run_file, stored_timeline(run_file, UNSUMMED, sums=True))


def stored_timeline(
    run_file: RunFile, without: tuple[str, ...] = (), *, sums: bool = False
) -> RunTimeline:
    """Return a stored run as it was seen; ``sums``: as far as a summary needs it, in a fraction of the time."""
    reducer = reducer_of(run_file.record())
    timeline = RunTimeline(reducer.stragglers)
    for event in stored_events(run_file, without, reducer, sums=timeline if sums else None):
        timeline.apply(event)
    return timeline


def keep_whole(run_file: RunFile, timeline: RunTimeline) -> RunSummary:
    """Return the summary of a run with all its events in ``timeline``; keep it if the run is over."""
    record = run_file.record()
    summary = summarise(record, timeline)
    if record.end:
        with contextlib.suppress(sqlite3.Error):  # a disk that refuses costs time alone
            run_file.keep_summary(msgspec.json.encode(summary))
    return summary


def _kept_summary(run_file: RunFile) -> RunSummary | None:
    with contextlib.suppress(msgspec.MsgspecError):
        kept = msgspec.json.decode(run_file.kept_summary(), type=threadsafe(RunSummary))
        return msgspec.structs.replace(kept, origin=_origin_of(run_file.record()))
    return None


def replay(
    run_file: RunFile,
    reducer: RunReducer,
    spoilt: Counter[str] | None = None,
    without: tuple[str, ...] = (),
    last: dict[HostName, int] | None = None,
    lines: WaitingLines | None = None,
    until: Mapping[HostName, int] | None = None,
    sums: RunTimeline | None = None,
) -> Iterator[RunEvents]:
    """Yield the events of the stored entries; unreadable ones are counted.

    The end comes last: a host that the run went on without may have reported more since.

    Args:
        spoilt: Number of unreadable entries by host.
        without: Unwanted kinds of entries; most of them are not even decoded.
        last: Takes the number of the last entry of each of its hosts.
        lines: Takes printed lines, until a host's end, so that all else comes first.
        until: The number of the last entry of each host that is wanted; None wants all.
        sums: Takes windows in place of their events, as ``RunReducer.sum_up`` does.
    """
    unwanted = re.compile(f'"kind":"(?:{"|".join(without)})"'.encode()) if without else None
    for host, seq, t, body in run_file.entries(until=until):
        if last and host in last:
            last[host] = seq
        if unwanted is not None and unwanted.search(body, 0, KIND_BYTES):
            continue
        plain = _decode_plain(body)
        try:
            entry = plain if plain is not None else _decode_odd(body)
        except ValueError:
            if spoilt is not None:
                spoilt[host] += 1
            continue
        turn = (
            ((host, entry, t),) if lines is None else _in_turn(WaitingLine(host, entry, t), lines)
        )
        for line in turn:
            taken = reducer.sum_up(*line, sums) if sums and plain else reducer.feed(*line)
            for event in taken:
                if not isinstance(event, RunEnded):
                    yield event
    if reducer.ended is not None:
        yield reducer.ended


def _in_turn(told: WaitingLine, lines: WaitingLines) -> Iterator[WaitingLine]:
    if isinstance(told.entry, LogEntry):
        lines.put(told.host, told.entry, told.t)
        return
    while lines and isinstance(told.entry, EndEntry):
        yield lines.take()
    yield told


def decode_entry(body: bytes) -> JournalEntry:
    """Return a stored entry; raises ValueError if it is none: half written, damaged, or of a newer version."""
    plain = _decode_plain(body)
    return plain if plain is not None else _decode_odd(body)


def _decode_plain(body: bytes) -> JournalEntry | None:
    """Return a stored entry whose numbers are all finite; None for any other."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decode_odd(body: bytes) -> JournalEntry:
    # A diverged loss is NaN or Infinity; only the standard library reads them.
    try:
        entry: JournalEntry = msgspec.convert(json.loads(body), threadsafe(JournalEntry))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return entry


_DECODER: msgspec.json.Decoder[JournalEntry] = msgspec.json.Decoder(threadsafe(JournalEntry))


def stored_events(
    run_file: RunFile,
    without: tuple[str, ...] = (),
    reducer: RunReducer | None = None,
    until: Mapping[HostName, int] | None = None,
    sums: RunTimeline | None = None,
) -> Iterator[RunEvents]:
    """Yield a stored run's events, its plan first and its end last if known, as ``replay`` does."""
    record = run_file.record()
    plan = stored_plan(record)
    if plan is not None:
        yield plan
    reducer = reducer or reducer_of(record)
    spoilt: Counter[str] = Counter()
    yield from replay(run_file, reducer, spoilt, without, until=until, sums=sums)
    seen = run_file.last_seen(record.hosts) or record.started
    damage = damage_finding(record, spoilt, run_file, seen)
    if damage is not None:
        yield damage
    end = stored_end(record)
    if reducer.ended is None and end is not None:
        yield from reducer.conclude(end)


def damage_finding(
    record: RunRecord, spoilt: Mapping[str, int], run_file: RunFile, t: float
) -> RunFinding | None:
    """Return the finding on a record that can be read in part only; None for a sound one.

    ``spoilt`` counts entries that mean nothing by host; the record ends at ``t`` (UNIX seconds).
    """
    damage = run_file.damage
    if not spoilt and not damage:
        return None
    seen = [
        f"{count_text(count, 'entry', 'entries')} of {host} cannot be read"
        for host, count in sorted(spoilt.items())
    ]
    seen += [f"{host or 'the file'}: {why}" for host, why in sorted(damage.items())]
    lost = sum(spoilt.values())
    words = (
        "entries on a damaged part of the file are"
        if damage
        else count_text(lost, "entry is", "entries are")
    )
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


PLACES = 120
"""Places of a host's journal that are looked at: more than a small plot has columns."""


LEAST_POINTS = 2


class Sketch(NamedTuple):
    """One rank's ``loss``, or its ``samples/s`` without a loss, over seconds since the start."""

    name: str
    rank: int
    xs: tuple[float, ...]
    values: tuple[float, ...]


def sketch_of(run_file: RunFile) -> Sketch | None:
    """Return the course of the first rank that is found, None with less than a line; raises sqlite3.Error."""
    record = run_file.record()
    found: list[tuple[float, WindowEntry]] = []
    for stored in run_file.spread_windows(record.hosts[0], PLACES) if record.hosts else ():
        with contextlib.suppress(ValueError):  # a damaged entry
            entry = decode_entry(stored.body)
            if isinstance(entry, WindowEntry):
                found.append((stored.t - record.started, entry))
    if not found:
        return None
    rank = min(entry.rank for _, entry in found)
    own = [(x, entry) for x, entry in found if entry.rank == rank]
    losses = [(x, entry.metrics.get("loss")) for x, entry in own]
    name = "loss" if any(value is not None for _, value in losses) else "samples/s"
    read = losses if name == "loss" else [(x, entry.samples_s) for x, entry in own]
    points: list[tuple[float, float]] = []
    for x, value in read:
        rises = x >= 0 if not points else x > points[-1][0]
        if value is not None and math.isfinite(value) and rises:
            points.append((x, value))
    if len(points) < LEAST_POINTS:
        return None
    xs, values = zip(*points, strict=True)
    return Sketch(name, rank, xs, values)
