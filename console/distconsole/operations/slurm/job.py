"""A Slurm job for a run: submitted, waited for, given back. What runs in it is launched elsewhere."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from distconsole.config.hostfile import read_list
from distconsole.config.load import load_config
from distconsole.config.ranges import RangeError
from distconsole.errors import ConsoleError, PlanError, UnavailableError, UsageError
from distconsole.launch.addresses import NodeFacts
from distconsole.launch.job import new_run_id
from distconsole.launch.slurm.srun import (
    ENDING_STATE,
    RUNNING_STATE,
    WAITING_STATES,
    Allocation,
    JobState,
    fit_hosts,
    read_job,
)
from distconsole.launch.slurm.submit import UNUSED_SECONDS, read_options, submit_command, words_of
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Event, Narration
from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run, Where
from distconsole.model.run_events import EndState, RunEnded
from distconsole.operations.control import Command, Control, Wish
from distconsole.operations.sessions import SessionSource
from distconsole.operations.slurm.starts import Held, Starts, Then
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

ASK_SECONDS = 45.0
ENDING_SECONDS, ENDING_PAUSE_SECONDS = 120.0, 0.3
"""How long a job whose run has failed may take until Slurm says whether it starts it again."""
TICK_SECONDS = 0.05
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PAUSE_GROWTH = 0.1, 10.0, 1.2
"""A queue is asked ever more rarely: slurmctld is everybody's."""


def run_submitted(
    request: Run,
    sessions: SessionSource,
    control: Control,
    exclude: Sequence[str],
    then: Then,
) -> Iterator[Event]:
    """Submit a job with the options of ``--slurm``, wait until it runs, and do ``then`` on its nodes.

    Whatever happens before the run has started gives the job back.

    Raises:
        ConsoleError: if it cannot be submitted, does not come to run, or as ``then``.
    """
    refuse_before_submitting(request)
    named = named_hosts(request.where)
    run = new_run_id(request.script, request.name)
    submit = submit_command(request.slurm or "", run, list(named), exclude)
    with _login(request, sessions, list(named)) as link:
        held = Held(_submit(link, submit))
        try:
            yield Narration(text=f"submitted Slurm job {held.job} on {link.host.name}")
            is_over = partial(_is_over, link, held.job)
            starts = Starts(request, run, held, sessions, control, then, is_over)
            yield from _run_in(starts, link, named)
        except ConsoleError as error:
            error.hint = "\n".join(filter(None, (error.hint, _give_back(link, held))))
            raise
        except BaseException:
            _give_back(link, held)
            raise
        if kept := _give_back(link, held):
            yield Narration(text=kept, severity=Severity.WARN)


def _run_in(
    starts: Starts, link: NodeLink, named: Mapping[str, int | None]
) -> Generator[Event, None, None]:
    """Wait for the job's nodes and run on them, as often as Slurm starts it."""
    held, control = starts.held, starts.control
    while True:
        state = yield from _wait_for_nodes(link, held.job, control)
        if state is None:
            assert control.asked is not None
            yield Narration(text=f"cancelling Slurm job {held.job}")
            yield _never_started(starts.run, control.asked)
            return
        yield Narration(text=f"Slurm job {held.job} has {', '.join(state.nodes)}")
        ended = yield from starts.start(state, named)
        if ended is None or ended.state is not EndState.FAILED or not starts.may_be_requeued:
            return
        if not _was_requeued(link, held.job, state.restarts, control):
            held.used = held.used and control.asked is None
            return
        yield from starts.prepare_next(ended, state)


def _is_over(link: NodeLink, job: str, restarts: int) -> bool:
    """Whether a job that was restarted so often has ended since, or will be started once more."""
    try:
        state = _state(link, job)
    except ConsoleError:
        return False
    ended = state.state not in (RUNNING_STATE, ENDING_STATE)
    return state.state != ENDING_STATE and (ended or state.restarts > restarts)


def _was_requeued(link: NodeLink, job: str, restarts: int, control: Control) -> bool:
    """Wait until the job has ended, or will be started again; return which."""
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline and control.asked is None:
        try:
            state = _state(link, job)
        except ConsoleError:
            return False
        again = state.state in WAITING_STATES or state.restarts > restarts
        if again and state.state != ENDING_STATE:
            return True
        if state.state not in (RUNNING_STATE, ENDING_STATE):
            return False
        _pause(control, ENDING_PAUSE_SECONDS)
    return False


def fit_to_job(
    session: Session,
    allocation: Allocation,
    cluster: Cluster,
    facts: Mapping[HostName, NodeFacts],
    request: Run,
) -> tuple[Cluster, dict[HostName, NodeFacts]]:
    """Return hosts and facts as the job has them; its first node says so unless it is known.

    Raises:
        UnavailableError: if Slurm does not answer there.
        PlanError: if what it says cannot be planned with.
    """
    state = allocation.state
    if state is None:
        state = _state(session.link(cluster.hosts[0].name), allocation.job)
    return fit_hosts(cluster, facts, state, request)


