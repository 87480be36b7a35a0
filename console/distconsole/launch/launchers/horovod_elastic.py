"""Elastic Horovod: its ranks are started by the agents as Horovod's own driver asks. A pure plan."""

from __future__ import annotations

from dataclasses import replace

from distconsole.errors import PlanError
from distconsole.launch.job import Job
from distconsole.launch.launchers import horovod
from distconsole.model.job import NodePlan

AGENT = "{agent}"
"""Stands for our program on the node, in the words of an interpreter."""

GLOO_TIMEOUT_SECONDS = 30
"""How long a rank waits for another that does not answer before it begins anew: Horovod's own. Most
ranks of a larger job wait so long after a failure, for only some were connected to who died."""

MAX_RANKS = 400
"""Each holds a connection to the store at the same time, when all begin anew."""

NOTE = (
    "elastic: Horovod's own driver on {first} says which ranks are started, and goes on without "
    "hosts that fail while {fewest} left"
)


def plan_nodes(job: Job) -> tuple[NodePlan, ...]:
    """Return what each node starts when the driver on the first node asks for it.

    The ranks' places are those that the driver gives them while all hosts are there.

    Raises:
        PlanError: if there are more ranks than can begin anew together.
    """
    if job.world_size > MAX_RANKS:
        raise PlanError(
            f"{job.world_size} elastic ranks are more than {MAX_RANKS}",
            "--env HOROVOD_ELASTIC=0 starts them so that the first failure ends the run",
        )
    elastic = {
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_SECONDS),
    }
    plans = horovod.plan_nodes(replace(job, env={**elastic, **job.env}))
    driver = (job.master.python, AGENT, "elastic-driver")
    return (replace(plans[0], driver=driver), *plans[1:])


def notes(job: Job, fewest: int) -> tuple[str, ...]:
    """Return what a person should know about the plan."""
    left = "one host is" if fewest == 1 else f"{fewest} hosts are"
    return (NOTE.format(first=job.master.host.name, fewest=left),)
