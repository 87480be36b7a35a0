"""``why``: where every rank is, and who keeps the others; asked of the hosts, or as it was kept with the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from distconsole.errors import ConsoleError, RequestError
from distconsole.model.diagnosis.calls import Call
from distconsole.model.diagnosis.diagnosis import Diagnosis, Hang, Sure
from distconsole.model.events import Diagnosed, Event, Narration, warn
from distconsole.model.names import HostName, RunId, count_text
from distconsole.model.outcome import Failed
from distconsole.model.requests import Why
from distconsole.model.run_events import EndState, LogLine, RunEvents, Window
from distconsole.model.time_text import duration_text, ms_text
from distconsole.operations.attach import find_record, fold, follow_run, open_run
from distconsole.operations.jobs import CALL_SECONDS, why_found
from distconsole.operations.sessions import SessionSource
from distconsole.rpc.link import NodeLink
from distconsole.rpc.roll_calls import read_calls
from distconsole.runs.detectors.conclusions import CONNECTION_LOST
from distconsole.runs.diagnosis.judge import judge
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.health import stepping_seconds
from distconsole.runs.store.planned import reducer_of, stored_plan
from distconsole.runs.store.run_file import KIND_BYTES, PRINTED, RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import decode_entry
from distconsole.runs.timeline import RunTimeline
from distconsole.session import Session, each_outcome

HOST_SECONDS = 10.0
"""Each host's, with the way to it; all are asked at once."""
SAME_CALL_SECONDS = 30.0
"""Calls that lie so far apart are not of one moment."""
TAIL_ENTRIES = 4000
"""The last entries of a run, of all hosts together, that say how fast its ranks used to be."""
LEAST_TAIL = 100
UNEXPLAINED = (Hang.RENDEZVOUS, Hang.ALL_WAIT, Hang.UNDECIDED)


@dataclass
class Lately:
    """The last stored entries of a run: milliseconds a step, and the longest pause between two steps."""

    timeline: RunTimeline = field(default_factory=RunTimeline)
    longest_s: float = 0.0
    _stepped: dict[int, float] = field(default_factory=dict)

    def apply(self, event: RunEvents) -> None:
        if isinstance(event, Window) and event.steps:
            before = self._stepped.get(event.rank, event.t)
            self.longest_s = max(self.longest_s, event.t - before)
            self._stepped[event.rank] = event.t
        if not isinstance(
            event, LogLine
        ):  # of which there may be a million, and nobody asks for them
            self.timeline.apply(event)

    @property
    def usual_ms(self) -> dict[int, float]:
        known = {rank: view.steady_ms for rank, view in self.timeline.ranks.items()}
        return {rank: ms for rank, ms in known.items() if ms is not None}

    def explained(self, found: Diagnosis) -> Diagnosis:
        """Return a diagnosis without a culprit with the reason why the ranks cannot meet, if the run has it."""
        cut = self.timeline.stall_of_start
        if found.kind not in UNEXPLAINED or cut is None or cut.check != CONNECTION_LOST:
            return found
        return structs.replace(
            found, hang=True, summary=f"{found.summary}: {cut.summary}", hint=cut.hint
        )

    def slow_text(self) -> str:
        slow = max(
            self.timeline.stragglers.slow.values(), key=lambda one: one.excess_ms, default=None
        )
        if slow is None:
            return ""
        host = self.timeline.ranks[slow.rank].host
        return f"; rank {slow.rank} on {host} is slow: {ms_text(slow.excess_ms)} a step more than the others"


