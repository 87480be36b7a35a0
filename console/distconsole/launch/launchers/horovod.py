"""Horovod's ranks over Gloo, started by the agents without horovodrun or ssh between; elastic ones as its driver asks."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from distconsole.errors import PlanError
from distconsole.launch.job import (
    MPI_NAMES,
    PORT,
    RANK_NAMES,
    Job,
    PlacedNode,
    node_plan,
    threads_env,
)
from distconsole.model.job import NodePlan, RankPlacement
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

AGENT = "{agent}"
"""Placeholder of our program on the node, in the words of an interpreter."""

MAX_ELASTIC_RANKS = 400
"""Each holds a connection to the store while all restart together."""


def plan_nodes(job: Job) -> tuple[NodePlan, ...]:
    """Return each node's plan: one process a rank, with the variables of horovodrun's workers.

    ``{port}`` is that of the key-value store in the first node's shim. Each host gets the name of
    its own interface: the names may differ.
    """
    return tuple(_plan_node(job, node) for node in job.nodes)


def plan_elastic_nodes(job: Job) -> tuple[NodePlan, ...]:
    """Return each node's plan under Horovod's elastic driver, which runs on the first node.

    The ranks' places are the driver's with all hosts alive. Raises PlanError if more ranks would
    restart together than the store takes.
    """
    if job.world_size > MAX_ELASTIC_RANKS:
        raise PlanError(
            f"{job.world_size} elastic ranks are more than {MAX_ELASTIC_RANKS}",
            "--env HOROVOD_ELASTIC=0 starts them so that the first failure ends the run",
        )
    elastic = {
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(ELASTIC_TIMEOUT_SECONDS),
    }
    plans = plan_nodes(replace(job, env={**elastic, **job.env}))
    driver = (job.master.python, AGENT, "elastic-driver")
    return (replace(plans[0], driver=driver), *plans[1:])


def elastic_note(job: Job, fewest: int) -> str:
    """Return the note about elastic ranks for the user."""
    left = "one host is" if fewest == 1 else f"{fewest} hosts are"
    return (
        f"elastic: Horovod's own driver on {job.master.host.name} says which ranks are started, and "
        f"goes on without hosts that fail while {left} left"
    )


def _plan_node(job: Job, node: PlacedNode) -> NodePlan:
    env = {
        "HOROVOD_SIZE": str(job.world_size),
        "HOROVOD_LOCAL_SIZE": str(node.slots),
        "HOROVOD_HOSTNAME": _scope(node),
        # Set both: else a build with MPI calls MPI and dies (segfault, exit code 5).
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": job.master.endpoint.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": PORT,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_SECONDS),
        **({"HOROVOD_GLOO_IFACE": node.endpoint.nic} if node.endpoint.nic else {}),
        **threads_env(node),
    }
    ranks = tuple(_plan_rank(job, node, local) for local in range(node.slots))
    plan = node_plan(job, node, ranks, env, (*RANK_NAMES, *MPI_NAMES, *ELASTIC_NAMES))
    return replace(plan, beside=_rendezvous(job)) if node is job.master else plan


def _rendezvous(job: Job) -> str:
    scopes = {"global": job.world_size}
    for node in job.nodes:
        scopes[f"local_{_scope(node)}"] = node.slots
        for local_rank in range(node.slots):
            scopes[f"cross_{local_rank}"] = len(_nodes_with(job, local_rank))
    code = RENDEZVOUS.format(address=job.master.endpoint.address, port=PORT, scopes=scopes)
    return f"{shlex.quote(job.master.python)} -c {shlex.quote(code)}"


def _plan_rank(job: Job, node: PlacedNode, local_rank: int) -> RankPlacement:
    sharing = _nodes_with(job, local_rank)
    rank = node.first_rank + local_rank
    return RankPlacement(
        rank=Rank(rank),
        local_rank=local_rank,
        argv=job.command(node.python),
        env={
            "HOROVOD_RANK": str(rank),
            "HOROVOD_LOCAL_RANK": str(local_rank),
            # Ranks with the same local rank are a group of their own across the hosts.
            "HOROVOD_CROSS_RANK": str(sharing.index(node)),
            "HOROVOD_CROSS_SIZE": str(len(sharing)),
        },
    )


def _nodes_with(job: Job, local_rank: int) -> list[PlacedNode]:
    return [node for node in job.nodes if node.slots > local_rank]


def _scope(node: PlacedNode) -> str:
    """Return the host's name in the ranks' store requests, fit for an HTTP path."""
    return f"{node.index}-{re.sub(r'[^A-Za-z0-9.-]+', '-', node.host.name)}"
