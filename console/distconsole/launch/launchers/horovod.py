"""Horovod's ranks over Gloo, started by the agents without horovodrun or ssh between; elastic ones as its driver asks."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from distconsole.errors import PlanError
from distconsole.launch.plan import (
    AGENT,
    MPI_NAMES,
    PORT,
    RANK_NAMES,
    NodePlan,
    Plan,
    RankPlacement,
    fill_node,
    threads_env,
)
from distconsole.model.names import Rank

ELASTIC_NAMES = ("HOROVOD_ELASTIC", "HOROVOD_GLOO_TIMEOUT_SECONDS")
"""Removed if inherited: the first makes ranks look for a driver that may not exist."""

RENDEZVOUS = (
    "import horovod.runner.http.http_server as h; "
    "s = h.RendezvousHTTPServer(('{address}', {port}), h.RendezvousHandler, 0); "
    "s.scope_size.update({scopes}); s.serve_forever()"
)
"""Horovod's own key-value store, for people who start the ranks by hand."""

GLOO_TIMEOUT_SECONDS = 120
"""The ranks' wait for each other; Horovod's default of 30 s is short if torch comes from NFS."""

ELASTIC_TIMEOUT_SECONDS = 30
"""The same for elastic ranks, Horovod's default: most ranks of a larger job wait this long after a
failure, because only some were connected to the rank that died."""

MAX_ELASTIC_RANKS = 400
"""Each holds a connection to the store while all restart together."""


def plan_nodes(plan: Plan) -> tuple[NodePlan, ...]:
    """Return each node's plan: one process a rank, with the variables of horovodrun's workers.

    ``{port}`` is that of the key-value store in the first node's shim. Each host gets the name of
    its own interface: the names may differ.
    """
    return tuple(_plan_node(plan, node) for node in plan.nodes)


def plan_elastic_nodes(plan: Plan) -> tuple[NodePlan, ...]:
    """Return each node's plan under Horovod's elastic driver, which runs on the first node.

    The ranks' places are the driver's with all hosts alive. Raises PlanError if more ranks would
    restart together than the store takes.
    """
    if plan.world_size > MAX_ELASTIC_RANKS:
        raise PlanError(
            f"{plan.world_size} elastic ranks are more than {MAX_ELASTIC_RANKS}",
            "--env HOROVOD_ELASTIC=0 starts them so that the first failure ends the run",
        )
    elastic = {
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(ELASTIC_TIMEOUT_SECONDS),
    }
    first, *others = plan_nodes(replace(plan, env={**elastic, **plan.env}))
    return (replace(first, driver=(first.python, AGENT, "elastic-driver")), *others)


def elastic_note(plan: Plan) -> str:
    """Return the note about elastic ranks for the user."""
    left = "one host is" if plan.min_nodes == 1 else f"{plan.min_nodes} hosts are"
    return (
        f"elastic: Horovod's own driver on {plan.master.name} says which ranks are started, and "
        f"goes on without hosts that fail while {left} left"
    )


def _plan_node(plan: Plan, node: NodePlan) -> NodePlan:
    env = {
        "HOROVOD_SIZE": str(plan.world_size),
        "HOROVOD_LOCAL_SIZE": str(node.slots),
        "HOROVOD_HOSTNAME": _scope(node),
        # Set both: else a build with MPI calls MPI and dies (segfault, exit code 5).
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": plan.master.endpoint.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": PORT,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_SECONDS),
        **({"HOROVOD_GLOO_IFACE": node.endpoint.nic} if node.endpoint.nic else {}),
        **threads_env(node),
    }
    ranks = tuple(_plan_rank(plan, node, local) for local in range(node.slots))
    filled = fill_node(plan, node, ranks, env, (*RANK_NAMES, *MPI_NAMES, *ELASTIC_NAMES))
    return replace(filled, beside=_rendezvous(plan)) if node is plan.master else filled


def _rendezvous(plan: Plan) -> str:
    scopes = {"global": plan.world_size}
    for node in plan.nodes:
        scopes[f"local_{_scope(node)}"] = node.slots
        for local_rank in range(node.slots):
            scopes[f"cross_{local_rank}"] = len(_nodes_with(plan, local_rank))
    code = RENDEZVOUS.format(address=plan.master.endpoint.address, port=PORT, scopes=scopes)
    return f"{shlex.quote(plan.master.python)} -c {shlex.quote(code)}"


def _plan_rank(plan: Plan, node: NodePlan, local_rank: int) -> RankPlacement:
    sharing = _nodes_with(plan, local_rank)
    rank = node.first_rank + local_rank
    return RankPlacement(
        rank=Rank(rank),
        local_rank=local_rank,
        argv=plan.command(node.python),
        env={
            "HOROVOD_RANK": str(rank),
            "HOROVOD_LOCAL_RANK": str(local_rank),
            # Ranks with the same local rank are a group of their own across the hosts.
            "HOROVOD_CROSS_RANK": str(sharing.index(node)),
            "HOROVOD_CROSS_SIZE": str(len(sharing)),
        },
    )


def _nodes_with(plan: Plan, local_rank: int) -> list[NodePlan]:
    return [node for node in plan.nodes if node.slots > local_rank]


def _scope(node: NodePlan) -> str:
    """Return the host's name in the ranks' store requests, fit for an HTTP path."""
    return f"{node.index}-{re.sub(r'[^A-Za-z0-9.-]+', '-', node.name)}"
