"""From a request to a plan on hosts that were reached: what ``run`` and its dry run share. It starts nothing."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distconsole.errors import UsageError
from distconsole.launch.addresses import NodeFacts
from distconsole.launch.ask_engines import with_engines
from distconsole.launch.choose import Choice, able_to_lose_hosts, choose_launcher
from distconsole.launch.environment import user_env
from distconsole.launch.facts import facts_of
from distconsole.launch.plan import make_plan
from distconsole.launch.script import ScriptTraits, read_traits
from distconsole.launch.slurm.srun import Allocation, below_slurm, inside
from distconsole.launch.sync.send import script_path
from distconsole.model.cluster import Cluster
from distconsole.model.events import Event
from distconsole.model.job import LaunchPlan
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run
from distconsole.operations.launch.bringing import (
    Project,
    kept_traits,
    project_of,
    with_code,
    with_needs,
)
from distconsole.operations.launch.reaching import reach
from distconsole.operations.launch.refusing import (
    refuse_missing,
    refuse_one_machine,
    refuse_our_flags,
)
from distconsole.operations.slurm.job import fit_to_job, run_id_for
from distconsole.session import Session


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a launch before any host is asked.

    Attributes:
        env: The user's variables.
        project: The code to bring, with ``--sync``.
        traits: What the script says about itself.
        choice: How it is to be started.
    """

    env: dict[str, str]
    project: Project | None
    traits: ScriptTraits
    choice: Choice


@dataclass(frozen=True, slots=True)
class Fitted:
    """The hosts of a launch with what they say of themselves, and the Slurm job they are nodes of."""

    cluster: Cluster
    facts: Mapping[HostName, NodeFacts]
    allocation: Allocation | None


@dataclass(frozen=True, slots=True)
class Placing:
    """A plan, and the Slurm job that its hosts are nodes of."""

    plan: LaunchPlan
    allocation: Allocation | None


def prepared(request: Run, again: RunId | None = None) -> Prepared:
    """Return what can be known here, and refuse at once what cannot be.

    Raises:
        ConsoleError: for an option of ours behind the script, code that cannot be brought, or a
            launcher that does not go with the rest.
    """
    env = user_env(request)
    refuse_our_flags(request)
    project = project_of(request, again)
    traits = kept_traits(request, project) if project is not None else script_traits(request)
    return Prepared(env, project, traits, chosen(request, traits))


def placed(
    request: Run,
    ready: Prepared,
    session: Session,
    exclude: Sequence[str] = (),
    allocation: Allocation | None = None,
) -> Generator[Event, None, Placing]:
    """Reach the hosts but those to ``exclude``, ask them what is needed, and return the plan.

    Raises:
        ConsoleError: if it cannot be placed, or a host it needs cannot be reached.
    """
    fit = yield from fitted_to(request, ready, session, exclude, allocation)
    facts = with_engines(session, fit.facts, ready.choice, ready.traits, ready.env)
    return Placing(planned(request, ready, replace(fit, facts=facts)), fit.allocation)


def fitted_to(
    request: Run,
    ready: Prepared,
    session: Session,
    exclude: Sequence[str] = (),
    allocation: Allocation | None = None,
) -> Generator[Event, None, Fitted]:
    """Reach the hosts of a launch and return them with what they said when they were reached.

    Raises:
        ConsoleError: if one that it needs cannot be reached, or two are one machine.
    """
    cluster = without(session.cluster, exclude)
    if ready.project is None:
        refuse_missing(request, cluster)
    cluster = yield from reach(session, cluster, request)
    links = [session.link(host.name) for host in cluster.hosts]
    refuse_one_machine(links)
    facts: Mapping[HostName, NodeFacts] = {
        link.host.name: facts_of(link.hello, link.address) for link in links
    }
    allocation = allocation or inside(os.environ, session.cluster)
    below_slurm(ready.choice, allocation)  # refuse at once
    if allocation is not None:
        cluster, facts = fit_to_job(session, allocation, cluster, facts, request)
    return Fitted(cluster, facts, allocation)


def planned(request: Run, ready: Prepared, fit: Fitted) -> LaunchPlan:
    """Return the plan on hosts of which everything that it needs is known.

    Raises:
        PlanError: if the job cannot be placed.
    """
    # What --dry-run prints is to be pasted, where the code lies as it does here.
    moved = ready.project if not request.dry_run else None
    plan = make_plan(
        moved.request if moved is not None else request,
        fit.cluster,
        fit.facts,
        run_id_for(request, fit.allocation),
        traits=ready.traits,
        env=ready.env,
        folder=moved.folder if moved is not None else str(Path.cwd()),
        allocation=fit.allocation,
    )
    if moved is not None:
        return with_code(plan, moved, str(script_path(request, Path.cwd()) or request.script))
    return with_needs(plan, request, fit.cluster) if ready.project is None else plan


def chosen(request: Run, traits: ScriptTraits) -> Choice:
    """Return how the script is to be started.

    Raises:
        ConsoleError: as ``choose_launcher`` and ``able_to_lose_hosts``.
    """
    choice = choose_launcher(request.launcher, traits, request.pass_args, request.arguments)
    return able_to_lose_hosts(choice, request.launcher) if request.may_lose_hosts else choice


def script_traits(request: Run) -> ScriptTraits:
    """Return what the script says about itself, as far as it lies on this machine too."""
    folder = Path(request.workdir or ".").expanduser()
    if not request.module:
        return read_traits(folder / request.script)
    path = folder.joinpath(*request.script.split("."))
    found = [path.with_suffix(".py"), path / "__main__.py"]
    return next((read_traits(each) for each in found if each.is_file()), ScriptTraits())


def without(cluster: Cluster, exclude: Sequence[str]) -> Cluster:
    """Return ``cluster`` with hosts left out.

    Raises:
        UsageError: if one of them is not there.
    """
    unknown = [name for name in exclude if cluster.host(HostName(name)) is None]
    if unknown:
        names = ", ".join(host.name for host in cluster.hosts)
        raise UsageError(f"--exclude {unknown[0]}: no such host", f"the hosts are: {names}")
    return replace(cluster, hosts=tuple(h for h in cluster.hosts if h.name not in exclude))
