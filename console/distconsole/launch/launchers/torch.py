"""env:// ranks that the agents start directly, and a torchrun on every node."""

from __future__ import annotations

from distconsole.launch.choose import starter_of
from distconsole.launch.plan import (
    PORT,
    RANK_NAMES,
    RUN_DIR,
    NodePlan,
    Plan,
    RankPlacement,
    extra_arguments,
    fill_node,
    threads_env,
)
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
    'if [ -d "${DISTCONSOLE_RUN_DIR-}/logs" ]; then distconsole_log="$DISTCONSOLE_RUN_DIR/pipes/rank-$RANK"; '
    '[ -p "$distconsole_log.err" ] || distconsole_log="$DISTCONSOLE_RUN_DIR/logs/rank-$RANK"; '
    'exec >>"$distconsole_log.out" 2>>"$distconsole_log.err"; fi; exec "$@"'
)
"""Gives each rank the pipes of ranks without an engine, which become log files, in the same process.

torchrun's own ``--tee`` puts its prefix into the middle of lines, turns ``\\r`` into ``\\n`` and
mixes the ranks. Without a run of ours (a pasted ``--dry-run``) the ranks print as usual.
"""


OWN_STORE = """\
export MASTER_ADDR="${{MASTER_ADDR#*/}}"
[ "$MASTER_ADDR" != '{address}' ] || export MASTER_PORT=$(({port} + 1))
"""
"""Has the ranks of every round meet at the first node, at a port that its shim keeps for them.

torchrun lets the ranks of all rounds use one store (before torch 2.4 and with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE: a port that may be taken before its use), so that a round
reads entries of an earlier one, and keeps the address of the first round's first node
(dynamic_rendezvous.py of torch 2.13).
"""


NEW_ROUND = """\
if [ "$LOCAL_RANK" = 0 ] && [ -d "${DISTCONSOLE_ERRORS-}" ]; then
mkdir -p "$DISTCONSOLE_ERRORS/past" && mv "$DISTCONSOLE_ERRORS"/*.json "$DISTCONSOLE_ERRORS/past"
fi 2>/dev/null
"""
"""Puts aside the error files of the round before: torchrun has dealt with them."""

OWN_RESTARTS = (
    "export TORCHELASTIC_RESTART_COUNT=${{DISTCONSOLE_RESTART:-0}} "
    "TORCHELASTIC_MAX_RESTARTS={allowed}\n"
)
"""Gives ranks the variables of a restarting torchrun: here the shims restart every torchrun together.

By itself a static torchrun restarts without the other nodes, in the store of the round before, where
ranks find addresses of dead ranks (static_tcp_rendezvous.py of torch 2.13), also on one node.
"""

JOIN_SECONDS = 600
LAST_CALL_SECONDS = 10
STORE_SECONDS = 300

BEAT_SECONDS = 3
"""Seconds of a dynamic rendezvous: for enough nodes to come; for further ones after that; for the
first node's torchrun to begin, including its import of torch; between two heartbeats of a node,
lost after three missing ones."""


def plan_node(plan: Plan, node: NodePlan) -> NodePlan:
    """Return a node's plan without torchrun: one process a rank, ranks in the order of hosts.

    The variables are those of torch's ``env://`` initialisation and of torchrun, so that scripts and
    frameworks (Lightning) written for either work.
    """
    env = {
        "MASTER_ADDR": plan.master.endpoint.address,
        "MASTER_PORT": PORT,
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(node.slots),
        "GROUP_RANK": str(node.index),
        "GROUP_WORLD_SIZE": str(len(plan.nodes)),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "TORCHELASTIC_RUN_ID": plan.run or "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": str(plan.request.max_restarts),
        # torchrun's agent keeps no store for them: rank 0 opens it, as without torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        **threads_env(node),
    }
    if "deepspeed" in starter_of(plan.request):  # it counts a node's processors by the last
        env |= {"CROSS_RANK": str(node.index), "CROSS_SIZE": str(len(plan.nodes))}
        env["LOCAL_SIZE"] = str(node.slots)
    ranks = tuple(_plan_rank(plan, node, local) for local in range(node.slots))
    return fill_node(plan, node, ranks, env)


def _plan_rank(plan: Plan, node: NodePlan, local_rank: int) -> RankPlacement:
    rank = node.first_rank + local_rank
    return RankPlacement(
        rank=Rank(rank),
        local_rank=local_rank,
        argv=plan.command(node.python, extra_arguments(plan, rank, plan.world_size, local_rank)),
        env={"RANK": str(rank), "LOCAL_RANK": str(local_rank), "ROLE_RANK": str(rank)},
    )


def plan_torchrun(plan: Plan, node: NodePlan) -> NodePlan:
    """Return a node's plan: one torchrun.

    Its rendezvous is static, so that ranks follow the order of hosts; dynamic if the job may lose
    nodes: torchrun then restarts the ranks by itself and numbers them again in every round.
    """
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if plan.min_nodes is not None else {}
    cleared = (*RANK_NAMES, "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *PET_NAMES)
    words = (
        *(node.python, "-m", "torch.distributed.run"),
        *_rendezvous(plan, node),
        *("--rdzv-id", plan.run or "none", "--nproc-per-node", str(node.slots)),
        *("--monitor-interval", "0.1"),
        # Without a folder it makes one in /tmp and leaves it there.
        *("--log-dir", f"{RUN_DIR}/torchrun"),
        *("--no-python", "sh", "-c", _rank_script(plan), "sh", *plan.command(node.python)),
    )
    engine = RankPlacement(rank=Rank(node.index), local_rank=0, argv=words, env={})
    return fill_node(plan, node, (engine,), {**threads_env(node), **own_store}, cleared)


def _rendezvous(plan: Plan, node: NodePlan) -> tuple[str, ...]:
    address = plan.master.endpoint.address
    if plan.min_nodes is None:
        return (
            *("--nnodes", str(len(plan.nodes)), "--node-rank", str(node.index)),
            *("--rdzv-backend", "static", "--master-addr", address, "--master-port", PORT),
            *("--local-addr", node.endpoint.address, "--max-restarts", "0"),
        )
    host = f"[{address}]" if ":" in address else address
    conf = {
        "is_host": int(node is plan.master),
        "join_timeout": JOIN_SECONDS,
        "last_call_timeout": LAST_CALL_SECONDS,
        "read_timeout": STORE_SECONDS,
        "keep_alive_interval": BEAT_SECONDS,
    }
    return (
        *("--nnodes", f"{plan.min_nodes}:{len(plan.nodes)}"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{PORT}"),
        *("--rdzv-conf", ",".join(f"{name}={value}" for name, value in conf.items())),
        # Ranks follow the order of these texts: with its number before it, that of the hosts.
        *("--local-addr", f"{node.index:05d}/{node.endpoint.address}"),
        *("--max-restarts", str(plan.request.max_restarts)),
    )


def _rank_script(plan: Plan) -> str:
    if plan.min_nodes is None:
        allowed = plan.request.max_restarts
        counts = OWN_RESTARTS.format(allowed=allowed) if allowed else ""
        return counts + OWN_LOGS
    address = plan.master.endpoint.address
    return NEW_ROUND + OWN_STORE.format(address=address, port=PORT) + OWN_LOGS
