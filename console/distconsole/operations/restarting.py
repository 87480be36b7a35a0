"""``--max-restarts``: a job that failed is launched again, and told of its last checkpoint.

The console does it, so a console that is gone restarts nothing; torchrun restarts its own ranks and
is left alone. Every attempt is a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from distconsole.errors import ConsoleError, UsageError
from distconsole.launch.everywhere import on_every
from distconsole.model.events import EndState, Event, Narration, PlanMade, RunEnded
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.outcome import succeeded
from distconsole.model.requests import LauncherName, Run
from distconsole.operations.control import Control
from distconsole.operations.sessions import SessionSource
from distconsole.remote.frames import LastCheckpoint
from distconsole.remote.wire import typed

CHECKPOINT_VARIABLE = "DISTCONSOLE_CHECKPOINT"
RESTART_VARIABLE = "DISTCONSOLE_RESTART"
"""How often the job was restarted, from 1; not set the first time."""

ASK_SECONDS = 10.0

Attempt = Callable[[Run, RunId | None], Iterator[Event]]
"""Launches a request and follows it; with the code of an earlier run where one is given."""


def restarts_of(request: Run) -> int:
    """Return how often the console may restart the job.

    Raises:
        UsageError: if it is not there to do so, or the job is Slurm's.
    """
    if request.launcher is LauncherName.TORCHRUN or request.dry_run or request.emit is not None:
        return 0
    if request.max_restarts and request.detach:
        raise UsageError(
            "--max-restarts needs the console while the job runs, and --detach leaves",
            "leave one of them out, or give --launcher torchrun, which restarts its own ranks",
        )
    if request.max_restarts and request.slurm is not None:
        raise UsageError(
            "--max-restarts starts no job again that was submitted to Slurm",
            "run inside an allocation (salloc), or give --launcher torchrun",
        )
    return request.max_restarts


def with_restarts(
    request: Run, attempt: Attempt, sessions: SessionSource, control: Control
) -> Iterator[Event]:
    """Yield the events of the first attempt and of those after a failure.

    The last ``RunEnded`` is that of the last attempt, which decides the exit code.

    Raises:
        ConsoleError: if the first attempt cannot be launched.
    """
    allowed, code = restarts_of(request), None
    for restart in range(allowed + 1):
        ended: RunEnded | None = None
        hosts: Sequence[str] = ()
        try:
            for event in attempt(request, code):
                if isinstance(event, PlanMade):
                    hosts = [host.host for host in event.hosts]
                elif isinstance(event, RunEnded):
                    ended = event
                yield event
        except ConsoleError as error:
            if not restart:
                raise
            # The job's own failure stays the outcome.
            yield Narration(text=f"not restarted: {error.message}", severity=Severity.FAIL)
            return
        failed = ended is not None and ended.state is EndState.FAILED
        if ended is None or not failed or control.asked is not None or restart == allowed:
            return
        code = code or RunId(ended.run)
        path = last_checkpoint(ended.run, request, hosts, sessions)
        request = _told(request, restart + 1, path)
        path = path or dict(request.env).get(CHECKPOINT_VARIABLE)
        since = f"with the checkpoint {path}" if path else "with no checkpoint that is known"
        yield Narration(
            text=f"restart {restart + 1} of {allowed}, {since}", severity=Severity.WARN
        )


def last_checkpoint(
    run: str, request: Run, hosts: Sequence[str], sessions: SessionSource
) -> str | None:
    """Return the path of the checkpoint that a run wrote last, on the host of its first rank."""
    try:
        with sessions(request.where) as session:
            told = on_every(
                session,
                [HostName(host) for host in hosts],
                lambda link: (
                    typed(link.request("checkpoint", ASK_SECONDS, run=run), LastCheckpoint).path
                ),
                ASK_SECONDS,
            )
    except ConsoleError:
        return None
    return next((outcome.value for outcome in succeeded(told) if outcome.value), None)


def _told(request: Run, restart: int, path: str | None) -> Run:
    """Return ``request`` whose ranks know which restart this is, and where to go on."""
    news = {RESTART_VARIABLE: str(restart), **({CHECKPOINT_VARIABLE: path} if path else {})}
    kept = tuple((name, value) for name, value in request.env if name not in news)
    return replace(request, env=(*kept, *news.items()))
