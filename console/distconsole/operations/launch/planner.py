"""From a request to a plan on hosts, for all that plan: ``run``, its previews, ``check SCRIPT``, a check's own job.

In this order: read the script and choose a launcher, reach the hosts, ask for the launcher's engines, plan.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from distconsole.errors import PlanError, UsageError
from distconsole.launch import choose
from distconsole.launch.addresses import NodeFacts
from distconsole.launch.engines import Engines, engines_of
from distconsole.launch.job import HOOK, new_run_id, user_env
from distconsole.launch.plan import LaunchHosts, PreparedLaunch, make_plan
from distconsole.launch.slurm.srun import Allocation, below_slurm, inside
from distconsole.launch.sync.code import COMMIT_VARIABLE
from distconsole.launch.sync.send import Project
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Event
from distconsole.model.job import LaunchPlan
from distconsole.model.names import HostName, RunId, count_text, join_some
from distconsole.model.outcome import failed
from distconsole.model.requests import Run, count_of_hosts
from distconsole.operations.launch import code_sync
from distconsole.operations.sessions import connect_all, warn
from distconsole.operations.slurm.job import fit_to_job
from distconsole.rpc.link import NodeLink
from distconsole.session import Session, on_every, probe, require_all

PROBE_SECONDS = 30.0
"""A Python on a cold network disk takes its time."""

CROWD = 2
"""More slots than this for a processor are probably a mistake."""
SSH_PORT = 22

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def prepare_launch(request: Run, again: RunId | None = None) -> PreparedLaunch:
    """Return what can be known here, and refuse at once what cannot be.

    ``again`` is the run whose code is wanted, None for the code as it is now. Raises ConsoleError for an
    option of ours behind the script, code that cannot be brought, or a launcher that does not fit.
    """
    code_sync.refuse_our_flags(request)
    return read_launch(request, code_sync.collect_project(request, again))


def read_launch(request: Run, project: Project | None = None) -> PreparedLaunch:
    """Return the launch as request and script describe it; raises as ``prepare_launch``."""
    env, traits = user_env(request), code_sync.inspect_script(request, project)
    if os.environ.get(HOOK) == "0":
        env.setdefault(HOOK, "0")  # other variables of this shell do not travel
    if project is not None and project.code.commit:
        env.setdefault(COMMIT_VARIABLE, project.code.commit)
    return PreparedLaunch(request, env, traits, choose.choose_launcher(request, traits), project)


def plan_on_hosts(
    launch: PreparedLaunch,
    session: Session,
    exclude: Sequence[str] = (),
    allocation: Allocation | None = None,
) -> Generator[Event, None, tuple[LaunchPlan, Allocation | None]]:
    """Reach the hosts but those to ``exclude``; return the plan and their Slurm job; raises ConsoleError."""
    hosts = yield from reach_hosts(launch, session, exclude, allocation)
    return plan_to_start(launch, ask_engines(launch, hosts, session)), hosts.allocation


def reach_hosts(
    launch: PreparedLaunch,
    session: Session,
    exclude: Sequence[str] = (),
    allocation: Allocation | None = None,
) -> Generator[Event, None, LaunchHosts]:
    """Connect to a launch's hosts; return those that take part, say which do not; raises as ``plan_on_hosts``."""
    cluster = exclude_hosts(session.cluster, exclude)
    code_sync.refuse_other_file(launch.request)
    if launch.project is None:
        code_sync.refuse_missing_script(launch.request, cluster)
    cluster = yield from connect_hosts(session, cluster, launch.request)
    found = collect_facts(
        launch, session, cluster, allocation or inside(os.environ, session.cluster)
    )
    if found.allocation is None:
        yield from map(warn, note_crowds(found.cluster.hosts, found.facts))
    return found


def note_crowds(hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts]) -> Iterator[str]:
    """Yield which hosts were given far more slots than they have processors and GPUs: a port, perhaps."""
    for host in hosts:
        node, slots = facts[host.name], host.slots or 0
        if slots > max(node.gpus, node.cpus * (1 if slots == SSH_PORT else CROWD)):
            yield (
                f"{host.name}:{slots} asks for {slots} ranks on {count_text(node.cpus, 'processor')}; "
                f"a port stands behind a slash: {host.name}/{slots}"
            )


def connect_hosts(
    session: Session, cluster: Cluster, request: Run
) -> Generator[Event, None, Cluster]:
    """Connect to all hosts that were named, or to as many as ``--nnodes MIN:MAX`` needs.

    Raises PlanError if other numbers of hosts were named and asked for; UnreachableError if a host
    that the job needs cannot be reached, or too few can.
    """
    refuse_other_number(session, cluster, request)
    wanted = count_of_hosts(request.nnodes)
    if wanted is None or not request.may_lose_hosts:
        connect_all(session, cluster)
        return cluster
    fewest, total = wanted[0], len(cluster.hosts)
    outcomes = on_every(session, [host.name for host in cluster.hosts], lambda _link: None)
    lacking = {each.host: each.reason for each in failed(outcomes)}
    if total - len(lacking) < fewest:
        what = f"{len(lacking)} of {total} hosts cannot be reached"
        require_all(outcomes, f"{what}, and --nnodes {request.nnodes} needs {fewest}")
    for name, reason in lacking.items():
        yield warn(f"{name} is left out: {reason}")
    return replace(cluster, hosts=tuple(h for h in cluster.hosts if h.name not in lacking))


