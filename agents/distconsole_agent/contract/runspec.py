"""A run's ``spec.json`` as values, validated."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

HOROVOD, MPI, TORCHRUN = "horovod", "mpi", "torchrun"
"""Launchers whose runs a shim treats differently."""

DEFAULT_GRACE_SECONDS = 10.0
MAX_GRACE_SECONDS = 86400.0

FAILURE_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL after a first failure, if the run's grace is not shorter: the
other ranks wait in a collective that cannot end, and those that end on SIGTERM end at once."""

LOST_AFTER_SECONDS = 120.0
LOST_AFTER_BOUNDS = (5.0, 7 * 86400.0)
MAX_RESTARTS = 1000
DEFAULT_LOG_BYTES, MIN_LOG_BYTES = 1 << 30, 1 << 20

MAX_NODES = 1 << 31
"""Stands for all nodes of a run."""


class SpecError(Exception):
    """The spec cannot be read or does not mean a run."""


class NodeSpec(NamedTuple):
    """One node of the run: ``ranks`` are the global ranks that live there."""

    host: str
    address: str
    ranks: tuple[int, ...]


class RankSpec(NamedTuple):
    """One process to start here; ``env`` is added for it alone."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]


class RunSpec(NamedTuple):
    """This node's part of a run: ``spec.json`` from the console, and the agent's additions.

    ``{port}`` in a word of an argv or a value of an env is replaced by the rendezvous port at start,
    ``{run_dir}`` by the run's folder on the node; in ``workdir`` too. In doubled braces they are the
    user's own: they lose a pair. The file also has ``name``, ``world_size``, ``script``, ``created``,
    and ``code``: the tree from ``sync``, which becomes ``{run_dir}/code``, or null. The console's
    ``notify`` is kept in a file of its own (``journal/notices.py``).

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
        restart: Number of restarts so far; not of ``spec.json``.
        log_bytes: The most that the ranks' logs may take on this node; 1 GiB if null.
        container: Container of the processes, in the user's words; empty without one.
        enter: The agent's: the words that run a command in it.
    """

    run: str
    secret: bytes
    node_index: int
    nodes: tuple[NodeSpec, ...]
    workdir: str | None
    setup: str | None
    env: dict[str, str]
    unset: tuple[str, ...]
    ranks: tuple[RankSpec, ...]
    engine_ranks: bool
    watch: bool
    grace: float
    hook: str | None
    rings: str | None
    agent_argv: tuple[str, ...]
    needs: tuple[str, ...] = ()
    launcher: str = ""
    min_nodes: int = MAX_NODES
    below_slurm: bool = False
    max_restarts: int = 0
    driver: tuple[str, ...] = ()
    restart: int = 0
    lost_after: float = LOST_AFTER_SECONDS
    log_bytes: int = DEFAULT_LOG_BYTES
    container: str = ""
    enter: tuple[str, ...] = ()

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
    def may_lose_nodes(self) -> bool:
        return self.min_nodes < len(self.nodes)


def read_spec(path: str) -> RunSpec:
    """Return the spec at ``path``. Raises SpecError if it cannot be read or means nothing."""
    try:
        with open(path, "rb") as file:
            raw = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from None
    return parse_spec(raw)


def parse_spec(raw: object) -> RunSpec:
    """Return the object of a ``spec.json`` as a spec, or raise SpecError with the key."""
    if not isinstance(raw, dict):
        raise SpecError("the spec is not an object")
    try:
        return _parse(raw)
    except KeyError as error:
        raise SpecError(f"the spec lacks {error}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SpecError(f"the spec means nothing: {error}") from None


def _parse(raw: dict[str, Any]) -> RunSpec:
    nodes = tuple(
        NodeSpec(_text(node["host"]), str(node["address"] or ""), tuple(map(int, node["ranks"])))
        for node in raw["nodes"]
    )
    index = int(raw["node_index"])
    if not 0 <= index < len(nodes):
        raise SpecError(f"node_index {index} is not one of {len(nodes)} nodes")
    grace = raw.get("grace")
    return RunSpec(
        run=_text(raw["run"]),
        secret=bytes.fromhex(raw["secret"]),
        node_index=index,
        nodes=nodes,
        workdir=raw.get("workdir") or None,
        setup=raw.get("setup") or None,
        env=_environment(raw.get("env") or {}),
        unset=tuple(_text(name) for name in raw.get("unset") or ()),
        ranks=tuple(_rank(rank) for rank in raw["ranks"]),
        engine_ranks=raw.get("engine_ranks") is not False,
        watch=bool(raw.get("watch", True)),
        grace=clamp_grace(DEFAULT_GRACE_SECONDS if grace is None else grace),
        hook=raw.get("hook") or None,
        rings=raw.get("rings") or None,
        agent_argv=tuple(_text(word) for word in raw.get("agent_argv") or ()),
        needs=tuple(_text(path) for path in raw.get("needs") or ()),
        launcher=_text(raw.get("launcher") or ""),
        min_nodes=_read_min_nodes(raw.get("min_nodes")),
        below_slurm=raw.get("below_slurm") is True,
        max_restarts=min(max(int(raw.get("max_restarts") or 0), 0), MAX_RESTARTS),
        driver=tuple(_text(word) for word in raw.get("driver") or ()),
        lost_after=_clamp(raw.get("lost_after", LOST_AFTER_SECONDS), *LOST_AFTER_BOUNDS),
        log_bytes=max(int(raw.get("log_bytes") or DEFAULT_LOG_BYTES), MIN_LOG_BYTES),
        container=_text(raw.get("container") or ""),
        enter=tuple(_text(word) for word in raw.get("enter") or ()),
    )


def _read_min_nodes(wanted: object) -> int:
    if wanted is None:
        return MAX_NODES
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ValueError(f"min_nodes is {wanted!r}")
    return wanted


def clamp_grace(seconds: object) -> float:
    """Return a grace period in seconds, between 0 and a day, or raise ValueError."""
    return _clamp(seconds, 0.0, MAX_GRACE_SECONDS)


def _clamp(seconds: object, least: float, most: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds != seconds:
        raise ValueError(f"{seconds!r} is not a number of seconds")
    return min(max(float(seconds), least), most)


def _rank(raw: dict[str, Any]) -> RankSpec:
    argv = tuple(_text(word) for word in raw["argv"])
    if not argv or not argv[0]:
        raise SpecError(f"rank {raw['rank']} has no command")
    env = _environment(raw.get("env") or {})
    return RankSpec(int(raw["rank"]), int(raw["local_rank"]), argv, env)


def _environment(raw: dict[str, Any]) -> dict[str, str]:
    for name in raw:
        if not name or "=" in name or "\0" in name:
            raise SpecError(f"{name!r} cannot name a variable")
    return {name: _text(value) for name, value in raw.items()}


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise SpecError(f"{value!r} is not text")
    return os.fspath(value)
