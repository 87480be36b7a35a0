"""Jobs on hosts that distconsole did not start, for ``why --hosts``."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distconsole.errors import RunNotFoundError, UnreachableError, UsageError
from distconsole.model.events import Diagnosed, Event, Narration, warn
from distconsole.model.names import HostName, count_text, join_some
from distconsole.model.outcome import Failed
from distconsole.model.requests import Chosen, Why
from distconsole.operations.sessions import SessionSource
from distconsole.rpc.frames import Survey
from distconsole.rpc.link import NodeLink
from distconsole.rpc.wire import decode_as
from distconsole.runs.diagnosis.found import Found, join_surveys, judge_found
from distconsole.session import CONNECT_SECONDS, Session, each_outcome

CALL_SECONDS = 1.5
"""Each rank's deadline, on its node."""
HOST_SECONDS = 10.0
"""Each host's, once it is connected."""


def why_found(request: Why, sessions: SessionSource) -> Iterator[Event]:
    """Ask hosts which jobs of this user are there, and say who keeps the largest, or the one that is chosen.

    Raises UnreachableError if no host answers, RunNotFoundError if there is no job, UsageError if none is the
    chosen one.
    """
    with sessions(request.where) as session:
        jobs = yield from find_jobs(request, session, seconds=CALL_SECONDS)
    yield Diagnosed(
        t=time.time(),
        run=jobs.chosen.part.run or jobs.chosen.name,
        live=True,
        diagnosis=judge_found(jobs.chosen, jobs.away),
        calls={host: tuple(calls) for host, calls in jobs.chosen.calls.items()},
        job=jobs.found.index(jobs.chosen) + 1,
        jobs=tuple(job.told(number) for number, job in enumerate(jobs.found, 1)),
    )


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """The jobs of hosts, the requested one, and by host its answer or why there is none."""

    found: Sequence[Found]
    chosen: Found
    surveys: dict[str, Survey]
    away: dict[str, str]


def find_jobs(
    request: Chosen, session: Session, **arguments: Any
) -> Generator[Narration, None, FoundJobs]:
    """Ask all hosts (``survey`` with these arguments) and say which do not answer; raises as ``why_found``."""
    hosts = [host.name for host in session.cluster.hosts]
    yield Narration(text=f"asking {count_text(len(hosts), 'host')} for training that runs there")

    def ask(link: NodeLink) -> Survey:
        return decode_as(link.request("survey", HOST_SECONDS, **arguments), Survey)

    told: dict[HostName, Survey] = {}
    failures: list[Failed] = []
    for outcome in each_outcome(session, hosts, ask, CONNECT_SECONDS):
        if isinstance(outcome, Failed):
            failures.append(outcome)
        else:
            told[outcome.host] = outcome.value
    if failures and not told:
        first = failures[0].error
        raise UnreachableError(f"no host can be asked: {first.message}", first.hint)
    for failure in failures:
        yield warn(failure.text)
    # In the order of the hosts, whoever answered first.
    surveys = {str(host): told[host] for host in hosts if host in told}
    found = join_surveys(surveys)
    chosen = choose(request, found, surveys, hosts)
    away = {str(failure.host): failure.reason for failure in failures}
    return FoundJobs(found, chosen, surveys, away)


def choose(
    request: Chosen, found: Sequence[Found], surveys: dict[str, Survey], hosts: Sequence[str]
) -> Found:
    """Return the job that is asked for. Raises RunNotFoundError without any, UsageError if it is none of them."""
    user = next((survey.user for survey in surveys.values()), "")
    if not found:
        raise RunNotFoundError(
            f"no training processes of {user} were found on {join_some(hosts)}",
            "ranks are known by RANK, OMPI_COMM_WORLD_RANK, HOROVOD_RANK, SLURM_PROCID, --rank or mp.spawn; "
            "distconsole top shows every process on the GPUs",
        )
    for number, job in enumerate(found, 1):
        pids = {call.pid for call in job.living}
        if request.pid in pids or request.job == number:
            return job
    if request.pid is not None:
        raise UsageError(
            f"process {request.pid} is no rank of the jobs found there",
            "why --hosts lists them with their ranks' processes (--json)",
        )
    if request.job is not None:
        raise UsageError(
            f"there is no job {request.job}: {count_text(len(found), 'job')} found",
            "why --hosts lists them",
        )
    return found[0]
