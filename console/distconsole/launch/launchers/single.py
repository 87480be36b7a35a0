"""One process a node, for DataParallel and for scripts that spawn their own ranks. A pure plan."""

from __future__ import annotations

from dataclasses import replace

from distconsole.launch.job import (
    OUTPUT_ENV,
    PORT,
    RANK_NAMES,
    Job,
    Place,
    PlacedNode,
    added_arguments,
    network_env,
    node_plan,
)
from distconsole.model.job import NodePlan, RankPlacement
from distconsole.model.names import Rank


def plan_nodes(job: Job) -> tuple[NodePlan, ...]:
    """Return what each node starts.

    ``RANK`` and ``WORLD_SIZE`` are left out on purpose: libraries that find them join a process
    group that nobody opens. A script gets its place by ``NODE_RANK``, ``NNODES``, ``MASTER_ADDR``
    and ``MASTER_PORT``, or by ``{node_rank}``, ``{nnodes}``, ``{master_addr}`` and
    ``{master_port}`` in its arguments; with ``--pass-args init-method`` its arguments say so.
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
    words = job.command(node.python, added_arguments(job, Place(node.index, len(job.nodes))))
    fixed = len(words) - len(job.arguments)
    argv = (*words[:fixed], *(_filled(word, place) for word in words[fixed:]))
    rank = Rank(node.index)
    process = RankPlacement(rank=rank, local_rank=0, argv=argv, env={})
    return replace(node_plan(job, node, (process,), env, RANK_NAMES), world_ranks=(rank,))


def _filled(word: str, place: dict[str, str]) -> str:
    for name, value in place.items():
        word = word.replace("{" + name.lower() + "}", value)
    return word
