"""``run`` and ``rerun``: place a job, start it, follow it to its end; and what that would be, for the launch form."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from distconsole.checks.engine.baseline import Baselines
from distconsole.config.paths import expand_home
from distconsole.config.spelling import nearest_script
from distconsole.errors import ConsoleError, PlanError, RunNotFoundError, UsageError
from distconsole.launch import planner
from distconsole.launch.execute import start
from distconsole.launch.own_modules import seek_own_modules
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import Plan
from distconsole.launch.show import dry_run_text, emit
from distconsole.launch.sync.send import bring_code
from distconsole.model.decoding import threadsafe
from distconsole.model.events import (
    Event,
    LaunchersJudged,
    Narration,
    ScriptSought,
    TextMade,
    warn,
)
from distconsole.model.names import HostName, RunId
from distconsole.model.outcome import Ok
from distconsole.model.requests import ExportFormat, Foresee, LauncherName, Rerun, Run
from distconsole.model.run_events import EndState, PlanMade, RunEnded
from distconsole.operations.control import Control, end_before_start
from distconsole.operations.launch.submitted import SubmittedRun, show_submission, submit
from distconsole.operations.notifying import node_notice
from distconsole.operations.sessions import (
    SessionSource,
    hosts_of,
    lasting,
    narrate,
    say_alone,
    say_late,
)
from distconsole.operations.watching import watch_run
from distconsole.runs.store.earlier import find_earlier
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, on_every, probe

COMPARED_FACTS = re.compile(
    r"torch\.(version|cuda|hip|nccl)|horovod\.version|mpi\.(family|version)|python\.version"
    r"|os\.(kernel|distribution|libc)|gpu\.(driver|cuda_driver|count)|gpu\.gpus\.\S*\.name"
)
"""Facts of a host's last check that may make a run differ."""

SCRIPT_SECONDS = 3.0
"""Seconds after which a filesystem that does not answer leaves the script's presence open."""


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
    if request.slurm is None:
        events = _run_on_hosts(request, sessions, control, store, exclude, again)
    elif request.emit is not None:
        events = _emit_file(planner.read_launch(request), None)
    elif request.dry_run:
        events = show_submission(request, exclude)
    else:
        planner.read_launch(request)  # refuses before a job waits in the queue
        events = _run_in_job(request, sessions, control, store, exclude, again)
    if request.export and not (request.dry_run or request.detach or request.emit):
        # An export takes its time to import, and most runs have none.
        from distconsole.operations.stored.export import export_along  # noqa: PLC0415

        events = export_along(events, map(ExportFormat, request.export.split(",")))
    yield from events


def _run_in_job(
    request: Run,
    sessions: SessionSource,
    control: Control,
    store: RunStore,
    exclude: Sequence[str],
    again: RunId | None,
) -> Iterator[Event]:
    """Submit a Slurm job, run on its nodes, and once more whenever Slurm requeues it."""
    with submit(request, sessions, control, exclude, again) as submitted:
        yield Narration(text=f"submitted Slurm job {submitted.job} on {submitted.link.host.name}")
        while (placed := (yield from submitted.next_start())) is not None:
            yield from submitted.watch(
                _run_on_hosts(placed, sessions, control, store, (), submitted.code, submitted)
            )
        if kept := submitted.give_back():
            yield warn(kept)


def _run_on_hosts(
    request: Run,
    sessions: SessionSource,
    control: Control,
    store: RunStore,
    exclude: Sequence[str],
    again: RunId | None,
    submitted: SubmittedRun | None = None,
) -> Iterator[Event]:
    """Run on hosts that are there; ``submitted`` is the job that was submitted for them."""
    launch = planner.prepare_launch(request, again)
    with sessions(request.where) as session:
        allocation = submitted.allocation if submitted is not None else None
        reached = yield from planner.reach_hosts(launch, session, exclude, allocation)
        plan = planner.plan_to_start(planner.ask_engines(reached, session))
        if request.emit is not None:
            yield from narrate(plan.notes)
            yield from _emit_file(launch, plan)
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
            yield from _show_dry_run(launch, plan)
            return
        try:
            asked = submitted.request if submitted is not None else request
            record = _make_record(request, asked, planned, session)
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
            over = submitted.is_over if submitted is not None else None
            yield from watch_run(record, session, control, store, over=over)
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
    """Bring the code, keep the record and start the run; return False if it was stopped before."""
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


def _show_dry_run(launch: PreparedLaunch, plan: Plan) -> Iterator[Event]:
    """Yield what ``--dry-run`` prints of a plan."""
    if launch.project is not None:
        yield Narration(text=f"--sync would bring {launch.project.description}")
    if not launch.request.json:
        yield TextMade(text=dry_run_text(plan, launch.request.command))


def _emit_file(launch: PreparedLaunch, plan: Plan | None) -> Iterator[Event]:
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


def rerun(
    request: Rerun, sessions: SessionSource, control: Control, store: RunStore
) -> Iterator[Event]:
    """Launch a past run again: the same script, arguments, environment and hosts.

    ``--sync`` brings the code of that run. Raises RunNotFoundError if there is no
    such run, or it was not started from here; ConsoleError as ``run``.
    """
    record = store.record(store.resolve(request.run))
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
        launch = yield from planner.reach_hosts(launch, session)
        if control.asked is not None:
            return
        refused: PlanError | None = None
        try:
            plan = planner.plan_to_start(planner.ask_engines(launch, session))
            yield plan.event(time.time())
            yield from narrate(plan.notes)
            yield from _show_dry_run(launch, plan)
            yield from _seek_script(plan.needs, plan.hosts, session)
        except PlanError as error:
            refused = error
        if request.launchers and control.asked is None:
            yield from _judge_launchers(launch, session)
        if refused is not None:
            raise refused


def _seek_script(
    scripts: Sequence[str], hosts: Sequence[HostName], session: Session
) -> Iterator[ScriptSought]:
    for script in scripts:
        ask = partial(probe, group="script.there", seconds=SCRIPT_SECONDS, args={"path": script})
        missing, names = [], set[str]()
        for outcome in on_every(session, hosts, ask):
            facts = outcome.value if isinstance(outcome, Ok) else {}
            if facts.get("there") is False:
                missing.append(outcome.host)
                told = facts.get("names") or ()
                names.update(each for each in told if isinstance(each, str))
        folder, slash, name = script.rpartition("/")
        near = nearest_script(name, names)
        near = f"{folder}{slash}{near}" if near else ""
        yield ScriptSought(script=script, missing=tuple(missing), near=near)


def _judge_launchers(launch: PreparedLaunch, session: Session) -> Iterator[LaunchersJudged]:
    """Plan with every launcher, and report those that refuse, but for a reason that most of them give."""
    try:
        launch = planner.ask_for(("horovod", "mpi"), launch, session)
    except ConsoleError:
        return  # a host that cannot be asked is no reason
    refused: dict[str, str] = {}
    names = [name for name in LauncherName if name is not LauncherName.AUTO]
    for name in names:
        try:
            planner.plan_to_start(replace(launch, request=replace(launch.request, launcher=name)))
        except PlanError as error:
            refused[name.value] = error.message
    said = Counter(refused.values())
    own = {name: why for name, why in refused.items() if said[why] * 2 <= len(names)}
    yield LaunchersJudged(refused=own)
