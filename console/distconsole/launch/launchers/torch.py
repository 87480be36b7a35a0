"""env:// ranks that the agents start directly."""

from __future__ import annotations

from distconsole.launch.job import (
    PORT,
    Job,
    PlacedNode,
    extra_arguments,
    node_plan,
    threads_env,
)
from distconsole.model.job import NodePlan, RankPlacement
from distconsole.model.names import Rank


def plan_nodes(job: Job) -> tuple[NodePlan, ...]:
    """Return what each node starts: one process a rank, ranks in the order of hosts.

    The variables are those of torch's ``env://`` initialisation and of torchrun, so that scripts and
    frameworks (Lightning) written for either find what they read.
    """
    return tuple(_plan_node(job, node) for node in job.nodes)


def _plan_node(job: Job, node: PlacedNode) -> NodePlan:
    env = {
        "MASTER_ADDR": job.master.endpoint.address,
        "MASTER_PORT": PORT,
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(node.slots),
        "GROUP_RANK": str(node.index),
        "GROUP_WORLD_SIZE": str(len(job.nodes)),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(job.world_size),
        "TORCHELASTIC_RUN_ID": job.run or "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        # torchrun's agent keeps no store for them: rank 0 opens it, as without torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        **threads_env(node),
    }
    ranks = tuple(_plan_rank(job, node, local) for local in range(node.slots))
    return node_plan(job, node, ranks, env)


def _plan_rank(job: Job, node: PlacedNode, local_rank: int) -> RankPlacement:
    rank = node.first_rank + local_rank
    return RankPlacement(
        rank=Rank(rank),
        local_rank=local_rank,
        argv=job.command(node.python, extra_arguments(job, rank, job.world_size, local_rank)),
        env={"RANK": str(rank), "LOCAL_RANK": str(local_rank), "ROLE_RANK": str(rank)},
    )
