"""A run on hosts that are there: placed, started, followed to its end."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from distconsole.checks.engine.baseline import Baselines
from distconsole.config.paths import expand_home
from distconsole.errors import ConsoleError, UsageError
from distconsole.launch import planner
from distconsole.launch.code_sync import bring_code, seek_own_modules
from distconsole.launch.execute import start
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import Plan
from distconsole.launch.show import dry_run_text, emit
from distconsole.launch.slurm.srun import Allocation
from distconsole.model.events import Event, Narration, TextMade
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run
from distconsole.model.run_events import EndState, PlanMade, RunEnded
from distconsole.operations.control import Control, end_before_start
from distconsole.operations.notifying import node_notice
from distconsole.operations.sessions import SessionSource, lasting, narrate, say_alone, say_late
from distconsole.operations.watching import watch_run
from distconsole.runs.store.earlier import find_earlier
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.session import Session

COMPARED_FACTS = re.compile(
    r"torch\.(version|cuda|hip|nccl)|horovod\.version|mpi\.(family|version)|python\.version"
    r"|os\.(kernel|distribution|libc)|gpu\.(driver|cuda_driver|count)|gpu\.gpus\.\S*\.name"
)
"""Facts of a host's last check that may make a run differ."""


def run_on_hosts(
    request: Run,
    sessions: SessionSource,
    control: Control,
    store: RunStore,
    exclude: Sequence[str] = (),
    again: RunId | None = None,
    allocation: Allocation | None = None,
) -> Iterator[Event]:
    """As ``launching.run``, on hosts that are there; ``allocation`` is the job that was submitted for them."""
    launch = planner.prepare_launch(request, again)
    with sessions(request.where) as session:
        reached = yield from planner.reach_hosts(launch, session, exclude, allocation)
        plan = planner.plan_to_start(planner.ask_engines(reached, session))
        if request.emit is not None:
            yield from narrate(plan.notes)
            yield from emit_file(launch, plan)
            return
        planned = plan.event(time.time())
        if (notice := node_notice(request)) is not None:
            planned = msgspec.structs.replace(planned, told_by_node=True)
        yield planned
        alone = (
            say_alone("runs on", sessions, request.where, session.cluster) if again is None else []
        )
        yield from narrate([*alone, *say_late(session, session.cluster), *plan.notes])
        if request.dry_run:
            yield from show_dry_run(launch, plan)
            return
        allocation = reached.allocation or Allocation("")
        try:
            record = _make_record(request, allocation.asked or request, planned, session)
            started = yield from _start(launch, plan, record, session, control, store, notice)
        except ConsoleError as error:
            yield RunEnded(
                t=time.time(),
                run=plan.run,
                state=EndState.FAILED,
                exit_code=error.exit_code,
                seconds=0.0,
                error=error.message,
                hint=error.hint or UNSET,
            )
            raise
        if not started:
            return
        if (earlier := find_earlier(store, record)) is not None:
            record = replace(record, earlier=msgspec.json.encode(earlier))
            store.create(record).close()
        if not request.detach:
            yield from watch_run(record, session, control, store, over=allocation.over)
            return
        yield Narration(text=f"it goes on by itself: distconsole attach {plan.run}")
        if not request.json:  # there the plan says it
            yield TextMade(text=plan.run)


def _start(
    launch: PreparedLaunch,
    plan: Plan,
    record: RunRecord,
    session: Session,
    control: Control,
    store: RunStore,
    notice: dict[str, Any] | None,
) -> Generator[Event, None, bool]:
    """Bring the code, keep the record and start the run; return whether it was started, or stopped before."""
    if launch.project is not None:
        yield from bring_code(plan, launch.project, session, lambda: bool(control.asked))
    if control.asked is not None:
        yield end_before_start(plan.run, control.asked)
        return False
    store.create(record).close()
    try:
        start(plan, session, notice)
    except ConsoleError:
        store.remove(plan.run)
        raise
    yield from seek_own_modules(launch, plan, session)
    return True


def show_dry_run(launch: PreparedLaunch, plan: Plan) -> Iterator[Event]:
    """Yield what ``--dry-run`` prints of a plan."""
    if launch.project is not None:
        yield Narration(text=f"--sync would bring {launch.project.description}")
    if not launch.request.json:
        yield TextMade(text=dry_run_text(plan, launch.request.command))


def emit_file(launch: PreparedLaunch, plan: Plan | None) -> Iterator[Event]:
    """Yield the file of ``--emit``, or write it where ``--output`` says."""
    request = launch.request
    assert request.emit is not None
    folder = str(Path.cwd() / (request.workdir or ""))
    text = emit(request.emit, launch, folder, plan)
    if request.output is None:
        yield TextMade(text=text)
        return
    path = expand_home(request.output)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--output {path} cannot be written: {error.strerror}",
            "name a file that you may write",
        ) from None
    yield Narration(text=f"wrote {path}")


def _make_record(request: Run, asked: Run, planned: PlanMade, session: Session) -> RunRecord:
    """Return the record of a run; a repetition from another folder means the same."""
    where = lasting(asked.where, session.cluster)
    env_file = str(expand_home(asked.env_file).absolute()) if asked.env_file else None
    workdir = str(Path.cwd() / (asked.workdir or ""))
    portable = replace(asked, where=where, workdir=workdir, env_file=env_file)
    hosts = tuple(HostName(host.host) for host in planned.hosts)
    return RunRecord(
        run=RunId(planned.run),
        name=planned.name,
        started=planned.t,
        hosts=hosts,
        request=msgspec.json.encode(portable),
        plan=msgspec.json.encode(planned),
        where=lasting(request.where, session.cluster),
        facts=_encode_host_facts(session, hosts),
    )


def _encode_host_facts(session: Session, hosts: Iterable[HostName]) -> bytes:
    baselines = Baselines.of(session.cluster)
    facts: dict[str, dict[str, str]] = {}
    for host in hosts:
        known = baselines.read(host)
        told = {
            name: v
            for name, v in (known.marks if known else {}).items()
            if COMPARED_FACTS.fullmatch(name)
        }
        hello = session.link(host).hello
        told |= {"python.version": hello.python_version, "gpu.count": str(hello.gpus)}
        if hello.cpus is not None:
            told["cpus"] = str(hello.cpus)
        facts[host] = told
    return msgspec.json.encode(facts)
