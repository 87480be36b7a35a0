"""``logs``: the lines that a run's ranks printed, stored or still coming; filtered, folded where asked.

Restarts of the ranks are marked between the lines.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from distconsole.model.events import Event, Narration
from distconsole.model.findings import Severity
from distconsole.model.requests import Logs
from distconsole.model.run_events import LogLine, LogSource, RunEvent, RunRestarted
from distconsole.model.time_text import parse_since
from distconsole.operations.attach import find_record, follow_run, journal_places, open_run
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource
from distconsole.operations.watching import watch_run
from distconsole.runs.logs.buffer import LogEncoder, said_by
from distconsole.runs.logs.filter import LogFilter, parse_pattern
from distconsole.runs.logs.fold import Fold, Row
from distconsole.runs.logs.levels import Level
from distconsole.runs.store.planned import stored_plan
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore


def logs(
    request: Logs, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield the lines that fit; with ``follow`` until the run ends; raises as ``attach``."""
    record = find_record(request.run, request.where, sessions, store)
    fold = fold_lines if request.fold else _drop_times
    if record is not None and (record.end or not request.follow):
        ended = None
        if record.end:
            with store.open(record.run) as run_file:
                ended = run_file.last_seen(record.hosts)
        so_far = follow_run(record.run, request.where, sessions, store)
        past = end_transient(select_lines(so_far, _line_filter(request, ended or time.time())))
        yield from _say_if_none(fold(_tail(past, request.tail)), request, record)
        return
    opened = open_run(record, request.run, request.where, sessions, store)
    with opened as (session, record, hosts):
        until, lacking = journal_places(session, record, hosts)
        yield from lacking
        wanted = _line_filter(request, time.time())
        skipped = Skipped()
        past = select_lines(watch_run(record, session, Control(), store, until), wanted)
        if not request.follow:
            past = end_transient(past)
            yield from _say_if_none(fold(_tail(past, request.tail)), request, record)
            return
        yield from fold(_tail(skipped.count(past), request.tail))
        coming = watch_run(record, session, control, store, whole=True)
        yield from fold(skipped.rest(select_lines(coming, wanted)))


def _say_if_none(
    lines: Iterator[LogLine | Narration], request: Logs, record: RunRecord
) -> Iterator[LogLine | Narration]:
    """Yield ``lines``; without any, describe what the run has."""
    none = True
    for line in lines:
        none = none and not isinstance(line, LogLine)
        yield line
    if not none:
        return
    plan = stored_plan(record)
    ranks = f"ranks 0-{plan.world_size - 1}" if plan and plan.world_size > 1 else "rank 0"
    filters = (request.ranks, request.host, request.stream, request.grep, request.since)
    fits = "nothing was printed" if record.end else "nothing was printed yet"
    if any((*filters, request.errors)):
        fits = "no line fits"
    yield Narration(text=f"{fits}: {record.run} has {ranks} on {', '.join(record.hosts)}")


def _line_filter(request: Logs, now: float) -> LogFilter:
    return LogFilter(
        spans=request.ranks,
        host=request.host or "",
        stream=request.stream or "",
        pattern=parse_pattern(request.grep) if request.grep else None,
        level=Level.PART if request.errors else Level.PLAIN,
        since=parse_since(request.since, now) if request.since else None,
    )


@dataclass(frozen=True, slots=True)
class Passed:
    """It is ``t`` (UNIX seconds): nothing to tell, but what waits for others may go on."""

    t: float


Told: TypeAlias = LogLine | Narration | Passed


class Skipped:
    """Leaves out, of a run read for the second time, the lines that the first reading gave."""

    def __init__(self) -> None:
        self._counts: Counter[object] = Counter()

    def count(self, lines: Iterator[Told]) -> Iterator[Told]:
        """Yield ``lines`` and remember how many there were of each source."""
        for line in lines:
            if isinstance(line, Narration) or (isinstance(line, LogLine) and not line.transient):
                self._counts[_source(line)] += 1
                yield line

    def rest(self, lines: Iterator[Told]) -> Iterator[Told]:
        for line in lines:
            if isinstance(line, Passed) or (isinstance(line, LogLine) and line.transient):
                yield line
                continue
            source = _source(line)
            if self._counts[source] > 0:
                self._counts[source] -= 1
            else:
                yield line


def _source(line: LogLine | Narration) -> object:
    return line.text if isinstance(line, Narration) else line.source


def select_lines(events: Iterator[Event], wanted: LogFilter) -> Iterator[Told]:
    scribe = LogEncoder()
    fits = wanted.test(scribe.speakers)
    for event in events:
        if isinstance(event, LogLine):
            if fits(scribe.take(event)):
                yield event
        elif isinstance(event, RunRestarted):
            yield Narration(text=f"restart {event.restart} of {event.of}")
        elif isinstance(event, RunEvent):
            yield Passed(event.t)
        elif isinstance(event, Narration):
            yield event


def end_transient(told: Iterator[Told]) -> Iterator[Told]:
    """Yield ``told`` without transient lines, except the last state of each that did not end."""
    standing: dict[LogSource, LogLine] = {}
    for one in told:
        if not isinstance(one, LogLine):
            yield one
        elif one.transient:
            standing[one.source] = one
        else:
            standing.pop(one.source, None)
            yield one
    for line in standing.values():
        yield msgspec.structs.replace(line, transient=False)


def fold_lines(told: Iterator[Told]) -> Iterator[LogLine | Narration]:
    """Yield ``told`` with equal lines within ``FOLD_SECONDS`` (their own time) as one, with its ranks."""
    fold, scribe = Fold(), LogEncoder()
    waiting: deque[tuple[Row, LogLine]] = deque()
    number = 0
    for one in told:
        if isinstance(one, Narration):
            yield from _release(waiting, scribe, None)
            yield one
        elif isinstance(one, Passed):
            fold.tick(one.t)
        elif one.transient:
            yield one
        else:
            line = scribe.take(one)
            if fold.join(line) is None:
                row = Row(number, number, line.t, 1, 1 << line.speaker, line.level)
                number += 1
                waiting.append((row, one))
                fold.begin(line, row)
        yield from _release(waiting, scribe, fold.closed_before())
    yield from _release(waiting, scribe, None)


def _release(
    waiting: deque[tuple[Row, LogLine]], scribe: LogEncoder, before: int | None
) -> Iterator[LogLine]:
    """Yield the rows before ``before``; -1 or None yields all."""
    while waiting and (before is None or before < 0 or waiting[0][0].number < before):
        row, line = waiting.popleft()
        if row.count > 1:
            said = said_by(row.who, scribe.speakers)
            line = msgspec.structs.replace(line, ranks=said.ranks or UNSET, hosts=said.hosts)
        yield line


def _drop_times(told: Iterator[Told]) -> Iterator[LogLine | Narration]:
    return (one for one in told if not isinstance(one, Passed))


def _tail(lines: Iterator[Told], count: int | None) -> Iterator[Told]:
    """Yield ``lines``, or the last ``count`` of them and the notes between these; warnings always."""
    if count is None:
        yield from lines
        return
    kept: deque[Told] = deque()
    held = 0
    for line in lines:
        if isinstance(line, Narration) and line.severity is Severity.WARN:
            yield line
            continue
        kept.append(line)
        held += isinstance(line, LogLine)
        while held > max(0, count):
            held -= isinstance(kept.popleft(), LogLine)
    yield from kept
