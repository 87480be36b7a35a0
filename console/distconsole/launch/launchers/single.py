"""One process a node, for DataParallel and for scripts that spawn their own ranks."""

from __future__ import annotations

from dataclasses import replace

from distconsole.launch.plan import (
    PORT,
    RANK_NAMES,
    NodePlan,
    Plan,
    RankPlacement,
    extra_arguments,
    fill_node,
)
from distconsole.model.names import Rank


def plan_node(plan: Plan, node: NodePlan) -> NodePlan:
    """Return one node's plan: a single process.

    ``RANK`` and ``WORLD_SIZE`` are left out on purpose: libraries that find them join a process
    group that no rank opens. A script gets its place by ``NODE_RANK``, ``NNODES``, ``MASTER_ADDR``
    and ``MASTER_PORT``, or by ``{node_rank}``, ``{nnodes}``, ``{master_addr}`` and
    ``{master_port}`` in its arguments; with ``--pass-args init-method`` its arguments say so.
    """
    place = {
        "NODE_RANK": str(node.index),
        "NNODES": str(len(plan.nodes)),
        "MASTER_ADDR": plan.master.endpoint.address,
        "MASTER_PORT": PORT,
    }
    arguments = tuple(fill_place(word, place) for word in plan.arguments)
    words = replace(plan, arguments=arguments)
    argv = words.command(node.python, extra_arguments(plan, node.index, len(plan.nodes)))
    process = RankPlacement(rank=Rank(node.index), local_rank=0, argv=argv, env={})
    return fill_node(plan, node, (process,), place, RANK_NAMES)


def fill_place(word: str, place: dict[str, str]) -> str:
    """Return an argument with ``{node_rank}`` and the like filled in from ``place``."""
    for name, value in place.items():
        word = word.replace("{" + name.lower() + "}", value)
    return word
