"""Ranks below Slurm: srun's tasks on each node, and Slurm's description of a job.

srun starts one task a node, our shim, and the shim starts the launcher's processes of the node. So
all are below slurmstepd, in the job's control group and accounting, and every rule of ours
holds for them.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from distconsole.config.hosts import HET_GROUP
from distconsole.config.ranges import RangeError, expand, split_list
from distconsole.errors import ConsoleError, PlanError, UnavailableError
from distconsole.launch.plan import NodeFacts, NodePlan, Plan
from distconsole.model.cluster import Cluster
from distconsole.model.names import HostName, is_whole, join_some
from distconsole.model.requests import Run
from distconsole.rpc.link import NodeLink

RUNNING_STATE, ENDING_STATE = "RUNNING", "COMPLETING"
WAITING_STATES = (
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "EXPEDITING"),
    *("RESV_DEL_HOLD", "SPECIAL_EXIT"),
)
ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)
"""Of ``JobState``. In any other (SUSPENDED, SIGNALING, one of a later Slurm) a job still has its nodes."""

ASK_SECONDS = 45.0

PARTING_SECONDS = 30
"""Seconds that a shim may outlast the first one to leave, which leaves when all nodes are done."""

MISLEADING = ("SLURM_TASK_PID", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_TASK")
"""Of the shim's task instead of the ranks."""

_NODES = re.compile(r"(?:^|\s)Nodes=(\S+) CPU_IDs=(\S*) Mem=\S*(?: GRES=(\S*))?")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, slots=True)
class JobState:
    """From ``scontrol show job``: its state, its reason to wait, ``tasks_a_node`` if requested (0: unevenly), ``restarts``."""

    state: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    tasks_a_node: int | None = None
    cpus: dict[str, int] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job whose nodes we may use.

    Attributes:
        held: Submitted for this run, and ends with it.
        run: The run's id if the job was named after it; empty otherwise.
    """

    job: str
    held: bool = False
    run: str = ""
    state: JobState | None = None


def read_job(text: str) -> JobState:
    """Parse the output of ``scontrol -d -o show job``; raises PlanError if it is none."""
    state, nodelist = _field(text, "JobState"), _field(text, "NodeList")
    if not state:
        raise PlanError(f"scontrol says nothing of the job: {text[:120].strip()!r}")
    reason, restarts = _field(text, "Reason"), _field(text, "Restarts")
    nodes = _expand_nodes(nodelist) if nodelist not in ("", "(null)") else ()
    # The job's script runs there: sbatch's --batch may choose a later node.
    first = _field(text, "BatchHost")
    if first in nodes:
        nodes = (first, *(name for name in nodes if name != first))
    cpus: dict[str, int] = {}
    gpus: dict[str, int] = {}
    for found in _NODES.finditer(text):
        for name in _expand_nodes(found[1]):
            cpus[name] = cpus.get(name, 0) + _count(found[2])
            gpus[name] = sum(int(number) for number in _GPUS.findall(found[3] or ""))
    return JobState(
        state=state,
        reason="" if reason in ("None", "") else reason,
        nodes=nodes,
        tasks_a_node=_tasks_a_node(text, len(nodes)),
        cpus=cpus,
        gpus=gpus,
        restarts=int(restarts) if is_whole(restarts) else 0,
    )


def inside(environ: Mapping[str, str], cluster: Cluster) -> Allocation | None:
    """Return the allocation around this console, if all hosts are nodes of it."""
    job, nodes = _own_job(environ)
    named = {host.name for host in cluster.hosts}
    return Allocation(job) if named and named <= nodes else None


def note_outside(environ: Mapping[str, str], cluster: Cluster) -> Iterator[str]:
    """Yield which hosts keep a run from being a step of the allocation around this console."""
    job, nodes = _own_job(environ)
    others = [host.name for host in cluster.hosts if host.name not in nodes and not host.local]
    apart = cluster.demo_folder is not None or any(name.startswith(HET_GROUP) for name in environ)
    if nodes and others and not apart:
        who = f"{join_some(others)} {'is no node' if len(others) == 1 else 'are no nodes'}"
        yield f"{who} of Slurm job {job}: all ranks start by ssh, outside of the job's limits"


def _own_job(environ: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return the number and the nodes of the allocation around this console; no nodes if there is none."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    if job.isdigit() and nodelist:
        with suppress(PlanError):
            return job, set(_expand_nodes(nodelist))
    return job, set()


def fit_hosts(
    cluster: Cluster, facts: Mapping[HostName, NodeFacts], job: JobState, request: Run
) -> tuple[Cluster, dict[HostName, NodeFacts]]:
    """Return hosts in Slurm's order and facts limited to the job's share of each node.

    Raises PlanError if uneven tasks alone say how many ranks a host has.
    """
    order = {name: index for index, name in enumerate(job.nodes)}
    hosts = sorted(cluster.hosts, key=lambda host: order.get(host.name, len(order)))
    slots = job.tasks_a_node if request.nproc is None else None
    if slots == 0 and request.ranks is None and not all(host.slots for host in hosts):
        raise PlanError(
            f"the job's tasks do not spread evenly over its {len(job.nodes)} nodes",
            "give --ntasks-per-node instead, or --nproc N",
        )
    placed = tuple(replace(host, slots=host.slots or slots or None) for host in hosts)
    fitting = {
        host.name: replace(
            facts[host.name],
            cpus=max(1, job.cpus.get(host.name, facts[host.name].cpus)),
            gpus=job.gpus.get(host.name, 0),
        )
        for host in hosts
    }
    return replace(cluster, hosts=placed), fitting


def ask_slurm(link: NodeLink, **arguments: object) -> Mapping[str, object]:
    """Return Slurm's answer through a host's agent; raises UnavailableError if Slurm does not answer."""
    try:
        return link.request("slurm", ASK_SECONDS, **arguments)
    except PlanError:
        raise
    except ConsoleError as error:
        raise UnavailableError(f"{link.host.name}: {error.message}", error.hint) from None


def ask_state(link: NodeLink, job: str) -> JobState:
    """Return the state of a job; raises as ``ask_slurm`` and ``read_job``."""
    return read_job(str(ask_slurm(link, do="show", job=job).get("text")))


MOUNTS = "--container-mounts="


def step_command(
    job: str,
    run: str,
    hosts: Sequence[str],
    shims: Sequence[Sequence[str]],
    containers: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the srun that starts each node's shim; ``shims`` has their words in the order of ``hosts``.

    With pyxis's options, ``containers``, the shims run inside, and their program's and the run's folders are mounted.
    """
    number = str(len(hosts))
    if containers:
        given = [word.removeprefix(MOUNTS) for word in containers if word.startswith(MOUNTS)]
        kept = [word for word in containers if not word.startswith(MOUNTS)]
        containers = (*kept, MOUNTS + ",".join([*given, *_folders_of(shims)]))
    commands = [shlex.join(words) for words in shims]
    start = f"exec {commands[0]}"
    if len(set(commands)) > 1:
        pairs = zip(hosts, commands, strict=True)
        cases = " ".join(f"{shlex.quote(host)}) exec {command};;" for host, command in pairs)
        start = f'case "$SLURMD_NODENAME" in {cases} esac'
    return (
        *("srun", "--jobid", job, "--overlap", "--nodes", number, "--ntasks", number),
        *("--job-name", run, "--ntasks-per-node=1", f"--nodelist={','.join(hosts)}", "--chdir=/"),
        # The shims leave one after the other, each with the run's exit code; one on a lost node never does,
        # and srun would wait until Slurm has noticed.
        *("--kill-on-bad-exit=0", f"--wait={PARTING_SECONDS}"),
        # One task a node must not be bound to one processor, nor be taken for a rank of MPI.
        *("--cpu-bind=none", "--mpi=none", "--input=none"),
        *containers,
        *("/bin/sh", "-c", start),
    )


