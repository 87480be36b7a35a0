"""What a launch would be, for a person who is still filling it in: planned as ``run`` plans it, and what is in its way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from distconsole.config.spelling import nearest
from distconsole.errors import ConsoleError, PlanError
from distconsole.launch.choose import choose_launcher
from distconsole.launch.everywhere import on_every
from distconsole.launch.plan import LaunchHosts, PreparedLaunch
from distconsole.launch.show import plan_event
from distconsole.model.events import Event, LaunchersJudged, ScriptSought
from distconsole.model.job import LaunchPlan
from distconsole.model.outcome import Ok
from distconsole.model.requests import Foresee, LauncherName
from distconsole.operations.control import Control
from distconsole.operations.launch.launching import show_dry_run
from distconsole.operations.launch.planner import (
    ask_engines,
    ask_for,
    plan_to_start,
    prepare_launch,
    reach_hosts,
)
from distconsole.operations.sessions import SessionSource, narrate
from distconsole.operations.slurm.dry_run import show_submission
from distconsole.session import Session

SCRIPT_SECONDS = 3.0
"""A filesystem that does not say by then whether the script is there leaves it open."""

ENGINES = ("horovod", "mpi")


def foresee(request: Foresee, sessions: SessionSource, control: Control) -> Iterator[Event]:
    """Yield the plan, its notes, its text, where the script is missing, and launchers that refuse.

    Raises ConsoleError as ``run`` would, before it starts anything.
    """
    run = replace(request.run, dry_run=True, json=False, emit=None)
    if run.slurm is not None:
        yield from show_submission(run, ())
        return
    launch = prepare_launch(run)
    with sessions(run.where) as session:
        hosts = yield from reach_hosts(launch, session)
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
    plan = plan_to_start(launch, ask_engines(launch, hosts, session))
    yield plan_event(plan, time.time())
    yield from narrate(plan.notes)
    yield from show_dry_run(launch, plan)
    yield from _seek_script(plan, session)


def _seek_script(plan: LaunchPlan, session: Session) -> Iterator[ScriptSought]:
    """Ask every host at once for the script that it must have."""
    for script in plan.needs:
        outcomes = on_every(
            session,
            [node.host for node in plan.nodes],
            lambda link, script=script: link.request(  # type: ignore[misc]
                "probe",
                2 * SCRIPT_SECONDS,
                group="script.there",
                args={"path": script, "timeout": SCRIPT_SECONDS},
            ).get("facts"),
        )
        missing, names = [], set[str]()
        for outcome in outcomes:
            facts = outcome.value if isinstance(outcome, Ok) else None
            if isinstance(facts, dict) and facts.get("there") is False:
                missing.append(outcome.host)
                told = facts.get("names") or ()
                names.update(each for each in told if isinstance(each, str) and each.isprintable())
        folder, slash, name = script.rpartition("/")
        near = nearest(name, names - {name})
        near = f"{folder}{slash}{near}" if near else ""
        yield ScriptSought(script=script, missing=tuple(missing), near=near)


def _judge_launchers(
    launch: PreparedLaunch, session: Session, hosts: LaunchHosts
) -> Iterator[LaunchersJudged]:
    """Plan with every launcher, and say which refuse and why; what most of them say is no matter of theirs."""
    try:
        hosts = ask_for(ENGINES, hosts, session)
    except ConsoleError:
        return  # what a host does not say is no reason
    refused: dict[str, str] = {}
    names = [name for name in LauncherName if name is not LauncherName.AUTO]
    for name in names:
        other = replace(launch.request, launcher=name)
        try:
            choice = choose_launcher(other, launch.traits)
            plan_to_start(replace(launch, request=other, choice=choice), hosts)
        except PlanError as error:
            refused[name.value] = error.message
    said = Counter(refused.values())
    own = {name: why for name, why in refused.items() if said[why] * 2 <= len(names)}
    yield LaunchersJudged(refused=own)
