"""``run`` and ``rerun``: place a job, start it, follow it to its end; and what that would be, for the launch form."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from distconsole.config.spelling import nearest_script
from distconsole.errors import ConsoleError, PlanError, RunNotFoundError
from distconsole.launch import planner
from distconsole.launch.place import PreparedLaunch
from distconsole.model.decoding import threadsafe
from distconsole.model.events import Event, LaunchersJudged, ScriptSought
from distconsole.model.names import HostName, RunId
from distconsole.model.outcome import Ok
from distconsole.model.requests import ExportFormat, Foresee, LauncherName, Rerun, Run
from distconsole.operations.control import Control
from distconsole.operations.launch.on_hosts import emit_file, run_on_hosts, show_dry_run
from distconsole.operations.launch.submitted import show_submission, submit_and_run
from distconsole.operations.sessions import SessionSource, hosts_of, narrate
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, on_every, probe

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
        events = run_on_hosts(request, sessions, control, store, exclude, again)
    elif request.emit is not None:
        events = emit_file(planner.read_launch(request), None)
    elif request.dry_run:
        events = show_submission(request, exclude)
    else:
        planner.read_launch(request)  # refuses before a job waits in the queue
        events = submit_and_run(request, sessions, control, store, exclude, again)
    if request.export and not (request.dry_run or request.detach or request.emit):
        # An export takes its time to import, and most runs have none.
        from distconsole.operations.stored.export import export_along  # noqa: PLC0415

        events = export_along(events, map(ExportFormat, request.export.split(",")))
    yield from events


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
        launch = yield from planner.reach_hosts(launch, session)
        if control.asked is not None:
            return
        refused: PlanError | None = None
        try:
            plan = planner.plan_to_start(planner.ask_engines(launch, session))
            yield plan.event(time.time())
            yield from narrate(plan.notes)
            yield from show_dry_run(launch, plan)
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
    """Plan with every launcher, and report those that refuse; a reason of most of them is no matter of theirs."""
    try:
        launch = planner.ask_for(("horovod", "mpi"), launch, session)
    except ConsoleError:
        return  # what a host does not say is no reason
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
