"""``--dry-run`` with ``--slurm``: what would be submitted and run, before there is a node. Pure; it asks nobody.

What only Slurm knows has a name that stands for it: the job, the nodes, their addresses.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distconsole.launch.addresses import NodeFacts
from distconsole.launch.show import SHOWN_RUN_DIR, dry_run_text
from distconsole.launch.slurm.srun import Allocation, JobState, fit_hosts, step_command
from distconsole.launch.slurm.submit import UNUSED_SECONDS, Options
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import LaunchPlan
from distconsole.model.names import HostName
from distconsole.model.requests import Run

SHOWN_JOB, SHOWN_NODE, SHOWN_NIC, SHOWN_PYTHON = "JOB", "NODE", "NIC", "python3"
SHOWN_NETWORK = ipaddress.ip_network("198.18.0.0/15")
"""For tests of networks (RFC 2544): nobody's address."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a job would probably get: ``make_plan`` takes it as if it were there."""

    cluster: Cluster
    facts: Mapping[HostName, NodeFacts]
    allocation: Allocation


def expect(request: Run, asked: Options, named: Mapping[str, int | None]) -> Expected:
    """Return nodes as ``--slurm`` asks for them; ``named`` are those of ``--hosts``, with slots."""
    where = request.where
    names = list(named) or [f"{SHOWN_NODE}{index}" for index in range(asked.nodes or 1)]
    hosts = tuple(
        Host(HostName(name), slots=named.get(name), python=where.python, setup=where.setup)
        for name in names
    )
    ranks = asked.tasks_a_node or asked.gpus_a_node or 1
    facts = {
        host.name: NodeFacts(
            python=where.python or SHOWN_PYTHON,
            cpus=asked.cpus * ranks,
            interfaces=(_interface(request, index),),
            boot_id=host.name,
        )
        for index, host in enumerate(hosts)
    }
    gpus = dict.fromkeys(names, asked.gpus_a_node or 0)
    state = JobState("PENDING", nodes=tuple(names), tasks_a_node=asked.tasks_a_node, gpus=gpus)
    cluster, fitting = fit_hosts(Cluster(hosts), facts, state, request)
    return Expected(cluster, fitting, Allocation(SHOWN_JOB, held=True))


def submission_text(plan: LaunchPlan, submit: Sequence[str], asked: Options) -> str:
    """Return what would be submitted, and what would run once it has its nodes."""
    hosts = [node.host for node in plan.nodes]
    shim = [SHOWN_PYTHON, "agent.pyz", "shim", "--run", SHOWN_RUN_DIR]
    step = step_command(SHOWN_JOB, plan.run, hosts, [shim] * len(hosts))
    nodes = ""
    if hosts[0].startswith(SHOWN_NODE):
        known = str(asked.nodes) if asked.nodes else "as many as it gives, shown for one"
        nodes = f"{hosts[0]} and so on for the nodes that Slurm chooses ({known}), "
    addresses = f"{plan.nodes[0].address} and so on and {plan.nodes[0].nic} for their addresses"
    minutes = UNUSED_SECONDS // 60
    return "\n".join(
        [
            f"# submitted; the job's script waits, at most {minutes} minutes, for the words that start the run",
            shlex.join(submit),
            "",
            f"# {SHOWN_JOB} stands for the job's number, {nodes}{addresses} and interfaces",
            f"# on {hosts[0]}, as a child of that script, once the nodes are there",
            shlex.join(step),
            "",
            "# on each node, below that node's task of srun",
            dry_run_text(plan),
        ]
    )


def _interface(request: Run, index: int) -> Interface:
    nic = SHOWN_NIC if request.nic in (None, "auto") else request.nic
    assert nic is not None
    return Interface(nic, str(SHOWN_NETWORK[index + 1]), SHOWN_NETWORK.prefixlen)
