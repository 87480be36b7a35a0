"""From a request, hosts and facts to a plan. Pure: the same input gives the same plan."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from distconsole.config.writing import in_config, network_of_hosts
from distconsole.errors import PlanError
from distconsole.launch.choose import Choice, decide, note_shell
from distconsole.launch.engines import (
    GLOO,
    MPI,
    Engines,
    refuse_horovod,
    refuse_mpi,
    refuse_own_name,
)
from distconsole.launch.launchers import horovod, mpi, single, torch
from distconsole.launch.plan import (
    HOOK,
    RUN_DIR,
    Endpoint,
    NodeFacts,
    NodePlan,
    Plan,
    asked_env,
    own_text,
)
from distconsole.launch.slurm.srun import Allocation, plan_node_tasks
from distconsole.launch.sync.send import Project
from distconsole.model.addresses import LOOPBACK, Interface, best_subnet, without_subnet
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import LauncherName, PassArgs, Run, count_of_hosts

MAX_WORLD_SIZE = 65_536
MAX_SLOTS_NAMED = 4


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A run before it is placed: what this machine knows of it, then the hosts that were reached.

    Attributes:
        env: The user's variables.
        project: The code that ``--sync`` brings.
        notes: On the choice of hosts, for the user.
    """

    request: Run
    env: Mapping[str, str]
    traits: ScriptTraits
    project: Project | None = None
    cluster: Cluster = field(default=Cluster(()))
    facts: Mapping[HostName, NodeFacts] = field(default_factory=dict)
    allocation: Allocation | None = None
    notes: tuple[str, ...] = ()

    @property
    def engines(self) -> dict[HostName, Engines]:
        return {host: each.engines for host, each in self.facts.items()}

    def decide(self) -> Choice:
        """Return the launcher, by what is known so far; raises PlanError."""
        engines = self.engines if self.facts else None
        job = self.allocation.job if self.allocation is not None else None
        return decide(self.request, self.traits, self.env, engines, job)


def make_plan(launch: PreparedLaunch, run: RunId, folder: str) -> Plan:
    """Place a job on hosts in the order of ranks.

    Relative paths start in ``folder``, the console's own. Raises PlanError if the job cannot be placed.
    """
    request, traits, facts, allocation = (
        launch.request,
        launch.traits,
        launch.facts,
        launch.allocation,
    )
    choice, hosts = launch.decide(), launch.cluster.hosts
    if allocation is not None and request.may_lose_hosts:
        raise PlanError(*elastic_in_job(request.nnodes))
    if not hosts:
        raise PlanError("there are no hosts to run on", "give --hosts, --hostfile or --cluster")
    endpoints, address_notes = choose_addresses(hosts, facts, request.nic)
    if not choice.one_a_node:
        slots, notes = _count_slots(launch, choice)
    else:
        slots, notes = [1] * len(hosts), _note_spare_numbers(request, hosts, traits)
        notes += note_shell(traits.shell, len(hosts)) if traits.shell is not None else []
    nodes = _place_ranks(hosts, facts, endpoints, slots)
    _refuse_engines(launch, choice, nodes)
    _refuse_arguments(request, choice)
    workdir = posixpath.join(folder, request.workdir) if request.workdir else folder
    path_is_whole = request.module or request.script.startswith(RUN_DIR)
    fewest, _ = count_of_hosts(request.nnodes) or (1, 1)
    plan = Plan(
        request=request,
        choice=choice,
        traits=traits,
        nodes=nodes,
        script=request.script if path_is_whole else posixpath.join(workdir, request.script),
        arguments=tuple(map(own_text, request.arguments)),
        env=asked_env(request) | {name: own_text(value) for name, value in launch.env.items()},
        workdir=workdir,
        run=run,
        min_nodes=fewest if request.may_lose_hosts or choice.elastic else None,
        slurm_job=allocation.job if allocation is not None else None,
        slurm_held=allocation is not None and allocation.held,
    )
    plan = _fill_nodes(plan)
    # mpirun takes no allocation but its own hosts: its ranks get Slurm's variables from it.
    if plan.slurm_job is not None and choice.launcher is not LauncherName.MPI:
        counts = [len(node.ranks) for node in plan.nodes]
        plan = replace(
            plan, nodes=tuple(plan_node_tasks(plan, node, counts) for node in plan.nodes)
        )
    return replace(plan, notes=(*launch.notes, *address_notes, *notes, *_note_plan(plan)))


