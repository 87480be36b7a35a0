"""torchrun on every node, for jobs that restart their ranks. A pure plan."""

from __future__ import annotations

from distconsole.launch.job import (
    OUTPUT_ENV,
    PORT,
    RANK_NAMES,
    RUN_DIR,
    Job,
    PlacedNode,
    network_env,
    node_plan,
    threads_env,
)
from distconsole.model.job import NodePlan, RankPlacement
from distconsole.model.names import Rank

PET_NAMES = tuple(
    f"PET_{name}"
    for name in (
        *("NNODES", "NPROC_PER_NODE", "RDZV_BACKEND", "RDZV_ENDPOINT", "RDZV_ID", "RDZV_CONF"),
        *("STANDALONE", "MAX_RESTARTS", "MONITOR_INTERVAL", "START_METHOD", "ROLE", "MODULE"),
        *("NO_PYTHON", "RUN_PATH", "LOG_DIR", "REDIRECTS", "TEE", "NODE_RANK", "MASTER_ADDR"),
        *("MASTER_PORT", "LOCAL_ADDR", "LOCAL_RANKS_FILTER", "LOGS_SPECS", "NUMA_BINDING"),
    )
)
"""torchrun takes the default of every flag from such a variable (torch/distributed/run.py)."""

OWN_LOGS = (
    'if [ -d "${DISTCONSOLE_RUN_DIR-}/logs" ]; then '
    'exec >>"$DISTCONSOLE_RUN_DIR/logs/rank-$RANK.out" 2>>"$DISTCONSOLE_RUN_DIR/logs/rank-$RANK.err"; '
    'fi; exec "$@"'
)
"""Gives each rank the log files that ranks without an engine have, in the same process.

torchrun's own ``--tee`` puts its prefix into the middle of lines, turns ``\\r`` into ``\\n`` and
mixes the ranks. Where there is no run of ours (a pasted ``--dry-run``) they print as usual.
"""


def plan_nodes(job: Job) -> tuple[NodePlan, ...]:
    """Return what each node starts: one torchrun with static rendezvous.

    Static, so that the ranks are known beforehand and follow the order of hosts; the dynamic
    rendezvous sorts its nodes by address as text.
    """
    return tuple(_node(job, node) for node in job.nodes)


def _node(job: Job, node: PlacedNode) -> NodePlan:
    env = {**OUTPUT_ENV, **threads_env(node), **network_env(node), **job.env}
    cleared = (*RANK_NAMES, "MASTER_ADDR", "MASTER_PORT", *PET_NAMES)
    engine = RankPlacement(
        rank=Rank(node.index), local_rank=0, argv=torchrun_command(job, node), env={}
    )
    return node_plan(job, node, (engine,), env, cleared)


def torchrun_command(job: Job, node: PlacedNode) -> tuple[str, ...]:
    """Return the words of one node's torchrun."""
    return (
        *(node.python, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(job.nodes)), "--node-rank", str(node.index)),
        *("--nproc-per-node", str(node.slots)),
        *("--rdzv-backend", "static", "--rdzv-id", job.run or "none"),
        *("--master-addr", job.master.endpoint.address, "--master-port", PORT),
        *("--local-addr", node.endpoint.address),
        *("--max-restarts", str(job.max_restarts), "--monitor-interval", "0.1"),
        # Without a folder it makes one in /tmp and leaves it there.
        *("--log-dir", f"{RUN_DIR}/torchrun"),
        *("--no-python", "sh", "-c", OWN_LOGS, "sh", *job.command(node.python)),
    )
