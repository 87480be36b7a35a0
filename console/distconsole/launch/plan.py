"""A run as it is planned: its nodes with their ranks, and the settings that all launchers share.

A launcher fills the processes of each node in (``launchers/``); ``Plan.specs`` are the nodes' parts of it.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from msgspec import UNSET

from distconsole.grammar.secrets import mask_env, mask_text
from distconsole.launch.choose import Choice
from distconsole.launch.engines import Engines
from distconsole.launch.shell import SHELL_ENDINGS
from distconsole.launch.slurm.submit import split_container_words, words_of
from distconsole.model.addresses import Interface, machine_of
from distconsole.model.cluster import Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName, Rank, RunId
from distconsole.model.requests import LauncherName, PassArgs, Run
from distconsole.model.run_events import PlanMade, PlannedHost
from distconsole.rpc.wire import PLACEHOLDER, fill

MAX_STEM = 20

PORT = "{port}"
"""Placeholder of the rendezvous port: the first node finds one when the job starts."""

RUN_DIR = "{run_dir}"
"""Placeholder of the run's folder on a node, removed with the run."""

AGENT = "{agent}"
"""Placeholder of our program on the node, in the words of an interpreter."""

SHOWN_PORT = "29500"
"""Shown for a port not yet found, and the default in files that users may change; torch's own default."""

SHOWN_RUN_DIR = "distconsole-run"
"""Shown by ``--dry-run`` for the run's folder, which only a run of ours has."""

SHOWN_AGENT = "distconsole-agent"
"""Shown there for our own program on a node."""

OUTPUT_ENV = {"PYTHONUNBUFFERED": "1"}
"""Ranks write to files, buffered by 8 KiB in Python: a live log and a crash's last lines need this."""

FOREIGN_LAUNCHERS = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
"""Removed from every rank's environment: a console started below torchrun would pass them on, and
``TORCHELASTIC_USE_AGENT_STORE`` keeps rank 0 from opening the store that the others wait for."""

THREADS = "OMP_NUM_THREADS"
VERIFY = "DISTCONSOLE_VERIFY"
"""Number of steps between two self-checks of a rank (``distconsole_training.records``)."""
HOOK = "DISTCONSOLE_HOOK"
"""``0`` keeps the hook out of a run or a process."""

NCCL_SAYS_ITS_WAYS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
    "NCCL_DEBUG_FILE": f"{RUN_DIR}/nccl-%h-%p",
}
"""NCCL then writes into files that the agent reads (``nccl_logs``) instead of the ranks' output."""

RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")

