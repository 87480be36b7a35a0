"""From a request to a plan on hosts, for all that plan: ``run``, its previews, ``check SCRIPT``, a check's own job.

In this order: read the script and choose a launcher, reach the hosts, ask for the launcher's engines, plan.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from distconsole.errors import ConfigError, PlanError, UsageError
from distconsole.launch.choose import decide
from distconsole.launch.engines import Engines, engines_of
from distconsole.launch.place import PreparedLaunch, make_plan
from distconsole.launch.plan import HOOK, THREADS, NodeFacts, Plan, new_run_id
from distconsole.launch.script import (
    find_traits,
    refuse_missing_script,
    refuse_other_file,
    refuse_our_flags,
)
from distconsole.launch.slurm.srun import Allocation, ask_state, fit_hosts, inside, note_outside
from distconsole.launch.sync.code import COMMIT_VARIABLE
from distconsole.launch.sync.send import Project, collect_project, script_path
from distconsole.model.addresses import Interface, machine_of
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Narration, warn
from distconsole.model.names import HostName, RunId, count_text, join_some
from distconsole.model.outcome import failed
from distconsole.model.requests import LauncherName, Run, count_of_hosts
from distconsole.rpc.link import NodeLink
from distconsole.session import Session, connect_all, on_every, probe, require_all

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
    refuse_our_flags(request)
    return read_launch(request, collect_project(request, again) if request.sync else None)


def read_launch(request: Run, project: Project | None = None) -> PreparedLaunch:
    """Return the launch as request and script describe it; raises as ``prepare_launch``."""
    env = user_env(request)
    traits = find_traits(request) if project is None else project.find_traits(request)
    if os.environ.get(HOOK) == "0":
        env.setdefault(HOOK, "0")  # other variables of this shell do not travel
    if project is not None and project.code.commit:
        env.setdefault(COMMIT_VARIABLE, project.code.commit)
    decide(request, traits, env)  # refuses
    return PreparedLaunch(request, env, traits, project)


def reach_hosts(
    launch: PreparedLaunch,
    session: Session,
    exclude: Sequence[str] = (),
    allocation: Allocation | None = None,
) -> Generator[Narration, None, PreparedLaunch]:
    """Connect to a launch's hosts but those to ``exclude``; return it with those that take part, say which do not.

    Raises ConsoleError.
    """
    cluster = exclude_hosts(session.cluster, exclude)
    refuse_other_file(launch.request)
    if launch.project is None:
        refuse_missing_script(launch.request, cluster)
    cluster = yield from connect_hosts(session, cluster, launch.request)
    allocation = allocation or inside(os.environ, session.cluster)
    launch = collect_facts(launch, session, cluster, allocation)
    if allocation is None:
        yield from map(warn, note_outside(os.environ, launch.cluster))
        yield from map(warn, note_crowds(launch.cluster.hosts, launch.facts))
    return launch


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
) -> Generator[Narration, None, Cluster]:
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
) -> PreparedLaunch:
    """Return ``launch`` with the hosts of ``cluster``, and their facts from the hand-shake.

    ``allocation`` is the Slurm job that they are nodes of, which says what of them may be used. Raises
    ConsoleError if two are one machine, or there is no such job.
    """
    links = [session.link(host.name) for host in cluster.hosts]
    refuse_one_machine(links)
    facts = {link.host.name: _facts_of(link, launch.env) for link in links}
    if THREADS in os.environ and all(host.local for host in cluster.hosts):
        # torchrun, too, keeps the shell's number.
        launch = replace(launch, env={THREADS: os.environ[THREADS], **launch.env})
    pairs = zip(cluster.hosts, links, strict=True)
    pythons = (replace(host, python=link.interpreter(host.python)) for host, link in pairs)
    cluster = replace(cluster, hosts=tuple(pythons))
    launch = replace(launch, cluster=cluster, facts=facts, allocation=allocation)
    launch.decide()  # refuses at once
    if allocation is not None:
        state = allocation.state or ask_state(links[0], allocation.job)
        cluster, facts = fit_hosts(cluster, facts, state, launch.request)
    placed, notes = place_total(launch.request, cluster.hosts, facts)
    return replace(
        launch,
        cluster=replace(cluster, hosts=tuple(placed)),
        facts={host.name: facts[host.name] for host in placed},
        notes=tuple(notes),
    )


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
    launch: PreparedLaunch, session: Session, seconds: float = PROBE_SECONDS
) -> PreparedLaunch:
    """Return ``launch`` with the engines of its hosts that it needs; raises UnreachableError."""
    while True:
        known = next((each.asked for each in launch.engines.values()), ())
        needed = dict.fromkeys(known)
        launcher = launch.decide().launcher
        if launcher is LauncherName.MPI:
            needed |= dict.fromkeys(("mpi", *["horovod"] * launch.traits.horovod))
        elif launcher is LauncherName.HOROVOD:
            needed |= {"horovod": None}
        if len(needed) == len(known):
            return launch
        launch = ask_for(tuple(needed), launch, session, seconds)


def ask_for(
    engines: Sequence[str],
    launch: PreparedLaunch,
    session: Session,
    seconds: float = PROBE_SECONDS,
) -> PreparedLaunch:
    """Return ``launch`` with what every host has of these ``engines``; raises as ``ask_engines``."""
    hosts = {host.name: host for host in launch.cluster.hosts}

    def ask(link: NodeLink) -> Engines:
        host = hosts[link.host.name]
        where = {"python": host.python, "setup": host.setup, "container": host.container}
        answer = probe(link, "engines", seconds, {"engines": list(engines), **where})
        return engines_of(answer, engines)

    found = require_all(on_every(session, list(hosts), ask), "the engines cannot be looked at")
    pairs = zip(launch.facts.items(), found, strict=True)
    facts = {host: replace(node, engines=its) for (host, node), its in pairs}
    return replace(launch, facts=facts)


def plan_launch(launch: PreparedLaunch, project: Project | None = None) -> Plan:
    """Return the plan on hosts of which everything that it needs is known.

    ``project`` is the code that ``--sync`` brings; None if the hosts have the same paths as this machine.
    Raises PlanError if the job cannot be placed.
    """
    named = launch.allocation.run if launch.allocation is not None else ""
    run = RunId(named) if named else new_run_id(launch.request)
    if project is None:
        return make_plan(launch, run, str(Path.cwd()))
    request = replace(launch.request, script=project.script, workdir=None)
    return make_plan(replace(launch, request=request), run, project.folder)


def plan_to_start(launch: PreparedLaunch) -> Plan:
    """Return the plan with the code that its nodes get, or the script that they must have.

    What ``--dry-run`` prints is to be pasted, where the code lies as it does here. Where a host's ``setup`` may
    fetch the script, only ``--no-sync`` says that it is there already. Raises as ``plan_launch``.
    """
    request, project = launch.request, launch.project
    if project is not None and request.dry_run:
        return plan_launch(launch)
    plan = plan_launch(launch, project)
    if project is not None:
        notes = (*plan.notes, *filter(None, [project.note]))
        shown = str(script_path(request, Path.cwd()) or request.script)
        return replace(plan, script=shown, code=project.code.tree, notes=notes)
    may_come = request.sync is None and any(host.setup for host in launch.cluster.hosts)
    return plan if request.module or may_come else replace(plan, needs=(plan.script,))


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
    known: dict[object, str] = {}
    for link in links:
        hello = link.hello
        # Containers of one machine can be equal in all but the network.
        addresses = (each.address for each in hello.addresses)
        machine = machine_of(hello.boot_id or "", hello.network, addresses)
        agent = (machine, hello.agent_pid, hello.node_dir, hello.hostname)
        other = known.setdefault(agent, link.name)
        if other != link.name:
            raise PlanError(
                f"{other} and {link.name} are one machine ({hello.hostname})",
                f"name it once; for more ranks on it: {other}:N",
            )


def visible_gpus(host: Host, env: Mapping[str, str]) -> int | None:
    """Return how many GPUs ``env``, and on this machine the shell's variables, leave to ranks; None without one of them."""
    given = {**os.environ, **env} if host.local else env
    told = [given[name] for name in VISIBLE if name in given]
    # CUDA stops reading at the first word that is empty or below 0.
    counts = [
        sum(1 for _ in takewhile(lambda word: word.strip()[:1] not in ("", "-"), value.split(",")))
        for value in told
    ]
    return min(counts, default=None)