def collect_facts(
    launch: PreparedLaunch,
    session: Session,
    cluster: Cluster,
    allocation: Allocation | None = None,
) -> LaunchHosts:
    """Return the hosts of ``cluster`` with what they said when they were reached.

    ``allocation`` is the Slurm job that they are nodes of, which says what of them may be used. Raises
    ConsoleError if two are one machine, or there is no such job.
    """
    links = [session.link(host.name) for host in cluster.hosts]
    refuse_one_machine(links)
    facts = {link.host.name: _facts_of(link, visible_gpus(launch.env)) for link in links}
    pairs = zip(cluster.hosts, links, strict=True)
    pythons = (replace(host, python=link.interpreter(host.python)) for host, link in pairs)
    cluster = replace(cluster, hosts=tuple(pythons))
    below_slurm(launch.choice, allocation)  # refuse at once
    if allocation is not None:
        cluster, facts = fit_to_job(session, allocation, cluster, facts, launch.request)
    placed, notes = place_total(launch.request, cluster.hosts, facts)
    facts = {host.name: facts[host.name] for host in placed}
    return LaunchHosts(replace(cluster, hosts=tuple(placed)), facts, allocation, tuple(notes))


def place_total(
    request: Run, hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts] | None = None
) -> tuple[list[Host], list[str]]:
    """Return the hosts that get some of ``--ranks``, with their slots, and notes; raises PlanError if they have too few."""
    total = request.ranks
    if total is None or not hosts:
        return list(hosts), []
    counts = divide_ranks(total, request, hosts, facts)
    if sum(counts) < total:
        raise PlanError(
            f"{count_text(total, 'rank')} asked for, and the hosts have {count_text(sum(counts), 'slot')}",
            "give them more, HOST:N, or fewer ranks",
        )
    pairs = list(zip(hosts, counts, strict=True))
    without = [host.name for host, count in pairs if not count]
    verb = "gets" if len(without) == 1 else "get"
    notes = [f"{join_some(without)} {verb} none of {count_text(total, 'rank')}"] if without else []
    return [replace(host, slots=count) for host, count in pairs if count], notes


def divide_ranks(
    total: int,
    request: Run,
    hosts: Sequence[Host],
    facts: Mapping[HostName, NodeFacts] | None = None,
) -> list[int]:
    """Return how many of ``total`` ranks each host gets: by slots or ``--nproc``, where all have some, else evenly."""
    known = facts or {}
    gpus = {name: each.gpus for name, each in known.items() if request.nproc == "gpu"}
    each_has = int(request.nproc or 0) if request.nproc != "gpu" else None
    room = [host.slots or gpus.get(host.name) or each_has or None for host in hosts]
    if any(slots is None for slots in room):
        each, more = divmod(total, len(hosts))
        return [each + (index < more) for index in range(len(hosts))]
    counts: list[int] = []
    for slots in room:
        counts.append(min(total - sum(counts), slots or 0))
    return counts


def ask_engines(
    launch: PreparedLaunch, hosts: LaunchHosts, session: Session, seconds: float = PROBE_SECONDS
) -> LaunchHosts:
    """Return ``hosts`` with their engines that the launch needs; raises UnreachableError."""
    while True:
        choice = choose.settle_controller(launch.choice, launch.env, hosts.engines)
        known = next((each.asked for each in hosts.engines.values()), ())
        needed = dict.fromkeys((*known, *choose.list_engines(choice, launch.traits, launch.env)))
        if all(set(needed) <= set(each.asked) for each in hosts.engines.values()):
            return hosts
        hosts = ask_for(tuple(needed), hosts, session, seconds)


def ask_for(
    engines: Sequence[str], hosts: LaunchHosts, session: Session, seconds: float = PROBE_SECONDS
) -> LaunchHosts:
    """Return ``hosts`` with what every one has of these ``engines``; raises as ``ask_engines``."""
    pythons = {host.name: host.python for host in hosts.cluster.hosts}

    def ask(link: NodeLink) -> Engines:
        host = link.host
        args = {
            "engines": list(engines),
            "python": pythons[host.name],
            "setup": host.setup,
            "container": host.container,
        }
        return engines_of(probe(link, "engines", seconds, args), engines)

    found = require_all(
        on_every(session, list(hosts.facts), ask), "the engines cannot be looked at"
    )
    pairs = zip(hosts.facts.items(), found, strict=True)
    return replace(hosts, facts={host: replace(node, engines=its) for (host, node), its in pairs})


