"""``runs``, ``show`` and ``replay``: what is known of runs. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from distconsole.model.events import Event, Narration, RunListed, RunShown
from distconsole.model.findings import Severity
from distconsole.model.requests import Replay, Runs, Show, Where
from distconsole.monitor.store import RunStore
from distconsole.monitor.summary import listed, stored_events, summary_of
from distconsole.operations.remote_runs import known_runs, summary_of_known
from distconsole.operations.sessions import SessionSource


def runs(request: Runs, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """List runs, newest first: those stored here and, where hosts are named, those that they know.

    Only the hosts know whether a run without an end goes on, so without them it is ``unknown``.
    """
    summaries = {record.run: listed(record) for record in store.runs()}
    if request.where != Where():
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
    elif any(summary.state == "unknown" for summary in summaries.values()):
        yield Narration(text="--hosts … asks the hosts whether runs of state unknown go on")
    for summary in sorted(summaries.values(), key=lambda each: each.started, reverse=True):
        yield RunListed(summary=summary)


def show(request: Show, store: RunStore) -> Iterator[Event]:
    """Summarise one stored run.

    Raises:
        RunNotFoundError: if there is no such run.
    """
    with store.open(store.resolve(request.run)) as run_file:
        yield RunShown(summary=summary_of(run_file))


def replay(request: Replay, store: RunStore) -> Iterator[Event]:
    """Yield a stored run's events with the times at which they happened.

    Raises:
        RunNotFoundError: if there is no such run.
    """
    with store.open(store.resolve(request.run)) as run_file:
        yield from stored_events(run_file)
