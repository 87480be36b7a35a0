"""Jobs on hosts that nobody prepared: who keeps one (``why --hosts``)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from distconsole.errors import RunNotFoundError, UnreachableError, UsageError
from distconsole.model.events import Diagnosed, Event, Narration
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, count_text, join_some
from distconsole.model.outcome import Failed
from distconsole.model.requests import Chosen, Why
from distconsole.operations.sessions import SessionSource
from distconsole.rpc.fanout import iter_outcomes
from distconsole.rpc.frames import Survey
from distconsole.rpc.wire import decode_as
from distconsole.runs.diagnosis.found import Found, join_surveys, judge_found
from distconsole.session import CONNECT_SECONDS, Session

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
        hosts = [host.name for host in session.cluster.hosts]
        yield Narration(
            text=f"asking {count_text(len(hosts), 'host')} for training that runs there"
        )
        surveys, away = survey_hosts(session, {"seconds": CALL_SECONDS})
    for host, error in away.items():
        yield Narration(text=f"{host}: {error}", severity=Severity.WARN)
    found = join_surveys({str(host): survey for host, survey in surveys.items()})
    at = choose(request, found, surveys, hosts)
    yield Diagnosed(
        t=time.time(),
        run=found[at].part.run or found[at].name,
        live=True,
        diagnosis=judge_found(found[at], {str(host): why for host, why in away.items()}),
        calls={host: tuple(calls) for host, calls in found[at].calls.items()},
        job=at + 1,
        jobs=tuple(job.told(number) for number, job in enumerate(found, 1)),
    )


def survey_hosts(
    session: Session, arguments: dict[str, Any]
) -> tuple[dict[HostName, Survey], dict[HostName, str]]:
    """Return what each host tells, and of the others why not. Raises UnreachableError if none answers."""

    def ask(name: HostName) -> Survey:
        link = session.link(name)
        link.connect()
        return decode_as(link.request("survey", HOST_SECONDS, **arguments), Survey)

    surveys: dict[HostName, Survey] = {}
    away: dict[HostName, str] = {}
    first: Failed | None = None
    for outcome in iter_outcomes(
        session.cluster.hosts,
        lambda host: ask(host.name),
        seconds=CONNECT_SECONDS,
        linked=session.has_link,
    ):
        if isinstance(outcome, Failed):
            first = first or outcome
            away[outcome.host] = outcome.error.message.removeprefix(f"{outcome.host}: ")
        else:
            surveys[outcome.host] = outcome.value
    if first is not None and not surveys:
        raise UnreachableError(f"no host can be asked: {first.error.message}", first.error.hint)
    # In the order of the hosts, whoever answered first.
    return {
        host.name: surveys[host.name] for host in session.cluster.hosts if host.name in surveys
    }, away


def choose(
    request: Chosen, found: Sequence[Found], surveys: dict[HostName, Survey], hosts: Sequence[str]
) -> int:
    """Return the place of the job that is asked for. Raises RunNotFoundError without any, UsageError if it is none of them."""
    user = next((survey.user for survey in surveys.values()), "")
    if not found:
        raise RunNotFoundError(
            f"no training processes of {user} were found on {join_some(hosts)}",
            "ranks are known by RANK, OMPI_COMM_WORLD_RANK, HOROVOD_RANK, SLURM_PROCID, --rank or mp.spawn; "
            "distconsole top shows every process on the GPUs",
        )
    for at, job in enumerate(found):
        pids = {call.pid for call in job.living}
        if request.pid in pids or request.job == at + 1:
            return at
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
    return 0
