"""From a request, hosts and facts to a plan. Pure: the same input gives the same plan."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from distconsole.errors import PlanError
from distconsole.launch.addresses import AddressChoice, NodeFacts, choose_addresses
from distconsole.launch.choose import Choice, note_shell, starter_of
from distconsole.launch.engines import (
    GLOO,
    MPI,
    Engines,
    refuse_horovod,
    refuse_mpi,
    refuse_own_name,
)
from distconsole.launch.job import HOOK, RUN_DIR, Job, PlacedNode, asked_env, own_text
from distconsole.launch.launchers import horovod, mpi, single, torch
from distconsole.launch.slurm.srun import Allocation, below_slurm, is_one_a_node, plan_tasks
from distconsole.launch.slurm.submit import split_container_words, words_of
from distconsole.launch.sync.send import Project
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import LaunchPlan, NodePlan, ScriptTraits
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import LauncherName, PassArgs, Run, count_of_hosts

MAX_WORLD_SIZE = 65_536
MAX_SLOTS_NAMED = 4


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A launch before any host is asked: the user's ``env``, and the ``project`` that ``--sync`` brings."""

    request: Run
    env: Mapping[str, str]
    traits: ScriptTraits
    choice: Choice
    project: Project | None = None


@dataclass(frozen=True, slots=True)
class LaunchHosts:
    """The hosts of a launch with their facts, their Slurm job, and ``notes`` on their choice for the user."""

    cluster: Cluster
    facts: Mapping[HostName, NodeFacts]
    allocation: Allocation | None = None
    notes: tuple[str, ...] = ()

    @property
    def engines(self) -> dict[HostName, Engines]:
        return {host: each.engines for host, each in self.facts.items()}


def make_plan(launch: PreparedLaunch, hosts: LaunchHosts, run: RunId, folder: str) -> LaunchPlan:
    """Place a job on hosts in the order of ranks; its choice is final (``choose.finish_choice``).

    Relative paths start in ``folder``, the console's own. Raises PlanError if the job cannot be placed.
    """
    request, facts, allocation = launch.request, hosts.facts, hosts.allocation
    one_a_node = is_one_a_node(launch.choice, launch.traits, request.arguments)
    launch = replace(launch, choice=below_slurm(launch.choice, allocation))
    named = hosts.cluster.hosts
    _refuse_request(request, hosts)
    addresses = choose_addresses(named, facts, request.nic)
    slots, notes = [1] * len(named), _note_spare_numbers(request, named, launch.traits)
    if not one_a_node:
        slots, notes = _count_slots(launch, hosts)
    if one_a_node and launch.traits.shell is not None:
        notes = [*notes, *note_shell(launch.traits.shell, len(named))]
    nodes = _place_ranks(named, facts, addresses, slots)
    _refuse_engines(launch, nodes)
    job = replace(
        _make_job(launch, nodes, folder),
        one_a_node=one_a_node,
        slurm_job=allocation.job if allocation is not None else None,
        run=run,
    )
    held = allocation is not None and allocation.held
    return _assemble(request, job, launch.choice, (*hosts.notes, *addresses.notes, *notes), held)


def _make_job(launch: PreparedLaunch, nodes: tuple[PlacedNode, ...], folder: str) -> Job:
    request, choice = launch.request, launch.choice
    wanted = count_of_hosts(request.nnodes)
    can_lose = request.may_lose_hosts or choice.elastic
    workdir = posixpath.join(folder, request.workdir) if request.workdir else folder
    path_is_whole = request.module or request.script.startswith(RUN_DIR)
    env = {name: own_text(value) for name, value in launch.env.items()}
    return Job(
        nodes=nodes,
        script=request.script if path_is_whole else posixpath.join(workdir, request.script),
        arguments=tuple(map(own_text, request.arguments)),
        module=request.module,
        env={**asked_env(request), **env},
        workdir=workdir,
        pass_args=choice.pass_args,
        deepspeed="deepspeed" in starter_of(request),
        traits=launch.traits,
        max_restarts=request.max_restarts,
        min_nodes=wanted[0] if wanted is not None and can_lose else None,
    )


def _refuse_request(request: Run, hosts: LaunchHosts) -> None:
    if hosts.allocation is not None and request.may_lose_hosts:
        raise PlanError(
            f"--nnodes {request.nnodes} does not work in a Slurm job, which ends with its first node",
            "leave --nnodes out",
        )
    if not hosts.cluster.hosts:
        raise PlanError("there are no hosts to run on", "give --hosts, --hostfile or --cluster")