def _folders_of(shims: Sequence[Sequence[str]]) -> list[str]:
    """Return as mounts the folders of the agent's file and of the node: a shim needs no others."""
    folders: dict[str, None] = {}
    for words in shims:
        programs = [posixpath.dirname(word) for word in words if word.endswith(".pyz")]
        runs = posixpath.dirname(posixpath.dirname(words[-1]))
        folders |= dict.fromkeys(filter(None, (*programs, runs)))
    return [f"{each}:{each}" for each in folders]


def plan_node_tasks(plan: Plan, node: NodePlan, counts: Sequence[int]) -> NodePlan:
    total, nodes, first = str(sum(counts)), str(len(counts)), sum(counts[: node.index])
    spread = ",".join(map(str, counts))
    env = {
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), total),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), spread),
        "SLURM_NODEID": str(node.index),
        "SLURM_GTIDS": ",".join(str(first + local) for local in range(counts[node.index])),
        **node.env,
    }
    ranks = []
    for local, rank in enumerate(node.ranks):
        own = {"SLURM_PROCID": str(first + local), "SLURM_LOCALID": str(local)}
        own = {name: value for name, value in own.items() if name not in plan.env}
        ranks.append(replace(rank, env={**own, **rank.env}))
    unset = (*node.unset, *(name for name in MISLEADING if name not in env))
    return replace(node, env=env, ranks=tuple(ranks), unset=unset)


def _tasks_a_node(text: str, nodes: int) -> int | None:
    """Return the tasks requested for each node, 0 if they are uneven; None for Slurm's default of one."""
    asked = _field(text, "NtasksPerN:B:S:C").partition(":")[0]
    if is_whole(asked) and int(asked) > 0:
        return int(asked)
    told = _field(text, "NumTasks")
    tasks = int(told) if is_whole(told) else 0
    if not nodes or tasks <= nodes:
        return None
    return 0 if tasks % nodes else tasks // nodes


def _field(text: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){re.escape(name)}=(\S*)", text)
    return found[1] if found is not None else ""


def _expand_nodes(nodelist: str) -> tuple[str, ...]:
    try:
        return tuple(name for part in split_list(nodelist) for name in expand(part))
    except RangeError as error:
        raise PlanError(f"Slurm's list of nodes {nodelist!r}: {error}") from None


def _count(ids: str) -> int:
    """Return the count of numbers in ``0-3,8``."""
    total = 0
    for part in ids.split(","):
        low, _, high = part.partition("-")
        if is_whole(low):
            total += int(high) - int(low) + 1 if is_whole(high) else 1
    return total
