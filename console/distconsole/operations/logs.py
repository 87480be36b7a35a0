"""``logs``: the lines that a run's ranks printed, stored or still coming. It parses none.

Where the ranks were started anew, that is said between the lines.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import TypeAlias

from distconsole.model.events import Event, LogLine, Narration, RunEvents, RunRestarted
from distconsole.model.requests import Logs
from distconsole.monitor.store import RunStore
from distconsole.monitor.summary import stored_events
from distconsole.operations.attach import remote_record, stored_record, where_of
from distconsole.operations.control import Control
from distconsole.operations.kept import known_so_far
from distconsole.operations.sessions import SessionSource
from distconsole.operations.watching import watch_run


def logs(
    request: Logs, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield the lines that fit; with ``follow`` until the run ends.

    Raises:
        RunNotFoundError: if neither this machine nor a host knows the run.
    """
    record = stored_record(request.run, request.where, store)
    if record is not None and record.end:
        with store.open(record.run) as run_file:
            yield from _tail(_fitting(stored_events(run_file), request), request.tail)
        return
    with sessions(where_of(record, request.where)) as session:
        record = record or remote_record(session, request.run, request.where)
        until = known_so_far(session, record)
        skipped = Skipped()
        past = watch_run(record, session, Control(), store, until)
        yield from _tail(skipped.count(_fitting(past, request)), request.tail)
        if request.follow:
            coming = watch_run(record, session, control, store)
            yield from skipped.rest(_fitting(coming, request))


Told: TypeAlias = LogLine | Narration


class Skipped:
    """Leaves out, of a run read for the second time, the lines that the first reading gave."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[object, ...]] = Counter()

    def count(self, lines: Iterator[Told]) -> Iterator[Told]:
        """Yield ``lines`` and remember how many there were of each source."""
        for line in lines:
            self._counts[_source(line)] += 1
            yield line

    def rest(self, lines: Iterator[Told]) -> Iterator[Told]:
        """Yield what ``lines`` has beyond those."""
        for line in lines:
            source = _source(line)
            if self._counts[source] > 0:
                self._counts[source] -= 1
            else:
                yield line


def _source(line: Told) -> tuple[object, ...]:
    if isinstance(line, Narration):
        return (line.text,)
    return line.host, line.rank, line.stream


def _fitting(events: Iterator[RunEvents], request: Logs) -> Iterator[Told]:
    for event in events:
        if isinstance(event, RunRestarted):
            yield Narration(text=f"restart {event.restart} of {event.of}")
        if not isinstance(event, LogLine) or event.transient:
            continue
        if request.rank is not None and event.rank != request.rank:
            continue
        if request.host is not None and event.host != request.host:
            continue
        yield event


def _tail(lines: Iterator[Told], count: int | None) -> Iterator[Told]:
    """Yield ``lines``, or the last ``count`` of them and what is said between these."""
    if count is None:
        yield from lines
        return
    kept: deque[Told] = deque()
    held = 0
    for line in lines:
        kept.append(line)
        held += isinstance(line, LogLine)
        while held > max(0, count):
            held -= isinstance(kept.popleft(), LogLine)
    yield from kept
