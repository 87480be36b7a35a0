"""A job placed on hosts, the input of every launcher, and the settings that all launchers share."""

from __future__ import annotations

import posixpath
import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from distconsole.errors import ConfigError, UsageError
from distconsole.launch.addresses import Endpoint, NodeFacts
from distconsole.model.cluster import Host
from distconsole.model.job import NodePlan, RankPlacement, ScriptTraits
from distconsole.model.names import Rank, RunId
from distconsole.model.requests import PassArgs, Run
from distconsole.rpc.wire import PLACEHOLDER

MAX_STEM = 20

PORT = "{port}"
"""Placeholder of the rendezvous port: the first node finds one when the job starts."""

RUN_DIR = "{run_dir}"
"""Placeholder of the run's folder on a node, removed with the run."""

OUTPUT_ENV = {"PYTHONUNBUFFERED": "1"}
"""Ranks write to files, buffered by 8 KiB in Python: a live log and a crash's last lines need this."""

FOREIGN_LAUNCHERS = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
)
"""Removed from every rank's environment: a console started below torchrun would pass them on, and
``TORCHELASTIC_USE_AGENT_STORE`` keeps rank 0 from opening the store that the others wait for."""

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
class PlacedNode:
    """A host with its ranks (``slots`` from ``first_rank``), and ``neighbours``: all of this machine."""

    host: Host
    facts: NodeFacts
    endpoint: Endpoint
    index: int
    first_rank: int
    slots: int
    neighbours: int

    @property
    def python(self) -> str:
        """The interpreter of its ranks: the configured one, else the agent's."""
        return self.host.python or self.facts.python

    @property
    def world_ranks(self) -> tuple[Rank, ...]:
        return tuple(Rank(self.first_rank + local) for local in range(self.slots))


@dataclass(frozen=True, slots=True)
class Job:
    """A script and the nodes that run it.

    Attributes:
        script: The script's path on the nodes, or the module's name.
        env: The user's variables; they win over a launcher's.
        traits: Properties read from the script, such as the spelling of its arguments.
        min_nodes: The fewest nodes that the job goes on with; None if it needs all.
        one_a_node: One process a node, because the script spawns its ranks or needs none.
        deepspeed: The ranks also have the variables that only DeepSpeed's launcher sets.
        slurm_job: The Slurm job of these nodes; None outside of Slurm.
    """

    nodes: tuple[PlacedNode, ...]
    script: str
    arguments: tuple[str, ...]
    module: bool = False
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    pass_args: PassArgs | None = None
    traits: ScriptTraits = field(default_factory=ScriptTraits)
    max_restarts: int = 0
    min_nodes: int | None = None
    one_a_node: bool = False
    deepspeed: bool = False
    slurm_job: str | None = None
    run: str = ""

    @property
    def world_size(self) -> int:
        return sum(node.slots for node in self.nodes)

    @property
    def master(self) -> PlacedNode:
        """The node of rank 0."""
        return self.nodes[0]

    def command(self, python: str, added: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the words that run the script with ``added`` before the user's arguments."""
        words = (self.script, *added, *self.arguments)
        if self.module:
            return (python, "-m", *words)
        # A script that only the hosts have is recognised by its ending.
        ending = (
            ("bash",) if self.script.endswith((".sh", ".bash")) and not self.traits.here else ()
        )
        return (*(self.traits.interpreter or ending or (python,)), *words)


def new_run_id(script: str, name: str | None) -> RunId:
    """Return a readable, unique id such as ``digits-1121-a3f9c2``, by the name or else the script."""
    file = posixpath.basename(script).removesuffix(".py").removesuffix(".sh")
    source = name or file.rpartition(".")[2]
    stem = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:MAX_STEM].strip("-") or "run"
    return RunId(f"{stem}-{datetime.now().astimezone():%m%d}-{secrets.token_hex(3)}")


def own_text(text: str) -> str:
    """Return a user's text with our placeholders in another pair of braces, so that no shim fills them in."""
    return PLACEHOLDER.sub(r"{\g<0>}", text)


def network_env(node: PlacedNode) -> dict[str, str]:
    """Return the variables that bind Gloo and NCCL to the node's interface; empty if it is unknown."""
    nic = node.endpoint.nic
    if nic is None:
        return {}
    if node.endpoint.address.startswith("127."):
        return {"GLOO_SOCKET_IFNAME": nic}  # NCCL finds shared memory by itself
    return {"GLOO_SOCKET_IFNAME": nic, "NCCL_SOCKET_IFNAME": f"={nic}"}


def threads_env(node: PlacedNode) -> dict[str, str]:
    """Return the number of threads of each rank: the machine's processors over its ranks."""
    return {"OMP_NUM_THREADS": str(max(1, node.facts.cpus // max(1, node.neighbours)))}


def asked_env(request: Run) -> dict[str, str]:
    """Return the variables of ``--verify-sync`` and ``--nccl-debug``, if given."""
    verified = {} if request.verify_sync is None else {VERIFY: str(request.verify_sync)}
    return {**verified, **(NCCL_SAYS_ITS_WAYS if request.nccl_debug else {})}


def node_plan(
    job: Job,
    node: PlacedNode,
    ranks: tuple[RankPlacement, ...],
    env: dict[str, str],
    cleared: Iterable[str] = (),
) -> NodePlan:
    """Return the plan of a node that starts ``ranks``, with the settings that all launchers share.

    The user's variables win over the launcher's in ``env``; those of foreign launchers and ``cleared``
    are removed.
    """
    env = {**OUTPUT_ENV, **network_env(node), **env, **job.env}
    return NodePlan(
        host=node.host.name,
        address=node.endpoint.address,
        nic=node.endpoint.nic,
        ranks=ranks,
        world_ranks=node.world_ranks,
        env=env,
        unset=tuple(name for name in (*FOREIGN_LAUNCHERS, *cleared) if name not in env),
        workdir=job.workdir,
        setup=node.host.setup,
        container=node.host.container,
    )


def extra_arguments(job: Job, rank: int, world_size: int, local_rank: int = 0) -> tuple[str, ...]:
    """Return the words that ``--pass-args`` adds for one of the ``world_size`` processes."""
    address = job.master.endpoint.address
    host = f"[{address}]" if ":" in address else address
    pairs = option_pairs(
        job.pass_args,
        job.traits,
        job.arguments,
        {
            "local_rank": str(local_rank),
            "init_method": f"tcp://{host}:{PORT}",
            "rank": str(rank),
            "world_size": str(world_size),
        },
    )
    if job.pass_args is PassArgs.TORCH_LAUNCH:
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
