"""``stop``: end a run on every host, and see to it that it is gone."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.errors import UnreachableError
from distconsole.model.events import Event, Narration, warn
from distconsole.model.outcome import failed, succeeded
from distconsole.model.requests import Stop
from distconsole.model.run_events import LinkChanged, RunEnded, RunFinding
from distconsole.operations.attach import find_record, open_run
from distconsole.operations.control import Control, StopReason
from distconsole.operations.sessions import SessionSource
from distconsole.operations.watching import WIRE_REASONS, stop_ranks, watch_run
from distconsole.runs.store.planned import stored_end
from distconsole.runs.store.store import RunStore


def stop(
    request: Stop, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Stop a run and follow it, quietly, until nothing of it is left.

    The run's own end is narration: this verb succeeded, whatever the run's exit code. Raises
    RunNotFoundError for an unknown run; UnreachableError if no host of it takes the request.
    """
    record = find_record(request.run, request.where, sessions, store, unended=True)
    if record is not None and (end := stored_end(record)) is not None:
        yield Narration(text=f"{record.run} is over: {end.state}, exit code {end.exit_code}")
        return
    opened = open_run(record, request.run, request.where, sessions, store)
    with opened as (session, record, hosts):
        reason = WIRE_REASONS[StopReason.STOP]
        answers = stop_ranks(session, hosts, record.run, reason, request.grace_seconds)
        for failure in failed(answers):
            yield warn(failure.text)
        if not succeeded(answers):
            raise UnreachableError(
                f"no host of {record.run} could be told to stop",
                "the run goes on there; try again when one can be reached",
            )
        yield Narration(text=f"stopping {record.run} on {', '.join(hosts)}")
        for event in watch_run(record, session, control, store):
            if isinstance(event, RunEnded):
                yield Narration(
                    text=f"{event.run} is over: {event.state}, exit code {event.exit_code}"
                )
            elif isinstance(event, RunFinding | LinkChanged):
                yield event
