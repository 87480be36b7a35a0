"""A run's ``spec.json`` as values, validated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from distconsole_agent.contract import records
from distconsole_agent.contract.records import Positive, RecordError, Word

HOROVOD, MPI, TORCHRUN = "horovod", "mpi", "torchrun"
"""Launchers whose runs a shim treats differently."""

OWN_WORLDS = ("single", "slurm")
"""Launchers of one process a node: the script decides how many ranks that makes."""

DEFAULT_GRACE_SECONDS = 10.0
MAX_GRACE_SECONDS = 86400.0

FAILURE_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL after a first failure, if the run's grace is not shorter: the
other ranks wait in a collective that cannot end, and those that end on SIGTERM end at once."""

LOST_AFTER_SECONDS = 120.0
LOST_AFTER_BOUNDS = (5.0, 7 * 86400.0)
MAX_RESTARTS = 1000
DEFAULT_LOG_BYTES, MIN_LOG_BYTES = 1 << 30, 1 << 20


class SpecError(ValueError):
    """The spec cannot be read or does not mean a run."""


class NodeSpec(NamedTuple):
    """One node of the run: ``ranks`` are the global ranks that live there."""

    host: Word
    address: Word
    ranks: tuple[int, ...]


class RankSpec(NamedTuple):
    """One process to start here; ``env`` is added for it alone."""

    rank: int
    local_rank: int
    argv: tuple[Word, ...]
    env: Mapping[str, Word] = MappingProxyType({})


class RunSpec(NamedTuple):
    """This node's part of a run: ``spec.json`` from the console, and the agent's additions.

    ``{port}`` in a word of an argv or a value of an env is replaced by the rendezvous port at start,
    ``{run_dir}`` by the run's folder on the node; in ``workdir`` too. In doubled braces they are the
    user's own: they lose a pair.

    Attributes:
        secret: 32 random bytes (hexadecimal in the file) that prove between shims that they are of this
            run; never sent by a shim, never logged.
        nodes: In node order; the first one runs the coordinator, bound to its address.
        ranks: The processes to start on this node.
        engine_ranks: True when the processes started are the ranks; False when an engine
            (torchrun, mp.spawn) makes the ranks below them.
        grace: Seconds between SIGTERM and SIGKILL.
        lost_after: A node without a sign of life for this many seconds is lost.
        hook: The agent's: the folder that holds our ``sitecustomize``, or None to look for the newest.
        rings: The agent's: the folder of the ranks' rings, or None for ``rings`` in the run's folder.
        agent_argv: The agent's: the command that starts it again; empty leaves a dead agent dead.
        needs: Scripts that must be on this node, or nothing is started.
        launcher: As in ``LauncherName`` of the console.
        min_nodes: The run goes on with at least this many nodes; all of them by default.
        below_slurm: The shims are tasks of srun.
        max_restarts: Restarts of failed ranks.
        driver: The command of Horovod's elastic driver, which node 0 runs and which starts ranks as it
            needs them; ``{agent}`` in it stands for this program. Without one all ranks start at once.
        restart: Number of restarts so far; a shim's own.
        log_bytes: The most that the ranks' logs may take on this node; 1 GiB if null.
        container: Container of the processes, in the user's words; empty without one.
        enter: The agent's: the words that run a command in it.
        code: The tree from ``sync``, which becomes ``{run_dir}/code``; None without one.
        visible_devices, visible_variables: The agent's: the GPUs that the session chose, as one list and by variable.
        notify: Whom to send notices; kept in a file of its own (``journal/notices.py``).
    """

    run: Word
    secret: bytes
    node_index: int
    nodes: tuple[NodeSpec, ...]
    ranks: tuple[RankSpec, ...]
    workdir: Word | None = None
    setup: Word | None = None
    env: Mapping[str, Word] = MappingProxyType({})
    unset: tuple[Word, ...] = ()
    engine_ranks: bool = True
    watch: bool = True
    grace: float = DEFAULT_GRACE_SECONDS
    hook: Word | None = None
    rings: Word | None = None
    agent_argv: tuple[Word, ...] = ()
    needs: tuple[Word, ...] = ()
    launcher: Word = ""
    min_nodes: Positive | None = None
    below_slurm: bool = False
    max_restarts: int = 0
    driver: tuple[Word, ...] = ()
    restart: int = 0
    lost_after: float = LOST_AFTER_SECONDS
    log_bytes: int = DEFAULT_LOG_BYTES
    container: Word = ""
    enter: tuple[Word, ...] = ()
    name: str = ""
    world_size: int | None = None
    script: str = ""
    created: float = 0.0
    code: str | None = None
    visible_devices: str | None = None
    visible_variables: Mapping[str, str] = MappingProxyType({})
    notify: object = None
    more: Mapping[str, object] = MappingProxyType({})

    @property
    def host(self) -> str:
        return self.nodes[self.node_index].host

    @property
    def failure_grace(self) -> float:
        return min(self.grace, FAILURE_GRACE_SECONDS)

    @property
    def ranks_are_planned(self) -> bool:
        """True if the plan assigns the ranks of each node, whichever program starts them."""
        return self.engine_ranks and self.launcher != MPI and not self.driver

    @property
    def numbers_itself(self) -> bool:
        """True if a process takes its rank from the process group that it joins."""
        return self.launcher in OWN_WORLDS and "WORLD_SIZE" not in self.env

    @property
    def planned_world(self) -> int | None:
        """The planned number of ranks; None if the script or an elastic engine decides it."""
        is_open = self.numbers_itself or self.min_nodes is not None
        return None if is_open else self.world_size

    @property
    def fewest_nodes(self) -> int:
        return len(self.nodes) if self.min_nodes is None else self.min_nodes

    @property
    def may_lose_nodes(self) -> bool:
        return self.fewest_nodes < len(self.nodes)


def read_spec(path: str) -> RunSpec:
    """Return the spec at ``path``. Raises OSError if it cannot be read, SpecError if it means nothing."""
    with open(path, "rb") as file:
        text = file.read()
    try:
        return parse_spec(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from None


def parse_spec(raw: object) -> RunSpec:
    """Return the object of a ``spec.json`` as a spec, its amounts within their bounds; raises SpecError with the key."""
    try:
        spec = records.read(RunSpec, raw)
    except RecordError as error:
        raise SpecError(f"of the spec {error}") from None
    if not 0 <= spec.node_index < len(spec.nodes):
        raise SpecError(f"node_index {spec.node_index} is not one of {len(spec.nodes)} nodes")
    for rank in spec.ranks:
        if not rank.argv or not rank.argv[0]:
            raise SpecError(f"rank {rank.rank} has no command")
    for name in (name for env in (spec.env, *(rank.env for rank in spec.ranks)) for name in env):
        if not name or "=" in name or "\0" in name:
            raise SpecError(f"{name!r} cannot name a variable")
    least, most = LOST_AFTER_BOUNDS
    return spec._replace(
        setup=spec.setup or None,
        workdir=spec.workdir or None,
        rings=spec.rings or None,
        hook=spec.hook or None,
        grace=clamp_grace(spec.grace),
        max_restarts=min(max(spec.max_restarts, 0), MAX_RESTARTS),
        lost_after=min(max(spec.lost_after, least), most),
        log_bytes=max(spec.log_bytes or DEFAULT_LOG_BYTES, MIN_LOG_BYTES),
    )


def clamp_grace(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_GRACE_SECONDS)
