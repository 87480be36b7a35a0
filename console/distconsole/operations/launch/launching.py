"""``run`` and ``rerun``: place a job, start it, follow it to its end."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from msgspec import UNSET

from distconsole.checks.engine.baseline import Passports
from distconsole.config.paths import passports_dir
from distconsole.errors import ConsoleError, RunNotFoundError, UsageError
from distconsole.launch.emit import ToEmit, emit
from distconsole.launch.execute import start
from distconsole.launch.show import dry_run_text, plan_event
from distconsole.launch.slurm.srun import Allocation
from distconsole.model.cluster import Cluster
from distconsole.model.decoding import threadsafe
from distconsole.model.events import Event, Narration, TextMade
from distconsole.model.job import LaunchPlan
from distconsole.model.names import RunId
from distconsole.model.requests import Rerun, Run
from distconsole.model.run_events import EndState, PlanMade, RunEnded
from distconsole.operations.control import Control, Wish
from distconsole.operations.launch.bringing import bring_code, describe_code
from distconsole.operations.launch.planner import (
    PreparedLaunch,
    plan_on_hosts,
    prepare_launch,
    read_launch,
)
from distconsole.operations.sessions import SessionSource, lasting, narrate
from distconsole.operations.slurm.dry_run import show_submission
from distconsole.operations.slurm.submitted import run_submitted
from distconsole.operations.watching import watch_run
from distconsole.rpc.link import NodeLink
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.session import Session

TOLD = re.compile(
    r"torch\.(version|cuda|hip|nccl)|horovod\.version|mpi\.(family|version)|python\.version"
    r"|os\.(kernel|distribution|libc)|gpu\.(driver|cuda_driver|count)|gpu\.gpus\.\S*\.name"
)
"""Of what a host looked like at its last check, what may make a run another one."""


def run(
    request: Run,
    sessions: SessionSource,
    control: Control,
    store: RunStore,
    exclude: Sequence[str] = (),
    again: RunId | None = None,
) -> Iterator[Event]:
    """Launch a script and follow it, on all hosts but those to ``exclude``.

    With ``--sync`` it is the code as it is now, or that of the run ``again``; with ``--slurm`` the
    hosts are those of a job that is submitted first.

    Raises:
        ConsoleError: if it cannot be placed, or a host it needs cannot be reached.
    """
    if request.slurm is None:
        yield from _run_on(request, sessions, control, store, exclude, again)
    elif request.emit is not None:
        yield from _emit(read_launch(request), None)
    elif request.dry_run:
        yield from show_submission(request, exclude)
    else:
        then = partial(_run_on, sessions=sessions, control=control, store=store, again=again)
        yield from run_submitted(request, sessions, control, exclude, then)


def _run_on(
    request: Run,
    sessions: SessionSource,
    control: Control,
    store: RunStore,
    exclude: Sequence[str] = (),
    again: RunId | None = None,
    allocation: Allocation | None = None,
) -> Iterator[Event]:
    """As ``run``, on hosts that are there; ``allocation`` is the job that was submitted for them."""
    launch = prepare_launch(request, again)
    project = launch.project
    with sessions(request.where) as session:
        plan, allocation = yield from plan_on_hosts(launch, session, exclude, allocation)
        if request.emit is not None:
            yield from narrate(plan.notes)
            yield from _emit(launch, plan)
            return
        planned = plan_event(plan, time.time())
        yield planned
        yield from narrate(plan.notes)
        if request.dry_run:
            if project is not None:
                yield Narration(text=f"--sync would bring {describe_code(project)}")
            if not request.json:
                yield TextMade(text=dry_run_text(plan))
            return
        try:
            if project is not None:
                yield from bring_code(plan, project, session, control)
            allocation = allocation or Allocation("")
            record = _start_run(request, (plan, planned), session, control, store, allocation)
        except ConsoleError as error:
            yield _end_unstarted(plan, error)
            raise
        if record is None:
            yield _end_stopped(plan, control)
        elif request.detach:
            yield Narration(text=f"it goes on by itself: distconsole attach {plan.run}")
            if not request.json:  # there the plan says it
                yield TextMade(text=plan.run)
        else:
            yield from watch_run(record, session, control, store, over=allocation.over)


def rerun(
    request: Rerun, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Launch a past run again: the same script, arguments, environment and hosts.

    What was brought by ``--sync`` is brought again as it was then.

    Raises:
        RunNotFoundError: if there is no such run, or it was not started from here.
        ConsoleError: as ``run``.
    """
    with store.open(store.resolve(request.run)) as run_file:
        record = run_file.record()
    if not record.request:
        raise RunNotFoundError(
            f"{record.run} was not started from here, so how to start it is not known",
            "distconsole show says its script and hosts",
        )
    again = msgspec.json.decode(record.request, type=threadsafe(Run))
    where = request.where.over(again.where)
    again = replace(
        again,
        where=where,
        json=request.json,
        detach=request.detach,
        dry_run=False,
        notify=request.notify,
    )
    yield from run(again, sessions, control, store, request.exclude, record.run)


