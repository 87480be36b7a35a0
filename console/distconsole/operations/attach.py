"""``attach``, and a run from its beginning for other verbs: stored, up to this moment, or to its end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from distconsole.errors import ConsoleError, RunNotFoundError
from distconsole.model.events import Event, Narration, warn
from distconsole.model.names import HostName, join_some
from distconsole.model.requests import Attach, Where
from distconsole.model.run_events import RunEvent, RunEvents
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource, at_hand, hosts_of, hosts_of_run, lasting
from distconsole.operations.stored.remote_runs import ask_runs, find_known
from distconsole.operations.watching import journal_opener, watch_run
from distconsole.runs.following.follow import fetch_late, hosts_to_ask
from distconsole.runs.store.place import JournalPlace
from distconsole.runs.store.planned import reducer_of, stored_plan
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore, meant
from distconsole.runs.summary import stored_events
from distconsole.runs.timeline import RunTimeline
from distconsole.session import Session


def attach(
    request: Attach, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Yield the run's plan and its events; ends with the run, or when the operator leaves.

    ``last`` of hosts that are named is the newest of theirs. Raises RunNotFoundError if neither this
    machine nor a host knows the run; UsageError if the run is on other hosts than those named.
    """
    run = request.run
    if run == "last" and request.where.names_hosts:
        with sessions(request.where) as session:
            runs, silent = ask_runs(session)
        known = [each.run for each in runs if each.state != "unreadable"]
        if silent and not known:
            raise silent[0].error
        if not known:
            raise RunNotFoundError(
                "these hosts know no run", "distconsole runs lists those known here"
            )
        run = known[0]
        yield Narration(text=f"the newest run of these hosts: {run}")
    yield from follow_run(run, request.where, sessions, store, control)


def follow_run(
    run: str,
    where: Where,
    sessions: SessionSource,
    store: RunStore,
    control: Control | None = None,
    timeline: RunTimeline | None = None,
) -> Generator[Event, None, None]:
    """Yield a run's events to its end or until ``control`` leaves; without ``control`` up to this moment.

    ``timeline``, to which the caller applies each event at once, need not judge who is slow in a stored run.

    The hosts of a run without an end are asked for news. If they do not answer, the
    stored part has to do up to this moment, with a note. Raises as ``attach``.
    """
    record = find_record(run, where, sessions, store)
    if record is not None and record.end:
        yield from ask_late(record, where, sessions, store)
    else:
        try:
            with open_run(record, run, where, sessions, store) as (session, known, hosts):
                until: dict[HostName, JournalPlace] | None = None
                if control is None:
                    until, lacking = journal_places(session, known, hosts)
                    yield from lacking
                if until != {}:
                    plan = stored_plan(known)
                    if plan is not None:
                        yield plan
                    yield from watch_run(known, session, control or Control(), store, until)
                    return
        except ConsoleError as error:
            if record is None or control is not None:
                raise
            yield _say_lacking(error.message)
    if record is not None:
        with store.open(record.run) as run_file:
            reducer = reducer_of(record)
            if timeline is not None:
                timeline.share(reducer.stragglers)
            yield from stored_events(run_file, reducer=reducer)


def fold(events: Iterable[Event], take: Callable[[RunEvents], object]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, RunEvent):
            take(event)
        else:
            yield event


def journal_places(
    session: Session, record: RunRecord, hosts: Sequence[HostName]
) -> tuple[dict[HostName, JournalPlace], list[Narration]]:
    """Return the position of the run's journal on each of its ``hosts`` that answers, and notes on the others."""
    runs, silent = ask_runs(session, hosts)
    places = next((each.places for each in runs if each.run == record.run), {})
    lacking = [_say_lacking(each.text) for each in silent]
    away = {each.host for each in silent}
    forgotten = ", ".join(host for host in hosts if host not in places and host not in away)
    if forgotten:
        lacking.append(_say_lacking(f"{forgotten}: nothing is known of {record.run} any more"))
    return {host: place for host, place in places.items() if host in hosts}, lacking


def _say_lacking(why: str) -> Narration:
    return warn(f"{why}; only what is stored here is shown")


def ask_late(
    record: RunRecord, where: Where, sessions: SessionSource, store: RunStore
) -> Iterator[Narration]:
    """Fetch the journals of hosts that were away when a run ended; report those that are still away."""
    hosts = hosts_to_ask(record, store)
    if not hosts:
        return
    why: dict[HostName, str] = {}
    try:
        with sessions(where_of(record, where)) as session:
            hosts_of_run(session, hosts)
            why = fetch_late(store, record, hosts, journal_opener(session, record.run))
    except ConsoleError as error:
        why = dict.fromkeys(hosts, error.message)
    of_reason: dict[str, list[HostName]] = {}
    for host, reason in why.items():
        of_reason.setdefault(reason.removeprefix(f"{host}: "), []).append(host)
    for reason, silent in of_reason.items():
        has = "has" if len(silent) == 1 else "have"
        text = f"{join_some(silent)} {has} not told the end of this run: {reason}"
        yield warn(f"{text}; what is stored here is shown")


def find_record(
    wanted: str, where: Where, sessions: SessionSource, store: RunStore, *, unended: bool = False
) -> RunRecord | None:
    """Return a run's record, None if only hosts know it; raises RunNotFoundError without any."""
    try:
        return store.record(store.resolve(wanted, unended=unended))
    except RunNotFoundError as error:
        if where == Where() and not at_hand(sessions):
            near = meant(wanted, store.words())
            hint = f"{near or error.hint + '; '}--hosts … finds a run that was started elsewhere"
            raise RunNotFoundError(error.message, hint) from None
        return None


@contextmanager
def open_run(
    record: RunRecord | None, wanted: str, where: Where, sessions: SessionSource, store: RunStore
) -> Iterator[tuple[Session, RunRecord, list[HostName]]]:
    """Give a session on the hosts of a run, its record (``record``, else one by their answers), and the hosts.

    Raises RunNotFoundError if none of them knows it; UsageError if it is on other hosts than those named.
    """
    with sessions(where_of(record, where)) as session:
        if record is None:
            runs, _ = ask_runs(session)
            known = find_known(runs, wanted, store.words())
            hosts, kept = tuple(known.hosts), lasting(where, session.cluster)
            name, began = known.known.name, known.known.created
            record = RunRecord(known.run, name, began, hosts, where=kept)
        yield session, record, hosts_of_run(session, record.hosts)


def where_of(record: RunRecord | None, asked: Where) -> Where:
    """Return the hosts to ask: those named, else those of the run; raises RunNotFoundError if these are gone."""
    return asked if record is None else hosts_of(record.run, record.where, asked)