def elastic_in_job(nnodes: str | None) -> tuple[str, str]:
    """Return why a range of hosts is refused in a Slurm job, and what to do."""
    said = f"--nnodes {nnodes} does not work in a Slurm job, which ends with its first node"
    return said, "leave --nnodes out"


def _refuse_engines(launch: PreparedLaunch, choice: Choice, nodes: tuple[NodePlan, ...]) -> None:
    """Refuse hosts that lack the launcher's engine, as far as they were asked."""
    engines = {node.name: node.facts.engines for node in nodes}
    if choice.launcher is LauncherName.HOROVOD:
        refuse_horovod(engines, GLOO)
        own = {
            node.name: frozenset(i.address for i in node.facts.interfaces if i.usable)
            for node in nodes
            if not node.endpoint.address.startswith("127.")
        }
        refuse_own_name(engines, own)
    elif choice.launcher is LauncherName.MPI:
        refuse_mpi(engines)
        if launch.traits.horovod:
            refuse_horovod(engines, MPI)


def _count_slots(launch: PreparedLaunch, choice: Choice) -> tuple[list[int], list[str]]:
    request, hosts, facts = launch.request, launch.cluster.hosts, launch.facts
    text = str(request.nproc)
    if request.nproc not in (None, "gpu") and (not text.isdecimal() or int(text) < 1):
        raise PlanError(f"--nproc {text} is not a number of ranks", "give a number from 1, or gpu")
    nproc = int(text) if text.isdecimal() else None
    slots, without_gpu = [], []
    of_job, notes = _take_slots_of_job(launch, choice)
    for host in hosts:
        gpus = facts[host.name].gpus
        count = host.slots
        if count is None:
            count = nproc or gpus or (of_job and host.job_slots) or 1
            if request.nproc == "gpu" and not gpus:
                without_gpu.append(host.name)
        elif nproc is not None and nproc > count and launch.allocation is None:
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


def _take_slots_of_job(launch: PreparedLaunch, choice: Choice) -> tuple[bool, list[str]]:
    """Return whether the slots of a batch job, which may be processors, are ranks; and notes on them."""
    traits, origin = launch.traits, launch.cluster.origin
    in_job = {host.name: host.job_slots or 1 for host in launch.cluster.hosts if not host.slots}
    if max(in_job.values(), default=1) == 1:
        return False, []
    first, *others = in_job.values()
    name, notes = next(iter(in_job)), []
    if first == 1 and min(others) > 1:
        notes = [
            f"{name} has one slot in {origin}: --exclude {name}, if the job is only launched there"
        ]
    facts = [launch.facts[name] for name in in_job]
    if launch.request.nproc is not None or any(each.gpus for each in facts):
        return False, notes
    starts_ranks = choice.launcher in (LauncherName.MPI, LauncherName.HOROVOD)
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


def _note_spare_numbers(request: Run, hosts: Sequence[Host], traits: ScriptTraits) -> list[str]:
    """Return notes on given numbers of ranks that one process a node ignores."""
    more = [f"{host.name}:{host.slots}" for host in hosts if host.slots not in (None, 1)]
    named = ", ".join(more[:MAX_SLOTS_NAMED]) + ", …" * (len(more) > MAX_SLOTS_NAMED)
    unused = [f"--nproc {request.nproc} is"] if request.nproc is not None else []
    unused += [f"the slots of {named} are"] if more else []
    instead = "; --launcher torch starts that many ranks"
    if traits.spawns or (traits.shell is not None and traits.shell.starts):
        instead = ", and the script itself says how many ranks it starts"
    return [f"{what} not used: one process a node was chosen{instead}" for what in unused]