def _facts_of(link: NodeLink, env: Mapping[str, str]) -> NodeFacts:
    hello, visible = link.hello, visible_gpus(link.host, env)
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
        network=hello.network,
    )


NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
MAX_FILE_BYTES = 1024 * 1024


def user_env(request: Run) -> dict[str, str]:
    """Return the user's variables; ``--env`` wins over the file.

    Raises ConfigError if the file is unreadable or has an invalid line; UsageError for an invalid name.
    """
    env = read_env_file(Path(request.env_file)) if request.env_file else {}
    for name, value in request.env:
        if not NAME.match(name):
            raise UsageError(f"--env {name}=… is not a variable's name", "letters, digits and _")
        env[name] = value
    return env


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines.

    Blank lines, ``#`` lines and a leading ``export`` are allowed; a value in quotes is unquoted as in a
    shell, without expansion. Raises ConfigError, naming the file and the line.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_FILE_BYTES} bytes", "is it the right file?"
            )
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"--env-file {path} cannot be read: {error.strerror}",
            "give the path of a file of NAME=value lines",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--env-file {path} is no text in UTF-8, at byte {error.start}",
            "is it the right file?",
        ) from None
    env: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.removeprefix("export ").partition("=")
        if not equals or not NAME.match(name.strip()):
            raise ConfigError(f"{path}:{number}: not NAME=value", "one variable a line")
        env[name.strip()] = _unquote(value.strip(), path, number)
    return env


def _unquote(value: str, path: Path, number: int) -> str:
    if value[:1] not in ("'", '"'):
        return value
    try:
        words = shlex.split(value, comments=True)
    except ValueError as error:
        raise ConfigError(f"{path}:{number}: {error}", "close the quotes") from None
    return words[0] if words else ""