def plan_launch(
    launch: PreparedLaunch, hosts: LaunchHosts, project: Project | None = None
) -> LaunchPlan:
    """Return the plan on hosts of which everything that it needs is known.

    ``project`` is the code that lies there; None where it lies as it does here. Raises PlanError if the
    job cannot be placed.
    """
    request, allocation = launch.request, hosts.allocation
    choice = choose.finish_choice(launch.choice, request, launch.env, hosts.engines)
    run = allocation.run if allocation is not None else ""
    return make_plan(
        replace(launch, request=project.request if project else request, choice=choice),
        hosts,
        RunId(run) if run else new_run_id(request.script, request.name),
        project.folder if project else str(Path.cwd()),
    )


def plan_to_start(launch: PreparedLaunch, hosts: LaunchHosts) -> LaunchPlan:
    """Return the plan with the code that its nodes get, or the script that they must have.

    What ``--dry-run`` prints is to be pasted, where the code lies as it does here. Raises as ``plan_launch``.
    """
    request, project = launch.request, launch.project
    if project is not None and request.dry_run:
        return plan_launch(launch, hosts)
    return code_sync.add_code(plan_launch(launch, hosts, project), request, project, hosts.cluster)


def exclude_hosts(cluster: Cluster, exclude: Sequence[str]) -> Cluster:
    """Return ``cluster`` with hosts left out; raises UsageError if one of them is not there."""
    unknown = [name for name in exclude if cluster.host(HostName(name)) is None]
    if unknown:
        names = ", ".join(host.name for host in cluster.hosts)
        raise UsageError(f"--exclude {unknown[0]}: no such host", f"the hosts are: {names}")
    return replace(cluster, hosts=tuple(h for h in cluster.hosts if h.name not in exclude))


def refuse_other_number(session: Session, cluster: Cluster, request: Run) -> None:
    """Raise PlanError for another number of hosts than ``--nnodes`` asks for."""
    wanted = count_of_hosts(request.nnodes)
    if wanted is None:
        return
    if request.may_lose_hosts and request.emit is not None:
        raise PlanError("--emit writes a job of a fixed number of hosts", "leave --nnodes out")
    if request.may_lose_hosts and request.verify_sync:
        raise PlanError(
            "--verify-sync compares ranks at equal steps, and ranks that begin again after a host "
            "is lost do not count alike",
            "leave one of --nnodes MIN:MAX and --verify-sync out",
        )
    # Those that were taken out by --exclude are lost to a job that may lose hosts.
    named = len((session.cluster if request.may_lose_hosts else cluster).hosts)
    most = wanted[1]
    if most != named:
        raise PlanError(
            f"--nnodes {request.nnodes} means {count_text(most, 'host')}, "
            f"and there {'is' if named == 1 else 'are'} {named}",
            f"name {most} with --hosts, or leave --nnodes out",
        )


def refuse_one_machine(links: Sequence[NodeLink]) -> None:
    """Refuse two hosts that are one machine: its agent would get the run twice.

    Hosts with a node folder of their own each, as embedded ones, are none. Raises PlanError, naming both.
    """
    known: dict[object, list[tuple[str, set[str]]]] = {}
    for link in links:
        hello = link.hello
        agent = (hello.boot_id, hello.agent_pid, hello.node_dir, hello.hostname)
        # Containers of one machine can be equal in all that. A machine's own addresses may come and
        # go between two questions; some stay.
        own = {each.address for each in hello.addresses if not each.loopback}
        for other, theirs in known.setdefault(agent, []):
            if other != link.name and (own & theirs or not (own or theirs)):
                raise PlanError(
                    f"{other} and {link.name} are one machine ({hello.hostname})",
                    f"name it once; for more ranks on it: {other}:N",
                )
        known[agent].append((link.name, own))


def visible_gpus(env: Mapping[str, str]) -> int | None:
    """Return the number of GPUs that the user's variables leave to the ranks of a host; None without such a variable."""
    told = [env[name] for name in VISIBLE if name in env]
    counts = [len(list(takewhile(_names_gpu, value.split(",")))) for value in told]
    return min(counts, default=None)


def _names_gpu(word: str) -> bool:
    """Whether CUDA reads on behind ``word``: it stops at the first that is empty or below 0."""
    return bool(word.strip()) and not word.strip().startswith("-")


def _facts_of(link: NodeLink, visible: int | None) -> NodeFacts:
    hello = link.hello
    return NodeFacts(
        python=hello.python,
        cpus=max(1, hello.cpus or 1),
        gpus=hello.gpus if visible is None else min(hello.gpus, visible),
        interfaces=tuple(
            Interface(
                name=each.iface,
                address=each.address,
                prefix=each.prefix if each.prefix is not None else -1,
                up=each.up,
                loopback=each.loopback,
            )
            for each in hello.addresses
        ),
        boot_id=hello.boot_id or "",
        reached_at=link.address,
        uid=hello.uid,
        accelerator=hello.accelerator,
    )