def _emit(launch: PreparedLaunch, plan: LaunchPlan | None) -> Iterator[Event]:
    """Yield the file of ``--emit``, or write it where ``--output`` says.

    Raises:
        ConsoleError: if there is no such file for this script, or it cannot be written.
    """
    request = launch.request
    assert request.emit is not None
    folder = str(Path.cwd() / (request.workdir or ""))
    what = ToEmit(request, launch.choice, launch.traits, launch.env, folder, plan)
    text = emit(request.emit, what)
    if request.output is None:
        yield TextMade(text=text)
        return
    path = Path(request.output).expanduser()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {error.strerror}") from None
    yield Narration(text=f"wrote {path}")


def _start_run(
    request: Run,
    made: tuple[LaunchPlan, PlanMade],
    session: Session,
    control: Control,
    store: RunStore,
    allocation: Allocation,
) -> RunRecord | None:
    """Start the plan on its hosts and return what is kept of the run; None if nobody wants it any more.

    Raises:
        ConsoleError: if it cannot be started; then nothing of it is left, here or there.
    """
    plan, planned = made
    if control.asked is not None:
        return None
    record = RunRecord(
        run=plan.run,
        name=plan.name,
        started=planned.t,
        hosts=tuple(node.host for node in plan.nodes),
        request=msgspec.json.encode(
            _portable_request(allocation.asked or request, session.cluster)
        ),
        plan=msgspec.json.encode(planned),
        where=lasting(request.where, session.cluster),
        facts=_encode_host_facts(session.link(node.host) for node in plan.nodes),
    )
    store.create(record).close()
    try:
        start(plan, session)
    except ConsoleError:
        store.remove(plan.run)
        raise
    return record


def _encode_host_facts(links: Iterable[NodeLink]) -> bytes:
    """Return host -> fact -> value as JSON: what the agents say, and what the last check found."""
    passports = Passports(passports_dir())
    facts: dict[str, dict[str, str]] = {}
    for link in links:
        known = passports.read(link.host.name)
        told = {
            name: v for name, v in (known.marks if known else {}).items() if TOLD.fullmatch(name)
        }
        hello = link.hello
        told |= {"python.version": hello.python_version, "gpu.count": str(hello.gpus)}
        if hello.cpus is not None:
            told["cpus"] = str(hello.cpus)
        facts[link.host.name] = told
    return msgspec.json.encode(facts)


def _end_unstarted(plan: LaunchPlan, error: ConsoleError) -> RunEnded:
    """Return the end of a run that was announced and could not be started."""
    return RunEnded(
        t=time.time(),
        run=plan.run,
        state=EndState.FAILED,
        exit_code=error.exit_code,
        seconds=0.0,
        error=error.message,
        hint=error.hint or UNSET,
    )


def _end_stopped(plan: LaunchPlan, control: Control) -> RunEnded:
    asked = control.asked
    assert asked is not None
    return RunEnded(
        t=time.time(),
        run=plan.run,
        state=EndState.STOPPED,
        exit_code=asked.reason.exit_code if asked.wish is not Wish.LEAVE else 0,
        seconds=0.0,
    )


def _portable_request(request: Run, cluster: Cluster) -> Run:
    """Return the request so that it means the same in another folder."""
    env_file = str(Path(request.env_file).expanduser().absolute()) if request.env_file else None
    return replace(
        request,
        where=lasting(request.where, cluster),
        workdir=str(Path.cwd() / (request.workdir or "")),
        env_file=env_file,
    )
