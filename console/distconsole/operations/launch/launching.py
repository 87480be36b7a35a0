"""``run`` and ``rerun``: place a job, start it, follow it to its end; and what that would be, for the launch form."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from msgspec import UNSET

from distconsole.checks.engine.baseline import Baselines
from distconsole.config.paths import expand_home
from distconsole.config.spelling import nearest_script
from distconsole.errors import ConsoleError, PlanError, RunNotFoundError, UsageError
from distconsole.launch.choose import choose_launcher
from distconsole.launch.execute import start
from distconsole.launch.plan import LaunchHosts, PreparedLaunch
from distconsole.launch.show import dry_run_text, emit, plan_event
from distconsole.launch.slurm.srun import Allocation
from distconsole.model.decoding import threadsafe
from distconsole.model.events import Event, LaunchersJudged, Narration, ScriptSought, TextMade
from distconsole.model.job import LaunchPlan
from distconsole.model.names import HostName, RunId
from distconsole.model.outcome import Ok
from distconsole.model.requests import ExportFormat, Foresee, LauncherName, Rerun, Run
from distconsole.model.run_events import EndState, PlanMade, RunEnded
from distconsole.operations.control import Control, end_before_start
from distconsole.operations.launch import planner
from distconsole.operations.launch.code_sync import bring_code, seek_own_modules
from distconsole.operations.notifying import node_notice
from distconsole.operations.sessions import (
    SessionSource,
    hosts_of,
    lasting,
    narrate,
    say_alone,
    say_late,
)
from distconsole.operations.slurm.dry_run import show_submission
from distconsole.operations.slurm.submitted import submit_and_run
from distconsole.operations.watching import watch_run
from distconsole.runs.store.earlier import find_earlier
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, on_every, probe

SCRIPT_SECONDS = 3.0
"""Seconds after which a filesystem that does not answer leaves the script's presence open."""

ENGINES = ("horovod", "mpi")

COMPARED_FACTS = re.compile(
    r"torch\.(version|cuda|hip|nccl)|horovod\.version|mpi\.(family|version)|python\.version"
    r"|os\.(kernel|distribution|libc)|gpu\.(driver|cuda_driver|count)|gpu\.gpus\.\S*\.name"
)
"""Facts of a host's last check that may make a run differ."""


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
    hosts are those of a job that is submitted first. Raises ConsoleError if it cannot be placed, or a
    host it needs cannot be reached.
    """
    then = partial(_run_on_hosts, sessions=sessions, control=control, store=store, again=again)
    if request.slurm is None:
        events = then(request, exclude=exclude)
    elif request.emit is not None:
        events = _emit(planner.read_launch(request), None)
    elif request.dry_run:
        events = show_submission(request, exclude)
    else:
        planner.read_launch(request)  # refuses before a job waits in the queue
        events = submit_and_run(request, sessions, control, exclude, then)
    if request.export and not (request.dry_run or request.detach or request.emit):
        # An export takes its time to import, and most runs have none.
        from distconsole.operations.stored.export import export_along  # noqa: PLC0415

        events = export_along(events, map(ExportFormat, request.export.split(",")))
    yield from events


def _run_on_hosts(
    request: Run,
    sessions: SessionSource,
    control: Control,
    store: RunStore,
    exclude: Sequence[str] = (),
    again: RunId | None = None,
    allocation: Allocation | None = None,
) -> Iterator[Event]:
    """As ``run``, on hosts that are there; ``allocation`` is the job that was submitted for them."""
    launch = planner.prepare_launch(request, again)
    with sessions(request.where) as session:
        plan, allocation = yield from planner.plan_on_hosts(launch, session, exclude, allocation)
        if request.emit is not None:
            yield from narrate(plan.notes)
            yield from _emit(launch, plan)
            return
        planned = plan_event(plan, time.time())
        if node_notice(request) is not None:
            planned = msgspec.structs.replace(planned, told_by_node=True)
        yield planned
        alone = (
            say_alone("runs on", sessions, request.where, session.cluster) if again is None else []
        )
        yield from narrate([*alone, *say_late(session, session.cluster), *plan.notes])
        if request.dry_run:
            yield from show_dry_run(launch, plan)
            return
        allocation = allocation or Allocation("")
        asked = allocation.asked or request
        yield from _start_and_watch(
            launch, (plan, planned), asked, session, control, store, allocation.over
        )


def show_dry_run(launch: PreparedLaunch, plan: LaunchPlan) -> Iterator[Event]:
    """Yield what ``--dry-run`` prints of a plan."""
    if launch.project is not None:
        yield Narration(text=f"--sync would bring {launch.project.description}")
    if not launch.request.json:
        yield TextMade(text=dry_run_text(plan, launch.request.command))


def _start_and_watch(
    launch: PreparedLaunch,
    made: tuple[LaunchPlan, PlanMade],
    asked: Run,
    session: Session,
    control: Control,
    store: RunStore,
    over: Callable[[], bool],
) -> Iterator[Event]:
    request, (plan, planned) = launch.request, made
    try:
        if launch.project is not None:
            yield from bring_code(plan, launch.project, session, control)
        if control.asked is not None:
            yield end_before_start(plan.run, control.asked)
            return
        record = _make_record(request, asked, planned, session)
        store.create(record).close()
        try:
            start(plan, session, None if planned.told_by_node is UNSET else node_notice(request))
        except ConsoleError:
            store.remove(plan.run)
            raise
        yield from seek_own_modules(launch, plan, session)
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
    earlier = find_earlier(store, record)
    if earlier is not None:
        record = replace(record, earlier=msgspec.json.encode(earlier))
        store.create(record).close()
    if not request.detach:
        yield from watch_run(record, session, control, store, over=over)
        return
    yield Narration(text=f"it goes on by itself: distconsole attach {plan.run}")
    if not request.json:  # there the plan says it
        yield TextMade(text=plan.run)


def rerun(
    request: Rerun, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Launch a past run again: the same script, arguments, environment and hosts.

    What was brought by ``--sync`` is brought again as it was then. Raises RunNotFoundError if there is no
    such run, or it was not started from here; ConsoleError as ``run``.
    """
    with store.open(store.resolve(request.run)) as run_file:
        record = run_file.record()
    if not record.request:
        raise RunNotFoundError(
            f"{record.run} was not started from here, so how to start it is not known",
            "distconsole show says its script and hosts",
        )
    again = msgspec.json.decode(record.request, type=threadsafe(Run))
    again = replace(
        again,
        where=hosts_of(record.run, again.where, request.where),
        json=request.json,
        detach=request.detach,
        dry_run=False,
        notify=request.notify,
    )
    yield from run(again, sessions, control, store, request.exclude, record.run)