def _place_ranks(
    hosts: tuple[Host, ...],
    facts: Mapping[HostName, NodeFacts],
    endpoints: Mapping[HostName, Endpoint],
    slots: list[int],
) -> tuple[NodePlan, ...]:
    if sum(slots) > MAX_WORLD_SIZE:
        raise PlanError(f"{sum(slots)} ranks are more than {MAX_WORLD_SIZE}", "lower --nproc")
    on_machine: Counter[object] = Counter()
    for host, count in zip(hosts, slots, strict=True):
        on_machine[facts[host.name].machine] += count
    return tuple(
        NodePlan(
            host=host,
            facts=facts[host.name],
            endpoint=endpoints[host.name],
            index=index,
            first_rank=sum(slots[:index]),
            slots=slots[index],
            neighbours=on_machine[facts[host.name].machine],
        )
        for index, host in enumerate(hosts)
    )


def _refuse_arguments(request: Run, choice: Choice) -> None:
    """Refuse ``--pass-args`` for a launcher that adds none; one process a node has no local rank."""
    can_add = choice.launcher in (LauncherName.TORCH, LauncherName.SLURM)
    if choice.one_a_node:
        can_add = choice.pass_args is PassArgs.INIT_METHOD
    if choice.pass_args is not None and not can_add:
        raise PlanError(
            f"--pass-args {choice.pass_args} works with --launcher torch, not {request.launcher}",
            "leave one of the two out",
        )


def _note_plan(plan: Plan) -> list[str]:
    notes = []
    if plan.choice.elastic:
        notes.append(horovod.elastic_note(plan))
    elif plan.launcher is LauncherName.MPI:
        notes += mpi.notes(plan)
    if plan.watch:
        return notes
    if plan.request.watch:
        idle = ", and --verify-sync has no effect" if plan.request.verify_sync else ""
        notes.append(f"not watched: {HOOK}=0 keeps the hook out; no steps are shown{idle}")
    if plan.traits.reports:
        notes.append(
            "the script imports distconsole_training, which comes with the hook: without it the "
            "import fails on hosts that have not installed distconsole"
        )
    return notes


def _fill_nodes(plan: Plan) -> Plan:
    """Return the plan with the processes of each node, as the launcher has them."""

    def fill(
        plan_node: Callable[[Plan, NodePlan], NodePlan], *, engine_ranks: bool = True
    ) -> Plan:
        nodes = tuple(plan_node(plan, node) for node in plan.nodes)
        return replace(plan, nodes=nodes, engine_ranks=engine_ranks)

    match plan.launcher:
        case LauncherName.SINGLE | LauncherName.SLURM if plan.choice.one_a_node:
            return fill(single.plan_node, engine_ranks=not plan.traits.spawns)
        case LauncherName.TORCH | LauncherName.SLURM:
            return fill(torch.plan_node)
        case LauncherName.TORCHRUN:
            return fill(torch.plan_torchrun, engine_ranks=False)
        case LauncherName.HOROVOD:
            by_driver = plan.choice.elastic
            nodes = (horovod.plan_elastic_nodes if by_driver else horovod.plan_nodes)(plan)
            return replace(plan, nodes=nodes)
        case LauncherName.MPI:
            return replace(plan, nodes=mpi.plan_nodes(plan), engine_ranks=False)
        case LauncherName.AUTO | LauncherName.SINGLE as launcher:
            raise PlanError(f"{launcher} was not resolved to a launcher of this version")
        case _:
            assert_never(plan.launcher)