def _refuse_engines(launch: PreparedLaunch, nodes: tuple[PlacedNode, ...]) -> None:
    """Refuse hosts that lack the launcher's engine, as far as they were asked."""
    engines = {node.host.name: node.facts.engines for node in nodes}
    if launch.choice.launcher is LauncherName.HOROVOD:
        refuse_horovod(engines, GLOO)
        own = {
            node.host.name: frozenset(i.address for i in node.facts.interfaces if i.usable)
            for node in nodes
            if not node.endpoint.address.startswith("127.")
        }
        refuse_own_name(engines, own)
    elif launch.choice.launcher is LauncherName.MPI:
        refuse_mpi(engines)
        if launch.traits.horovod:
            refuse_horovod(engines, MPI)


def _count_slots(launch: PreparedLaunch, reached: LaunchHosts) -> tuple[list[int], list[str]]:
    request = launch.request
    nproc = None if request.nproc in (None, "gpu") else _parse_nproc(str(request.nproc))
    hosts, facts = reached.cluster.hosts, reached.facts
    slots, without_gpu = [], []
    of_job, notes = _take_slots_of_job(launch, reached)
    for host in hosts:
        gpus = facts[host.name].gpus
        count = host.slots
        if count is None:
            count = nproc or gpus or (of_job and host.job_slots) or 1
            if request.nproc == "gpu" and not gpus:
                without_gpu.append(host.name)
        elif nproc is not None and nproc > count and reached.allocation is None:
            # In a job --nproc overrides the job's own tasks a node.
            raise PlanError(
                f"--nproc {nproc} is more than {host.name} has slots ({count})",
                f"give it more, {host.name}:{nproc}, or leave --nproc out",
            )
        if count < 1:
            raise PlanError(f"{host.name} gets {count} ranks", "slots must be 1 or more")
        slots.append(count)
    if without_gpu:
        notes.append(f"no GPU on {', '.join(without_gpu)}: one rank each")
    return slots, notes


def _take_slots_of_job(launch: PreparedLaunch, reached: LaunchHosts) -> tuple[bool, list[str]]:
    """Return whether the slots of a batch job, which may be processors, are ranks; and notes on them."""
    traits, origin = launch.traits, reached.cluster.origin
    in_job = {host.name: host.job_slots or 1 for host in reached.cluster.hosts if not host.slots}
    if max(in_job.values(), default=1) == 1:
        return False, []
    first, *others = in_job.values()
    name, notes = next(iter(in_job)), []
    if first == 1 and min(others) > 1:
        notes = [
            f"{name} has one slot in {origin}: --exclude {name}, if the job is only launched there"
        ]
    facts = [reached.facts[name] for name in in_job]
    if launch.request.nproc is not None or any(each.gpus for each in facts):
        return False, notes
    starts_ranks = launch.choice.launcher in (LauncherName.MPI, LauncherName.HOROVOD)
    if not (starts_ranks or traits.distributed or traits.local_rank or traits.meets_by_arguments):
        why = "the script is not known to open a process group"
    elif any(each.accelerator for each in facts):
        why = "there are accelerators that are not counted here"
    else:
        words = (
            f"as many ranks as {origin} gives slots, for want of GPUs; --nproc says another number"
        )
        return True, [*notes, words]
    more = f"--nproc N starts more ({origin} gives up to {max(in_job.values())} slots)"
    return False, [*notes, f"one rank a host, as {why}: {more}"]


