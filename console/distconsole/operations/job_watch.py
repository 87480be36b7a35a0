"""``watch``: follows a job that distconsole did not start like a run: its ranks, load and logs, as far as they are seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty

from msgspec import UNSET, structs

from distconsole.model.events import Event, HostStatus, Narration
from distconsole.model.names import HostName, count_text
from distconsole.model.requests import Watch
from distconsole.model.run_events import (
    EndState,
    GpuSample,
    LinkChanged,
    LogLine,
    NodeSample,
    PlanMade,
    PlannedHost,
    RankChanged,
    RankState,
    RunEnded,
    RunEvents,
)
from distconsole.operations.control import Control
from distconsole.operations.jobs import HOST_SECONDS, find_jobs
from distconsole.operations.sessions import SessionSource
from distconsole.operations.top import Ended, LoadWatch, raise_end
from distconsole.rpc.frames import LogPart, Survey
from distconsole.rpc.link import NodeLink
from distconsole.rpc.wire import decode_as
from distconsole.runs.diagnosis.found import Found, join_surveys
from distconsole.session import Session

LOAD_SECONDS = 1.0
SURVEY_SECONDS = 2.0
"""Seconds between two looks at the processes of a host, and at their output."""
GONE_SECONDS = 5.0
"""A job whose ranks are all gone for this long has ended: elastic ones come back sooner."""

Offsets = dict[str, dict[str, int]]
"""Host -> file -> byte from which it is read."""


def watch(request: Watch, sessions: SessionSource, control: Control) -> Iterator[Event]:
    """Yield a job's ranks, load and lines until none of its processes is left, or the operator leaves.

    Raises as ``jobs.why_found``.
    """
    with sessions(request.where) as session:
        jobs = yield from find_jobs(request, session, calls=False, logs={})
        followed = Followed(jobs.chosen)
        for number, other in enumerate(jobs.found, 1):
            if other.key != followed.key:
                ranks = count_text(len(other.living), "rank")
                yield Narration(
                    text=f"also there: {other.name}, {ranks}; --job {number} follows it"
                )
        yield followed.plan()
        for host, survey in jobs.surveys.items():
            yield from followed.take(host, survey)
        after = {host: _offsets(survey) for host, survey in jobs.surveys.items()}
        hosts = [host.name for host in session.cluster.hosts]
        watching = JobWatch(session, hosts, after)
        try:
            while control.asked is None and not followed.over:
                news = watching.next()
                if news is not None:
                    yield from followed.take(*news)
            if followed.over:
                yield Narration(text="its processes are gone; how it ended, its launcher knows")
                yield followed.end()
        finally:
            watching.close()


class JobWatch(LoadWatch):
    """Also yields the present jobs, and their output since."""

    def __init__(self, session: Session, hosts: list[HostName], after: Offsets) -> None:
        self._after = after
        super().__init__(session, hosts, LOAD_SECONDS)

    def _stay(self, host: HostName, link: NodeLink, ended: Ended) -> None:
        while True:
            after = self._after.get(host, {})
            told = link.request("survey", HOST_SECONDS, calls=False, logs=after)
            survey = decode_as(told, Survey)
            self._after[host] = _offsets(survey)
            self._put(host, survey)
            with suppress(Empty):
                return raise_end(ended.get(timeout=SURVEY_SECONDS))


def _offsets(survey: Survey) -> dict[str, int]:
    return {log.path: log.next for log in survey.logs}


class Followed:
    """The job that is followed, as the events of a run."""

    def __init__(self, found: Found) -> None:
        self.key, self._found = found.key, found
        self._run = found.name.replace(" ", "-")
        self._surveys: dict[str, Survey] = {}
        self._ranks: dict[int, tuple[str, int]] = {}
        self._readers: dict[tuple[str, int], str] = {}
        """A file that hosts share is read on one of them, and its lines belong to no rank."""
        self._shared: set[tuple[str, int]] = set()
        self._lost: set[str] = set()
        self.gone_at: float | None = None

    @property
    def over(self) -> bool:
        return self.gone_at is not None and time.monotonic() - self.gone_at > GONE_SECONDS

    def plan(self) -> PlanMade:
        found = self._found
        hosts = [
            PlannedHost(host=host, ranks=tuple(call.rank for call in calls), command="", env={})
            for host, calls in found.calls.items()
        ]
        why = "found on these hosts; distconsole has not started it"
        return PlanMade(
            t=time.time() - found.age_s,
            run=self._run,
            launcher=found.part.launcher,
            why=why,
            world_size=found.world,
            hosts=tuple(hosts),
            script=found.part.script,
            found=True,
        )

    def end(self) -> RunEnded:
        seconds = self._found.age_s
        return RunEnded(
            t=time.time(), run=self._run, state=EndState.STOPPED, exit_code=0, seconds=seconds
        )

    def take(
        self, host: str, news: list[NodeSample | GpuSample] | HostStatus | Survey
    ) -> Iterator[RunEvents]:
        match news:
            case Survey():
                self._surveys[host] = news
                yield from self._compare()
                for log in news.logs:
                    yield from self._lines(host, log)
            case HostStatus() if news.reachable is (host in self._lost):
                self._lost ^= {host}
                why = "" if news.reachable else news.detail or ""
                yield LinkChanged(
                    t=time.time(), run=self._run, host=host, connected=news.reachable, reason=why
                )
            case HostStatus():
                return  # as before
            case samples:
                for sample in samples:
                    yield self._of_job(sample)

    def _compare(self) -> Iterator[RankChanged]:
        jobs = {found.key: found for found in join_surveys(self._surveys)}
        found = jobs.get(self.key)
        now: dict[int, tuple[str, int]] = {}
        if found is not None:
            self._found = found
            now = {
                call.rank: (host, call.pid or 0)
                for host, calls in found.calls.items()
                for call in calls
                if call.alive
            }
        for rank, (host, pid) in sorted(now.items()):
            if self._ranks.get(rank) != (host, pid):
                yield self._rank(rank, host, pid, RankState.RUNNING)
        for rank, (host, pid) in sorted(self._ranks.items()):
            if rank not in now and host in self._surveys:
                yield self._rank(rank, host, pid, RankState.EXITED)
        self._ranks = now
        self.gone_at = None if now else self.gone_at or time.monotonic()

    def _rank(self, rank: int, host: str, pid: int, state: RankState) -> RankChanged:
        local = sorted(each for each, (on, _) in self._ranks.items() if on == host)
        return RankChanged(
            t=time.time(),
            run=self._run,
            rank=rank,
            host=host,
            local_rank=local.index(rank) if rank in local else 0,
            pid=pid or None,
            state=state,
        )

    def _lines(self, host: str, log: LogPart) -> Iterator[LogLine]:
        key = f"{host}|{log.key}" if self._found.part.here else log.key
        if key != self.key:
            return
        file = log.path, log.inode
        if self._readers.setdefault(file, host) != host:
            self._shared.add(file)
            return
        rank = log.ranks[0] if len(log.ranks) == 1 and file not in self._shared else UNSET
        for line in log.output.splitlines():
            yield LogLine(
                t=time.time(), run=self._run, host=host, stream=log.stream, line=line, rank=rank
            )

    def _of_job(self, sample: NodeSample | GpuSample) -> NodeSample | GpuSample:
        if isinstance(sample, NodeSample):
            return structs.replace(sample, run=self._run)
        pids = {pid: rank for rank, (host, pid) in self._ranks.items() if host == sample.host}
        rank, others = sample.rank, []
        for stranger in sample.strangers:
            number = 0
            with suppress(ValueError):
                number = int(stranger.split(" ")[0])
            if number in pids:
                rank = pids[number]
            else:
                others.append(stranger)
        return structs.replace(sample, run=self._run, rank=rank, strangers=tuple(others))
