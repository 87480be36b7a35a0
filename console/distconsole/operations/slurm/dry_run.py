"""``run --slurm --dry-run``: what would be submitted and run, before there is a node.

What only Slurm knows has a name that stands for it: the job, the nodes, their addresses.
"""

from __future__ import annotations

import ipaddress
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence

from distconsole.launch.addresses import NodeFacts
from distconsole.launch.choose import command_lines
from distconsole.launch.plan import LaunchHosts
from distconsole.launch.show import SHOWN_RUN_DIR, dry_run_text, plan_event
from distconsole.launch.slurm.srun import Allocation, JobState, fit_hosts, step_command
from distconsole.launch.slurm.submit import UNUSED_SECONDS, Options, read_options, words_of
from distconsole.model.addresses import Interface
from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import Event, TextMade
from distconsole.model.job import LaunchPlan
from distconsole.model.names import HostName
from distconsole.model.requests import Run
from distconsole.operations.launch.planner import plan_launch, read_launch
from distconsole.operations.sessions import narrate
from distconsole.operations.slurm.job import prepare_submission

SHOWN_JOB, SHOWN_NODE, SHOWN_NIC, SHOWN_PYTHON = "JOB", "NODE", "NIC", "python3"
SHOWN_NETWORK = ipaddress.ip_network("198.18.0.0/15")
"""Reserved for tests of networks (RFC 2544)."""


def show_submission(request: Run, exclude: Sequence[str]) -> Iterator[Event]:
    """Yield the plan, with names that stand for what only Slurm knows, and its text.

    Raises ConsoleError as submitting it would, as far as that can be seen from here.
    """
    run, named, submit = prepare_submission(request, exclude)
    options = read_options(words_of(request.slurm))
    plan = plan_launch(read_launch(request), _expect_hosts(request, options, named, run))
    yield plan_event(plan, time.time())
    yield from narrate(plan.notes)
    if not request.json:
        said = command_lines(request.command)
        yield TextMade(text="\n".join([*said, _submission_text(plan, submit, options)]))


def _expect_hosts(
    request: Run, options: Options, named: Mapping[str, int | None], run: str
) -> LaunchHosts:
    """Return nodes as ``--slurm`` asks for them; ``named`` are those of ``--hosts``, with slots."""
    where = request.where
    names = list(named) or [f"{SHOWN_NODE}{index}" for index in range(options.nodes or 1)]
    hosts = tuple(
        Host(
            HostName(name),
            slots=named.get(name),
            python=where.python,
            setup=where.setup,
            container=where.container,
        )
        for name in names
    )
    ranks = options.tasks_a_node or options.gpus_a_node or 1
    nic = SHOWN_NIC if request.nic in (None, "auto") else str(request.nic)
    facts = {
        host.name: NodeFacts(
            python=where.python or SHOWN_PYTHON,
            cpus=options.cpus * ranks,
            interfaces=(Interface(nic, str(SHOWN_NETWORK[at]), SHOWN_NETWORK.prefixlen),),
            boot_id=host.name,
        )
        for at, host in enumerate(hosts, start=1)
    }
    gpus = dict.fromkeys(names, options.gpus_a_node or 0)
    state = JobState("PENDING", nodes=tuple(names), tasks_a_node=options.tasks_a_node, gpus=gpus)
    cluster, fitting = fit_hosts(Cluster(hosts), facts, state, request)
    return LaunchHosts(cluster, fitting, Allocation(SHOWN_JOB, held=True, run=run))


def _submission_text(plan: LaunchPlan, submit: Sequence[str], options: Options) -> str:
    hosts = [node.host for node in plan.nodes]
    shim = [SHOWN_PYTHON, "agent.pyz", "shim", "--run", SHOWN_RUN_DIR]
    step = step_command(SHOWN_JOB, plan.run, hosts, [shim] * len(hosts), plan.slurm_containers)
    nodes = ""
    if hosts[0].startswith(SHOWN_NODE):
        known = str(options.nodes) if options.nodes else "as many as it gives, shown for one"
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