def foresee(request: Foresee, sessions: SessionSource, control: Control) -> Iterator[Event]:
    """Yield the plan, its notes, its text, where the script is missing, and launchers that refuse.

    Raises ConsoleError as ``run`` would, before it starts anything.
    """
    run = replace(request.run, dry_run=True, json=False, emit=None)
    if run.slurm is not None:
        yield from show_submission(run, ())
        return
    launch = planner.prepare_launch(run)
    with sessions(run.where) as session:
        hosts = yield from planner.reach_hosts(launch, session)
        if control.asked is not None:
            return
        refused: PlanError | None = None
        try:
            yield from _plan(launch, session, hosts)
        except PlanError as error:
            refused = error
        if request.launchers and control.asked is None:
            yield from _judge_launchers(launch, session, hosts)
        if refused is not None:
            raise refused


def _plan(launch: PreparedLaunch, session: Session, hosts: LaunchHosts) -> Iterator[Event]:
    plan = planner.plan_to_start(launch, planner.ask_engines(launch, hosts, session))
    yield plan_event(plan, time.time())
    yield from narrate(plan.notes)
    yield from show_dry_run(launch, plan)
    yield from _seek_script(plan, session)


def _seek_script(plan: LaunchPlan, session: Session) -> Iterator[ScriptSought]:
    for script in plan.needs:
        ask = partial(probe, group="script.there", seconds=SCRIPT_SECONDS, args={"path": script})
        missing, names = [], set[str]()
        for outcome in on_every(session, [node.host for node in plan.nodes], ask):
            facts = outcome.value if isinstance(outcome, Ok) else {}
            if facts.get("there") is False:
                missing.append(outcome.host)
                told = facts.get("names") or ()
                names.update(each for each in told if isinstance(each, str))
        folder, slash, name = script.rpartition("/")
        near = nearest_script(name, names)
        near = f"{folder}{slash}{near}" if near else ""
        yield ScriptSought(script=script, missing=tuple(missing), near=near)


def _judge_launchers(
    launch: PreparedLaunch, session: Session, hosts: LaunchHosts
) -> Iterator[LaunchersJudged]:
    """Plan with every launcher, and say which refuse and why; what most of them say is no matter of theirs."""
    try:
        hosts = planner.ask_for(ENGINES, hosts, session)
    except ConsoleError:
        return  # what a host does not say is no reason
    refused: dict[str, str] = {}
    names = [name for name in LauncherName if name is not LauncherName.AUTO]
    for name in names:
        other = replace(launch.request, launcher=name)
        try:
            choice = choose_launcher(other, launch.traits)
            planner.plan_to_start(replace(launch, request=other, choice=choice), hosts)
        except PlanError as error:
            refused[name.value] = error.message
    said = Counter(refused.values())
    own = {name: why for name, why in refused.items() if said[why] * 2 <= len(names)}
    yield LaunchersJudged(refused=own)


def _emit(launch: PreparedLaunch, plan: LaunchPlan | None) -> Iterator[Event]:
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