def _parse_nproc(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise PlanError(f"--nproc {text} is not a number of ranks", "give a number from 1, or gpu")
    return int(text)


def _note_spare_numbers(request: Run, hosts: Sequence[Host], traits: ScriptTraits) -> list[str]:
    """Return notes on given numbers of ranks that one process a node ignores."""
    more = [f"{host.name}:{host.slots}" for host in hosts if host.slots not in (None, 1)]
    named = ", ".join(more[:MAX_SLOTS_NAMED]) + ", …" * (len(more) > MAX_SLOTS_NAMED)
    unused = [f"--nproc {request.nproc} is"] if request.nproc is not None else []
    unused += [f"the slots of {named} are"] if more else []
    instead = "; --launcher torch starts that many ranks"
    if traits.spawns:
        instead = ", and the script itself says how many ranks it starts"
    return [f"{what} not used: one process a node was chosen{instead}" for what in unused]


def _place_ranks(
    hosts: tuple[Host, ...],
    facts: Mapping[HostName, NodeFacts],
    addresses: AddressChoice,
    slots: list[int],
) -> tuple[PlacedNode, ...]:
    if sum(slots) > MAX_WORLD_SIZE:
        raise PlanError(f"{sum(slots)} ranks are more than {MAX_WORLD_SIZE}", "lower --nproc")
    on_machine: Counter[object] = Counter()
    for host, count in zip(hosts, slots, strict=True):
        on_machine[facts[host.name].machine] += count
    return tuple(
        PlacedNode(
            host=host,
            facts=facts[host.name],
            endpoint=addresses.endpoints[host.name],
            index=index,
            first_rank=sum(slots[:index]),
            slots=slots[index],
            neighbours=on_machine[facts[host.name].machine],
        )
        for index, host in enumerate(hosts)
    )


def _assemble(
    request: Run, job: Job, choice: Choice, notes: tuple[str, ...], held: bool
) -> LaunchPlan:
    if choice.pass_args is not None and not _can_add_arguments(choice, job):
        raise PlanError(
            f"--pass-args {choice.pass_args} works with --launcher torch, not {request.launcher}",
            "leave one of the two out",
        )
    nodes, engine_ranks = _plan_nodes(job, choice.launcher, elastic=choice.elastic)
    # mpirun takes no allocation but its own hosts: its ranks get Slurm's variables from it.
    if job.slurm_job is not None and choice.launcher is not LauncherName.MPI:
        nodes = plan_tasks(job, nodes)
    fewest = job.min_nodes or 1 if choice.elastic else job.min_nodes
    if choice.elastic:
        notes = (*notes, horovod.elastic_note(job, fewest or len(nodes)))
    elif choice.launcher is LauncherName.MPI:
        notes = (*notes, *mpi.notes(job))
    watch = request.watch and job.env.get(HOOK) != "0"
    if not watch:
        notes = (*notes, *_note_missing_hook(request, job.traits))
    shell = job.traits.shell if choice.launcher is LauncherName.SINGLE else None
    by_tcp = choice.pass_args is PassArgs.INIT_METHOD and choice.launcher is LauncherName.TORCH
    return LaunchPlan(
        run=RunId(job.run),
        name=request.name or "",
        launcher=choice.launcher.value,
        why=f"{choice.why} (tcp:// rendezvous)" if by_tcp else choice.why,
        world_size=sum(len(node.world_ranks) for node in nodes),
        nodes=nodes,
        script=job.script,
        engine_ranks=engine_ranks,
        grace_seconds=request.grace_seconds,
        lost_after_seconds=request.lost_after_seconds,
        watch=watch,
        # A job that outlives a host restarts its ranks itself.
        max_restarts=0 if request.may_lose_hosts else request.max_restarts,
        min_nodes=fewest,
        log_bytes=request.log_limit,
        starts=shell.starts[0].name if shell is not None and shell.starts else "",
        slurm_job=job.slurm_job,
        slurm_held=held,
        slurm_containers=tuple(split_container_words(words_of(request.slurm))[1]),
        notes=notes,
    )


def _note_missing_hook(request: Run, traits: ScriptTraits) -> list[str]:
    notes = []
    if request.watch:
        idle = ", and --verify-sync has no effect" if request.verify_sync else ""
        notes.append(f"not watched: {HOOK}=0 keeps the hook out; no steps are shown{idle}")
    if traits.reports:
        notes.append(
            "the script imports distconsole_training, which comes with the hook: without it the "
            "import fails on hosts that have not installed distconsole"
        )
    return notes


def _can_add_arguments(choice: Choice, job: Job) -> bool:
    """True if the launcher adds ``--pass-args``; one process a node has no local rank."""
    if choice.launcher is LauncherName.SINGLE or job.one_a_node:
        return choice.pass_args is PassArgs.INIT_METHOD
    return choice.launcher in (LauncherName.TORCH, LauncherName.SLURM)


def _plan_nodes(
    job: Job, launcher: LauncherName, *, elastic: bool
) -> tuple[tuple[NodePlan, ...], bool]:
    def on_each(plan_node: Callable[[Job, PlacedNode], NodePlan]) -> tuple[NodePlan, ...]:
        return tuple(plan_node(job, node) for node in job.nodes)

    match launcher:
        case LauncherName.SLURM if not job.one_a_node:
            return on_each(torch.plan_node), True
        case LauncherName.TORCH:
            return on_each(torch.plan_node), True
        case LauncherName.TORCHRUN:
            return on_each(torch.plan_torchrun), False
        case LauncherName.SINGLE | LauncherName.SLURM:
            return on_each(single.plan_node), not job.traits.spawns
        case LauncherName.HOROVOD:
            plan = horovod.plan_elastic_nodes if elastic else horovod.plan_nodes
            return plan(job), True
        case LauncherName.MPI:
            return mpi.plan_nodes(job), False
        case LauncherName.AUTO:
            raise PlanError(f"{launcher} was not resolved to a launcher of this version")
        case _:
            assert_never(launcher)
