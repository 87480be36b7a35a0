"""A run from its beginning, for what writes it down: stored, up to this moment, or to its end."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.errors import ConsoleError
from distconsole.model.events import Event, Narration
from distconsole.model.findings import Severity
from distconsole.model.names import HostName
from distconsole.model.requests import Attach, Where
from distconsole.operations.attach import ask_late, attach, remote_record, stored_record, where_of
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource, hosts_of_run
from distconsole.operations.stored.remote_runs import known_runs
from distconsole.operations.watching import watch_run
from distconsole.runs.store.place import Place
from distconsole.runs.store.planned import stored_plan
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_events
from distconsole.session import Session


def run_so_far(
    run: str, where: Where, sessions: SessionSource, store: RunStore
) -> Iterator[Event]:
    """Yield a run's events up to this moment.

    Of a run without an end its hosts are asked for what is new; where they do not answer, what is
    stored has to do, and that is said.

    Raises:
        RunNotFoundError: if neither this machine nor a host knows the run.
    """
    record = stored_record(run, where, sessions, store)
    if record is not None and record.end:
        yield from ask_late(record, where, sessions, store)
        yield from _stored(record, store)
        return
    try:
        with sessions(where_of(record, where)) as session:
            known = record or remote_record(session, run, where, store)
            until, lacking = known_so_far(session, known)
            yield from lacking
            if until:
                plan = stored_plan(known)
                if plan is not None:
                    yield plan
                yield from watch_run(known, session, Control(), store, until)
                return
    except ConsoleError as error:
        if record is None:
            raise
        yield lacks(error.message)
    if record is not None:
        yield from _stored(record, store)


def run_to_its_end(
    run: str, where: Where, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield a run's events until it ends or the operator leaves.

    Raises:
        RunNotFoundError: if neither this machine nor a host knows the run.
    """
    return attach(Attach(run, where), sessions, control, store)


def known_so_far(
    session: Session, record: RunRecord
) -> tuple[dict[HostName, Place], list[Narration]]:
    """Return how far the journal is of each host of the run that answers, and what is to be said of the others.

    Raises:
        UsageError: if the run is on other hosts than the session's.
    """
    hosts = hosts_of_run(session, record.hosts)
    runs, silent = known_runs(session, hosts)
    places = next((each.places for each in runs if each.run == record.run), {})
    lacking = [
        lacks(f"{each.host}: {each.error.message.removeprefix(f'{each.host}: ')}")
        for each in silent
    ]
    away = {each.host for each in silent}
    forgotten = [host for host in hosts if host not in places and host not in away]
    if forgotten:
        lacking.append(lacks(f"{', '.join(forgotten)}: nothing is known of {record.run} any more"))
    return {host: place for host, place in places.items() if host in hosts}, lacking


def lacks(why: str) -> Narration:
    """Return what is said where a host of a run does not tell what is new."""
    return Narration(text=f"{why}; only what is stored here is shown", severity=Severity.WARN)


def _stored(record: RunRecord, store: RunStore) -> Iterator[Event]:
    with store.open(record.run) as run_file:
        yield from stored_events(run_file)