def run_id_for(request: Run, allocation: Allocation | None) -> RunId:
    """Return the run's id: that of the job that was submitted for it, else a new one."""
    if allocation is not None and allocation.run:
        return RunId(allocation.run)
    return new_run_id(request.script, request.name)


def refuse_before_submitting(request: Run) -> None:
    """Refuse what a submitted job cannot be asked for.

    Raises:
        UsageError: naming the options.
    """
    if request.where.hostfile is not None or request.where.cluster is not None:
        raise UsageError(
            "--slurm chooses its nodes itself, or takes those of --hosts",
            "leave --hostfile and --cluster out",
        )
    if request.detach and read_options(words_of(request.slurm or "")).requeue:
        raise UsageError(
            "--slurm with --requeue needs the console when Slurm starts the job again, and --detach leaves",
            "leave one of them out; --emit sbatch writes a job that needs no console",
        )


def named_hosts(where: Where) -> dict[str, int | None]:
    """Return the hosts of ``--hosts`` and their slots, in order.

    Raises:
        UsageError: if the list means nothing.
    """
    if where.hosts is None:
        return {}
    try:
        return {host.name: host.slots for host in read_list(where.hosts)}
    except RangeError as error:
        raise UsageError(f"--hosts: {error}") from None


@contextmanager
def _login(request: Run, sessions: SessionSource, named: Sequence[str]) -> Iterator[NodeLink]:
    """Give a link to a host that has Slurm's commands.

    Raises:
        UsageError: if none is known.
        NodeError: if it cannot be reached.
    """
    where = request.submits_from
    if where is None and shutil.which("sbatch") is not None:
        here = Host(HostName(socket.gethostname()), local=True)
        with Session(load_config(), Cluster((here,))) as session:
            yield session.link(here.name)
        return
    if where is None and named:
        where = replace(request.where, hosts=named[0], hostfile=None, cluster=None)
    if where is None:
        raise UsageError(
            "--slurm: there is no sbatch on this machine",
            "--slurm-login HOST names a host that has Slurm's commands",
        )
    with sessions(where) as session:
        yield session.link(session.cluster.hosts[0].name)


def _submit(link: NodeLink, argv: list[str]) -> str:
    job = str(_ask(link, do="submit", argv=argv).get("job"))
    if not job.isdigit():
        raise UnavailableError(f"{link.host.name} submitted a job and did not say which", "squeue")
    return job


def _wait_for_nodes(
    link: NodeLink, job: str, control: Control
) -> Generator[Event, None, JobState | None]:
    """Return the job's state once it runs, or None when the operator stopped waiting.

    Raises:
        UnavailableError: if it ended before.
    """
    said, pause = "", FIRST_PAUSE_SECONDS
    while control.asked is None:
        state = _state(link, job)
        if state.state == RUNNING_STATE and state.nodes:
            return state
        if state.state not in (*WAITING_STATES, RUNNING_STATE):
            raise UnavailableError(
                f"Slurm job {job} ended before it started anything: {state.state}",
                f"on {link.host.name}: scontrol show job {job}",
            )
        told = f"Slurm job {job} is {state.state}" + (f" ({state.reason})" if state.reason else "")
        if told != said and (said or state.reason not in ("", "None")):
            yield Narration(text=f"{told}; Ctrl-C cancels it")
        said = told
        _pause(control, pause)
        pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE_SECONDS)
    return None


def _pause(control: Control, seconds: float) -> None:
    until = time.monotonic() + seconds
    while control.asked is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(TICK_SECONDS, left))


def _give_back(link: NodeLink, held: Held) -> str:
    """Cancel a job in which nothing was started; a run's own end ends it otherwise.

    Returns:
        What is to be said where it could not be cancelled; else nothing.
    """
    if held.used:
        return ""
    try:
        link.connect()  # again, where the connection is why there is nothing to start
        _ask(link, do="cancel", job=held.job)
    except ConsoleError as error:
        return (
            f"Slurm job {held.job} could not be cancelled ({error.message}): it gives its nodes back "
            f"{UNUSED_SECONDS // 60} min after it gets them; at once: scancel {held.job} on {link.host.name}"
        )
    return ""


def _state(link: NodeLink, job: str) -> JobState:
    return read_job(str(_ask(link, do="show", job=job).get("text")))


def _ask(link: NodeLink, **arguments: object) -> Mapping[str, object]:
    try:
        return link.request("slurm", ASK_SECONDS, **arguments)
    except PlanError:
        raise
    except ConsoleError as error:
        raise UnavailableError(f"{link.host.name}: {error.message}", error.hint) from None


def _never_started(run: str, asked: Command) -> RunEnded:
    return RunEnded(
        t=time.time(),
        run=run,
        state=EndState.STOPPED,
        exit_code=asked.reason.exit_code if asked.wish is not Wish.LEAVE else 0,
        seconds=0.0,
    )
