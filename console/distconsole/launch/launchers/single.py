"""One process a node, for DataParallel and for scripts that spawn their own ranks."""

from __future__ import annotations

from dataclasses import replace

from distconsole.launch.job import PORT, RANK_NAMES, Job, PlacedNode, extra_arguments, node_plan
from distconsole.model.job import NodePlan, RankPlacement
from distconsole.model.names import Rank


def plan_node(job: Job, node: PlacedNode) -> NodePlan:
    """Return one node's plan: a single process.

    ``RANK`` and ``WORLD_SIZE`` are left out on purpose: libraries that find them join a process
    group that no rank opens. A script gets its place by ``NODE_RANK``, ``NNODES``, ``MASTER_ADDR``
    and ``MASTER_PORT``, or by ``{node_rank}``, ``{nnodes}``, ``{master_addr}`` and
    ``{master_port}`` in its arguments; with ``--pass-args init-method`` its arguments say so.
    """
    place = {
        "NODE_RANK": str(node.index),
        "NNODES": str(len(job.nodes)),
        "MASTER_ADDR": job.master.endpoint.address,
        "MASTER_PORT": PORT,
    }
    arguments = tuple(fill_place(word, place) for word in job.arguments)
    words = replace(job, arguments=arguments)
    argv = words.command(node.python, extra_arguments(job, node.index, len(job.nodes)))
    rank = Rank(node.index)
    process = RankPlacement(rank=rank, local_rank=0, argv=argv, env={})
    return replace(node_plan(job, node, (process,), place, RANK_NAMES), world_ranks=(rank,))


def fill_place(word: str, place: dict[str, str]) -> str:
    """Return an argument with ``{node_rank}`` and the like filled in from ``place``."""
    for name, value in place.items():
        word = word.replace("{" + name.lower() + "}", value)
    return word