MPI_NAMES = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_NODE_RANK", "PMIX_RANK", "PMIX_NAMESPACE"),
    *("PMIX_SERVER_URI", "PMIX_SERVER_URI2", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4"),
    *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Variables of mpirun's ranks: a console below one would pass them on, and every rank would be the same."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A host's properties that placement depends on.

    Attributes:
        python: The interpreter that runs the agent.
        gpus: GPUs, MIG instances counted apart.
        accelerator: Whether it has GPUs or the like, counted or not.
        boot_id: Identifies the running kernel; equal for containers of one machine.
        reached_at: The address of the console's connection; empty where unknown.
        uid: The user's number there; -1 where unknown.
        network: The kernel's name of its network namespace; empty from an older agent.
    """

    python: str
    cpus: int = 1
    gpus: int = 0
    interfaces: tuple[Interface, ...] = ()
    boot_id: str = ""
    reached_at: str = ""
    engines: Engines = field(default_factory=Engines)
    uid: int = -1
    accelerator: bool = False
    network: str = ""

    @property
    def machine(self) -> tuple[str, object]:
        """Equal for hosts that are one machine with one network, such as several sshd on it."""
        return machine_of(self.boot_id, self.network, (each.address for each in self.interfaces))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host's address for its ranks, and the interface that has it if known."""

    address: str
    nic: str | None


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One process to start.

    Attributes:
        rank: Its global rank; with ``single`` and ``torchrun`` the index of the node.
        argv: The command; ``{port}`` in a word stands for the rendezvous port, known at start, and
            ``{run_dir}`` for the run's folder on the node.
        env: Variables of this rank alone; placeholders as above.
        by_hand: The command to type instead, if it differs.
    """

    rank: Rank
    local_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    by_hand: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A host with its ranks (``slots`` from ``first_rank``), and the processes that start them.

    Attributes:
        neighbours: The ranks of all hosts that are this machine.
        ranks: The processes, in the order of their ranks; an engine (torchrun) starts ranks below its own.
        env: Added to the environment of every process; placeholders as in ``RankPlacement``.
        unset: Variables removed from it first.
        beside: A shell command that has to run beside the ranks when a person starts them by hand;
            in a run of ours the shim does its part.
        driver: The command of a process of the first node's shim that decides which ranks start
            (elastic Horovod); ``{agent}`` stands for our own program there. Empty if all start at once.
    """

    host: Host
    facts: NodeFacts
    endpoint: Endpoint
    index: int
    first_rank: int
    slots: int
    neighbours: int
    ranks: tuple[RankPlacement, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    beside: str = ""
    driver: tuple[str, ...] = ()

    @property
    def name(self) -> HostName:
        return self.host.name

    @property
    def python(self) -> str:
        """The interpreter of its ranks: the configured one, else the agent's."""
        return self.host.python or self.facts.python

    @property
    def world_ranks(self) -> tuple[Rank, ...]:
        return tuple(Rank(self.first_rank + local) for local in range(self.slots))

    def event(self) -> PlannedHost:
        words = [tuple(map(fill_shown, self.driver)), *(rank.argv for rank in self.ranks)]
        commands = dict.fromkeys(mask_text(shlex.join(each)) for each in words if each)
        own = self.ranks[0].env if len(self.ranks) == 1 else {}
        return PlannedHost(
            host=self.name,
            ranks=self.world_ranks,
            command="\n".join(map(_fill_names, commands)),
            env={k: _fill_names(v) for k, v in mask_env({**self.env, **own}).items()},
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that starting a run needs; made by a pure function, printed by ``--dry-run``.

    Attributes:
        request: With its paths as they are on the nodes.
        script: The script's path on the nodes, or the module's name.
        env: The user's variables; they win over a launcher's.
        min_nodes: The fewest nodes that the run goes on with; None ends it with the first lost.
        slurm_job: The Slurm job of these nodes, that the run is a step of; None outside of Slurm.
        slurm_held: Whether that job was submitted for this run and ends with it.
        engine_ranks: True when the processes are the ranks themselves; False when an engine
            (torchrun, mp.spawn) starts them below and they are found by their recorder.
        code: The tree that ``--sync`` brings, which becomes ``{run_dir}/code``; None without.
        needs: Scripts that every node must have, or nothing is started.
    """

    request: Run
    choice: Choice
    traits: ScriptTraits
    nodes: tuple[NodePlan, ...]
    script: str
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    run: RunId = field(default=RunId(""))
    min_nodes: int | None = None
    slurm_job: str | None = None
    slurm_held: bool = False
    engine_ranks: bool = True
    notes: tuple[str, ...] = ()
    code: str | None = None
    needs: tuple[str, ...] = ()

    @property
    def hosts(self) -> list[HostName]:
        return [node.name for node in self.nodes]

    @property
    def world_size(self) -> int:
        return sum(node.slots for node in self.nodes)

    @property
    def master(self) -> NodePlan:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def launcher(self) -> LauncherName:
        return self.choice.launcher

    @property
    def watch(self) -> bool:
        return self.request.watch and self.env.get(HOOK) != "0"

    @property
    def why(self) -> str:
        """The reason for the launcher."""
        by_tcp = self.choice.pass_args is PassArgs.INIT_METHOD
        by_tcp &= self.launcher is LauncherName.TORCH
        return f"{self.choice.why} (tcp:// rendezvous)" if by_tcp else self.choice.why

    @property
    def max_restarts(self) -> int:
        """Restarts of failed ranks by the shims: a job that outlives a host restarts them itself."""
        return 0 if self.request.may_lose_hosts else self.request.max_restarts

    @property
    def slurm_containers(self) -> list[str]:
        """pyxis's options of the step in ``slurm_job``, as ``--slurm`` has them."""
        return split_container_words(words_of(self.request.slurm))[1]

    def command(self, python: str, added: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the words that run the script with ``added`` before the user's arguments."""
        words = (self.script, *added, *self.arguments)
        if self.request.module:
            return (python, "-m", *words)
        # A script that only the hosts have is recognised by its ending.
        by_bash = self.script.endswith(SHELL_ENDINGS) and not self.traits.here
        return (*(self.traits.interpreter or (("bash",) if by_bash else (python,))), *words)

    def event(self, t: float) -> PlanMade:
        shell = self.traits.shell if self.launcher is LauncherName.SINGLE else None
        starts = shell.starts[0].name if shell is not None and shell.starts else ""
        return PlanMade(
            t=t,
            run=self.run,
            launcher=self.launcher.value,
            why=self.why,
            world_size=self.world_size,
            hosts=tuple(node.event() for node in self.nodes),
            name=self.request.name or "",
            script=self.script,
            starts=starts if starts and self.watch else UNSET,
        )

    def specs(self, secret: str, created: float) -> list[dict[str, Any]]:
        """Return each node's part of the plan for its agent (``runspec.RunSpec``)."""
        request = self.request
        nodes = [
            {"host": n.name, "address": n.endpoint.address, "ranks": list(n.world_ranks)}
            for n in self.nodes
        ]
        common = {
            "run": self.run,
            "name": request.name or "",
            "secret": secret,
            "nodes": nodes,
            "world_size": self.world_size,
            "launcher": self.launcher.value,
            "script": self.script,
            "workdir": self.workdir,
            "engine_ranks": self.engine_ranks,
            "watch": self.watch,
            "grace": request.grace_seconds,
            "lost_after": request.lost_after_seconds,
            "created": created,
            "code": self.code,
            "needs": list(self.needs),
            "min_nodes": self.min_nodes,
            "max_restarts": self.max_restarts,
            "below_slurm": self.slurm_job is not None,
            "driver": list(self.master.driver),
            "log_bytes": request.log_limit,
        }
        return [
            {
                **common,
                "node_index": node.index,
                "setup": node.host.setup,
                "container": node.host.container,
                "env": node.env,
                "unset": list(node.unset),
                "ranks": [
                    {
                        "rank": r.rank,
                        "local_rank": r.local_rank,
                        "argv": list(r.argv),
                        "env": r.env,
                    }
                    for r in node.ranks
                ],
            }
            for node in self.nodes
        ]


def new_run_id(request: Run) -> RunId:
    """Return a readable, unique id such as ``digits-1121-a3f9c2``, by the name or else the script."""
    script = request.script
    named = script.rpartition(".")[2] if request.module else PurePosixPath(script).stem
    source = request.name or named
    stem = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:MAX_STEM].strip("-") or "run"
    return RunId(f"{stem}-{datetime.now().astimezone():%m%d}-{secrets.token_hex(3)}")


def own_text(text: str) -> str:
    """Return a user's text with our placeholders in another pair of braces, so that no shim fills them in."""
    return PLACEHOLDER.sub(r"{\g<0>}", text)


def network_env(node: NodePlan) -> dict[str, str]:
    """Return the variables that bind Gloo and NCCL to the node's interface; empty if it is unknown."""
    nic = node.endpoint.nic
    if nic is None:
        return {}
    if node.endpoint.address.startswith("127."):
        return {"GLOO_SOCKET_IFNAME": nic}  # NCCL finds shared memory by itself
    return {"GLOO_SOCKET_IFNAME": nic, "NCCL_SOCKET_IFNAME": f"={nic}"}


def threads_env(node: NodePlan) -> dict[str, str]:
    """Return the number of threads of each rank: the machine's processors over its ranks."""
    return {THREADS: str(max(1, node.facts.cpus // max(1, node.neighbours)))}


def asked_env(request: Run) -> dict[str, str]:
    """Return the variables of ``--verify-sync`` and ``--nccl-debug``, if given."""
    verified = {} if request.verify_sync is None else {VERIFY: str(request.verify_sync)}
    return {**verified, **(NCCL_SAYS_ITS_WAYS if request.nccl_debug else {})}


def fill_node(
    plan: Plan,
    node: NodePlan,
    ranks: tuple[RankPlacement, ...],
    env: dict[str, str],
    cleared: Iterable[str] = (),
) -> NodePlan:
    """Return a node that starts ``ranks``, with the settings that all launchers share.

    The user's variables win over the launcher's in ``env``; those of foreign launchers and ``cleared``
    are removed.
    """
    env = {**OUTPUT_ENV, **network_env(node), **env, **plan.env}
    unset = tuple(name for name in (*FOREIGN_LAUNCHERS, *cleared) if name not in env)
    return replace(node, ranks=ranks, env=env, unset=unset)


def fill_shown(text: str) -> str:
    return fill(text, SHOWN_PORT, SHOWN_RUN_DIR).replace(AGENT, SHOWN_AGENT)


def _fill_names(text: str) -> str:
    """Return a text with our placeholders kept, and the user's as typed."""
    return fill(text, PORT, RUN_DIR)


def extra_arguments(
    plan: Plan, rank: int, world_size: int, local_rank: int = 0
) -> tuple[str, ...]:
    """Return the words that ``--pass-args`` adds for one of the ``world_size`` processes."""
    address = plan.master.endpoint.address
    host = f"[{address}]" if ":" in address else address
    pairs = option_pairs(
        plan.choice.pass_args,
        plan.traits,
        plan.arguments,
        {
            "local_rank": str(local_rank),
            "init_method": f"tcp://{host}:{PORT}",
            "rank": str(rank),
            "world_size": str(world_size),
        },
    )
    if plan.choice.pass_args is PassArgs.TORCH_LAUNCH:
        return tuple("=".join(pair) for pair in pairs)
    return tuple(word for pair in pairs for word in pair)


def option_pairs(
    pass_args: PassArgs | None, traits: ScriptTraits, given: Sequence[str], values: dict[str, str]
) -> list[tuple[str, str]]:
    """Return option and value of each argument to add, the option as the script declares it.

    ``torch.distributed.launch`` adds ``--local_rank``; platforms ``--init_method``, ``--rank`` and
    ``--world_size``, except those that the user gives, such as file:// on a shared folder.
    """
    if pass_args is None:
        return []
    if pass_args is PassArgs.TORCH_LAUNCH:
        return [(traits.local_rank or "--local_rank", values["local_rank"])]
    names = ("init_method", "rank", "world_size")
    pairs = [(getattr(traits, name) or f"--{name}", values[name]) for name in names]
    return [
        (option, value)
        for option, value in pairs
        if not any(word == option or word.startswith(f"{option}=") for word in given)
    ]
