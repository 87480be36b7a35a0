"""A prepared run's shims started by srun, from the run's first node. It plans nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distconsole.errors import UnreachableError
from distconsole.launch.everywhere import on_every, required
from distconsole.launch.slurm.srun import step_command
from distconsole.model.job import LaunchPlan
from distconsole.session import Session

STEP_SECONDS = 90.0
SHIM_SECONDS = 90.0


def begin_step(
    plan: LaunchPlan, session: Session, prepared: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Start the step, and return what the first node's shim says of itself once every shim answers.

    Args:
        plan: With ``slurm_job``.
        session: Where the links are.
        prepared: What each node answered to ``prepare``, in order.

    Raises:
        UnreachableError: if srun does not start them, in its own words.
    """
    assert plan.slurm_job is not None
    hosts = [node.host for node in plan.nodes]
    shims = [_words(answer.get("shim_argv")) for answer in prepared]
    if not all(shims):
        raise UnreachableError(
            "the hosts' agents do not say how Slurm can start the run",
            "use the console and the agent of one version",
        )
    argv = step_command(plan.slurm_job, plan.run, hosts, shims)
    told = on_every(
        session,
        hosts[:1],
        lambda link: link.request(
            "slurm",
            STEP_SECONDS,
            do="step",
            run=plan.run,
            job=plan.slurm_job,
            argv=list(argv),
            held=plan.slurm_held,
        ),
    )
    required(told, "the run cannot be started below Slurm")
    # The first node first: if srun cannot start, it is the one that knows.
    first: dict[str, Any] = _await_shims(plan, session, hosts[:1])[0]
    if hosts[1:]:
        _await_shims(plan, session, hosts[1:])
    return first


def _words(told: object) -> list[str]:
    return [str(word) for word in told] if isinstance(told, list) else []


def _await_shims(plan: LaunchPlan, session: Session, hosts: Sequence[Any]) -> list[dict[str, Any]]:
    outcomes = on_every(
        session,
        hosts,
        lambda link: link.request("slurm", SHIM_SECONDS, do="shim", run=plan.run),
    )
    answers: list[dict[str, Any]] = required(outcomes, "the run cannot be started below Slurm")
    return answers