def choose_addresses(
    hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts], nic: str | None = None
) -> tuple[dict[HostName, Endpoint], tuple[str, ...]]:
    """Choose the addresses that all hosts, in the order of ranks, can reach each other at; return them and notes.

    ``nic`` is an interface of every host; None or ``auto`` chooses. Raises PlanError if a requested
    interface does not exist, or a host has no address at all.
    """
    asked = None if nic in (None, "auto") else nic
    given = {host.name: _endpoint_by_name(host, facts[host.name], asked) for host in hosts}
    endpoints = {name: endpoint for name, endpoint in given.items() if endpoint is not None}
    rest = [host for host in hosts if host.name not in endpoints]
    if not rest:
        return endpoints, ()
    if _one_machine(hosts, facts):
        lo = Endpoint(LOOPBACK, _interface_of(facts[rest[0].name], LOOPBACK))
        notes = () if len(hosts) == 1 else ("all hosts are this one machine: 127.0.0.1 is used",)
        return {**endpoints, **{host.name: lo for host in rest}}, notes
    return _by_subnet(hosts, facts, endpoints)


def _endpoint_by_name(host: Host, facts: NodeFacts, nic: str | None) -> Endpoint | None:
    """Return the endpoint that the configuration or ``--nic`` fixes, or None."""
    if host.address is not None:
        return Endpoint(host.address, host.nic or _interface_of(facts, host.address))
    wanted = nic or host.nic
    if wanted is None:
        return None
    found = [item for item in facts.interfaces if item.name == wanted and item.ip is not None]
    found.sort(key=lambda item: (item.ip is not None and item.ip.version, not item.up))
    if not found:
        names = ", ".join(sorted({item.name for item in facts.interfaces})) or "none"
        raise PlanError(
            f"{host.name} has no interface {wanted} with an address",
            f"it has: {names}; --nic NAME names one for all hosts; for this one alone, "
            f"{in_config(('hosts', str(host.name), 'nic'), 'NAME')}",
        )
    return Endpoint(found[0].address, wanted)


def _one_machine(hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts]) -> bool:
    """True if all hosts share one network stack: this machine, or several sshd on it."""
    if len(hosts) == 1:
        return hosts[0].local or not any(i.usable for i in facts[hosts[0].name].interfaces)
    return len({facts[host.name].machine for host in hosts}) == 1


def _by_subnet(
    hosts: Sequence[Host], facts: Mapping[HostName, NodeFacts], fixed: dict[HostName, Endpoint]
) -> tuple[dict[HostName, Endpoint], tuple[str, ...]]:
    candidates: dict[str, list[Interface]] = {
        host.name: [i for i in facts[host.name].interfaces if i.usable] for host in hosts
    }
    best = best_subnet(
        candidates,
        {host.name: facts[host.name].reached_at for host in hosts},
        lambda chosen: _clash(facts, chosen),
    )
    if best:
        found = {host.name: best[host.name] for host in hosts}
        by_subnet = {name: Endpoint(each.address, each.name) for name, each in found.items()}
        return {**by_subnet, **fixed}, ()
    endpoints = dict(fixed)
    for host in [host for host in hosts if host.name not in fixed]:
        single = without_subnet(candidates[host.name], facts[host.name].reached_at)
        if single is None:
            raise PlanError(
                f"{host.name} has no address that another host could reach",
                network_of_hosts([host.name]),
            )
        endpoints[host.name] = Endpoint(single.address, single.name)
    if len(hosts) == 1:
        return endpoints, ()
    listed = ", ".join(f"{host.name} {endpoints[host.name].address}" for host in hosts)
    note = f"the hosts share no subnet; assuming that these reach each other: {listed}"
    return endpoints, (note,)


def _clash(facts: Mapping[HostName, NodeFacts], chosen: Mapping[str, Interface]) -> bool:
    """True if different machines have the same address, as container bridges do."""
    owner: dict[str, tuple[str, object]] = {}
    machines = {str(name): node.machine for name, node in facts.items()}
    return any(
        owner.setdefault(item.address, machines[name]) != machines[name]
        for name, item in chosen.items()
    )


def _interface_of(facts: NodeFacts, address: str) -> str | None:
    return next((item.name for item in facts.interfaces if item.address == address), None)