def why(request: Why, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Ask every host of a run at once where its ranks are, and say who keeps it; of a run that is over, what was kept.

    Raises RunNotFoundError if neither this machine nor a host knows the run; UsageError if the run
    is on other hosts than those named. Hosts without a run: see ``jobs.why_found``.
    """
    if request.looks_for_jobs:
        yield from why_found(request, sessions)
        return
    record = find_record(request.run, request.where, sessions, store)
    if record is None or not record.end:
        opened = open_run(record, request.run, request.where, sessions, store)
        with opened as (session, known, hosts):
            asked = _Asked(known, hosts)
            yield from asked.ask(session)
        if asked.calls or len(asked.away) == len(asked.hosts):
            lately = _lately(store, known) if record is not None else Lately()
            yield asked.diagnosed(lately)
            return
    yield from _kept(request, sessions, store)


class _Asked:
    """Answers of the hosts of a running run about its ranks."""

    def __init__(self, record: RunRecord, hosts: list[HostName]) -> None:
        self.record, self.hosts = record, hosts
        self.calls: dict[HostName, list[Call]] = {}
        self.away: dict[HostName, str] = {}
        self.unable: dict[HostName, str] = {}
        """Host -> why its agent does not tell, though it answers."""

    def ask(self, session: Session) -> Iterator[Narration]:
        """Ask all at once; a host without answer costs its deadline and delays no other."""
        yield Narration(text=f"asking {count_text(len(self.hosts), 'host')} where the ranks are")
        wanted = {"run": str(self.record.run), "seconds": CALL_SECONDS}

        def call(link: NodeLink) -> list[Call]:
            return read_calls(link.request("roll_call", HOST_SECONDS, **wanted))

        for outcome in each_outcome(session, self.hosts, call, HOST_SECONDS):
            if not isinstance(outcome, Failed):
                if outcome.value:
                    self.calls[outcome.host] = outcome.value
                continue
            unable = isinstance(outcome.error, RequestError) and outcome.error.code != ""
            (self.unable if unable else self.away)[outcome.host] = outcome.reason
            yield warn(outcome.text)

    def diagnosed(self, lately: Lately) -> Diagnosed:
        plan = stored_plan(self.record)
        planned = {} if plan is None else {r: each.host for each in plan.hosts for r in each.ranks}
        planned |= {rank: view.host for rank, view in lately.timeline.ranks.items()}
        told = {call.rank: host for host, calls in self.calls.items() for call in calls}
        # Whether the ranks of a host without an answer have started is unknown.
        known = {r: host for r, host in planned.items() if host not in self.unable}
        calls = {call.rank: call for calls in self.calls.values() for call in calls}
        away = {str(host): why for host, why in self.away.items()}
        stepping = stepping_seconds(lately.timeline, time.time())
        roll = Roll(
            self.record.run,
            calls,
            known | told,
            away,
            lately.usual_ms,
            lately.longest_s,
            stepping,
        )
        found = lately.explained(judge(roll))
        if found.kind is Hang.HEALTHY:
            found = structs.replace(found, summary=f"{found.summary}{lately.slow_text()}")
        return Diagnosed(
            t=time.time(),
            run=self.record.run,
            live=True,
            diagnosis=found,
            calls={str(host): tuple(each) for host, each in self.calls.items()},
            exit_code=0 if self.calls else 3,
        )


def _lately(store: RunStore, record: RunRecord) -> Lately:
    """Return the content of the last stored entries; empty if they cannot be read."""
    lately, reducer = Lately(), reducer_of(record)
    each = max(LEAST_TAIL, TAIL_ENTRIES // max(1, len(record.hosts)))
    with contextlib.suppress(ConsoleError, ValueError), store.open(RunId(record.run)) as run_file:
        for stored in run_file.tail(record.hosts, each):
            if PRINTED in stored.body[:KIND_BYTES]:
                continue
            for event in reducer.feed(stored.host, decode_entry(stored.body), stored.t):
                lately.apply(event)
    return lately


def _kept(request: Why, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    lately = Lately()
    yield from fold(follow_run(request.run, request.where, sessions, store), lately.apply)
    timeline = lately.timeline
    newest = max((called.t for called in timeline.calls.values()), default=None)
    if newest is None:
        never = _never(timeline)
        yield Diagnosed(
            t=time.time(), run=timeline.run, live=False, diagnosis=never, ended=_end_t(timeline)
        )
        return
    of_then = {
        rank: called
        for rank, called in timeline.calls.items()
        if newest - called.t <= SAME_CALL_SECONDS
    }
    hosts = {rank: view.host for rank, view in timeline.ranks.items() if view.host}
    calls = {rank: called.call for rank, called in of_then.items()}
    hosts = {rank: host for rank, host in hosts.items() if rank in calls or rank < timeline.world}
    # The longest pause that is known not to be the stall itself.
    before = 0.0 if lately.timeline.stall is not None else lately.longest_s
    stepping = stepping_seconds(timeline, newest)
    roll = Roll(timeline.run, calls, hosts, {}, lately.usual_ms, before, stepping)
    found = judge(roll)
    if timeline.end is not None and timeline.end.state is EndState.SUCCEEDED:
        summary = f"the run succeeded, so nothing hung; its ranks were asked then: {found.summary}"
        found = structs.replace(
            found,
            kind=Hang.HEALTHY,
            sure=Sure.CERTAIN,
            hang=False,
            summary=summary,
            hint="",
            evidence=(),
        )
    by_host: dict[str, list[Call]] = {}
    for called in of_then.values():
        by_host.setdefault(called.host, []).append(called.call)
    yield Diagnosed(
        t=newest,
        run=timeline.run,
        live=False,
        diagnosis=found,
        calls={host: tuple(each) for host, each in by_host.items()},
        ended=_end_t(timeline),
    )


def _end_t(timeline: RunTimeline) -> float | None:
    return None if timeline.end is None else timeline.end.t


def _never(timeline: RunTimeline) -> Diagnosis:
    """Return the report on a run whose ranks were never asked."""
    end = timeline.end
    text = "no rank of this run has stalled while it was watched, so none was asked where it is"
    if end is not None and end.state is EndState.SUCCEEDED:
        text = f"the run succeeded after {duration_text(end.seconds)}, and none of its ranks stalled while it was watched"
        return Diagnosis(
            kind=Hang.HEALTHY, sure=Sure.CERTAIN, hang=False, summary=text, short=text
        )
    if end is not None:
        how = f"; the run {end.state.value}"
        first = end.first_failure
        text += f"{how}: {first.short_blame}" if first else how
    hint = f"distconsole logs {timeline.run} --errors shows what its ranks said"
    return Diagnosis(
        kind=Hang.UNDECIDED, sure=Sure.UNKNOWN, hang=False, summary=text, short=text, hint=hint
    )
