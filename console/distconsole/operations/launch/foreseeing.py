"""What a launch would be, for a person who is still filling it in: the plan, and what is in its way.

It plans as ``run`` does, by the same code, and starts nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from distconsole.config.spelling import nearest
from distconsole.errors import ConsoleError, PlanError
from distconsole.launch.ask_engines import asked, with_engines
from distconsole.launch.everywhere import on_every
from distconsole.launch.show import dry_run_text, plan_event
from distconsole.model.events import Event, LaunchersJudged, Narration, ScriptSought, TextMade
from distconsole.model.job import LaunchPlan
from distconsole.model.outcome import Ok
from distconsole.model.requests import Foresee, LauncherName, Run
from distconsole.operations.control import Control
from distconsole.operations.launch.bringing import sized
from distconsole.operations.launch.placing import (
    Fitted,
    Prepared,
    chosen,
    fitted_to,
    planned,
    prepared,
    script_traits,
)
from distconsole.operations.sessions import SessionSource, narrate
from distconsole.operations.slurm.dry_run import show_submission
from distconsole.session import Session

SCRIPT_SECONDS = 3.0
"""A filesystem that does not say by then whether the script is there leaves it open."""

ENGINES = ("horovod", "mpi")


def foresee(request: Foresee, sessions: SessionSource, control: Control) -> Iterator[Event]:
    """Yield the plan, its notes, its text, where the script is missing, and launchers that refuse.

    Raises:
        ConsoleError: as ``run`` would, before it starts anything.
    """
    run = replace(request.run, dry_run=True, json=False, emit=None)
    if run.slurm is not None:
        yield from show_submission(run, script_traits(run), ())
        return
    ready = prepared(run)
    with sessions(run.where) as session:
        fit = yield from fitted_to(run, ready, session)
        if control.asked is not None:
            return
        try:
            yield from _plan(run, ready, session, fit)
        except PlanError:
            if request.launchers:
                yield from _judged(run, ready, session, fit)
            raise
        if request.launchers and control.asked is None:
            yield from _judged(run, ready, session, fit)


def _plan(run: Run, ready: Prepared, session: Session, fit: Fitted) -> Iterator[Event]:
    facts = with_engines(session, fit.facts, ready.choice, ready.traits, ready.env)
    plan = planned(run, ready, replace(fit, facts=facts))
    yield plan_event(plan, time.time())
    yield from narrate(plan.notes)
    if ready.project is not None:
        yield Narration(text=f"--sync would bring {sized(ready.project)}")
    yield TextMade(text=dry_run_text(plan))
    yield from _sought(plan, session)


def _sought(plan: LaunchPlan, session: Session) -> Iterator[ScriptSought]:
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
                names.update(filter(_is_name, facts.get("names") or ()))
        folder, slash, name = script.rpartition("/")
        near = nearest(name, names - {name})
        yield ScriptSought(
            script=script,
            missing=tuple(missing),
            near=f"{folder}{slash}{near}" if near else "",
        )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable()


def _judged(run: Run, ready: Prepared, session: Session, fit: Fitted) -> Iterator[LaunchersJudged]:
    """Plan with every launcher, and say which refuse and why; what most of them say is no matter of theirs."""
    try:
        fit = replace(fit, facts=asked(session, fit.facts, ENGINES))
    except ConsoleError:
        return  # what a host does not say is no reason
    refused: dict[str, str] = {}
    names = [name for name in LauncherName if name is not LauncherName.AUTO]
    for name in names:
        other = replace(run, launcher=name)
        try:
            planned(other, replace(ready, choice=chosen(other, ready.traits)), fit)
        except PlanError as error:
            refused[name.value] = error.message
    said = Counter(refused.values())
    own = {name: why for name, why in refused.items() if said[why] * 2 <= len(names)}
    yield LaunchersJudged(refused=own)
