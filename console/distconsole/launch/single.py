"""One process a node, for DataParallel and for scripts that spawn their own ranks. A pure plan."""

from __future__ import annotations

from distconsole.launch.job import (
    FOREIGN_LAUNCHERS,
    OUTPUT_ENV,
    PORT,
    RANK_NAMES,
    Job,
    PlacedNode,
    network_env,
)
from distconsole.model.job import NodePlan, RankPlacement
from distconsole.model.names import Rank


def plan_nodes(job: Job) -> tuple[NodePlan, ...]:
    """Return what each node starts.

    ``RANK`` and ``WORLD_SIZE`` are left out on purpose: libraries that find them join a process
    group that nobody opens. A script gets its place by ``NODE_RANK``, ``NNODES``, ``MASTER_ADDR``
    and ``MASTER_PORT``, or by ``{node_rank}``, ``{nnodes}``, ``{master_addr}`` and
    ``{master_port}`` in its arguments.
    """
    return tuple(_node(job, node) for node in job.nodes)


def _node(job: Job, node: PlacedNode) -> NodePlan:
    place = {
        "NODE_RANK": str(node.index),
        "NNODES": str(len(job.nodes)),
        "MASTER_ADDR": job.master.endpoint.address,
        "MASTER_PORT": PORT,
    }
    env = {**place, **OUTPUT_ENV, **network_env(node), **job.env}
    words = job.command(node.python)
    fixed = len(words) - len(job.arguments)
    argv = (*words[:fixed], *(_filled(word, place) for word in words[fixed:]))
    return NodePlan(
        host=node.host.name,
        address=node.endpoint.address,
        nic=node.endpoint.nic,
        ranks=(RankPlacement(rank=Rank(node.index), local_rank=0, argv=argv, env={}),),
        world_ranks=(Rank(node.index),),
        env=env,
        unset=tuple(name for name in (*FOREIGN_LAUNCHERS, *RANK_NAMES) if name not in env),
        workdir=job.workdir,
        setup=node.host.setup,
    )


def _filled(word: str, place: dict[str, str]) -> str:
    for name, value in place.items():
        word = word.replace("{" + name.lower() + "}", value)
    return word
