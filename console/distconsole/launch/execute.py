"""Executes a plan: prepares, starts and stops the run on every node."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distconsole.config.spelling import nearest_script
from distconsole.errors import ConsoleError, PlanError, RequestError, UnreachableError
from distconsole.launch.plan import Plan
from distconsole.launch.slurm.srun import step_command
from distconsole.model.names import HostName
from distconsole.model.outcome import Outcome, failed
from distconsole.rpc.link import NodeLink
from distconsole.rpc.wire import NO_SCRIPT
from distconsole.session import Session, on_every, request_every, require_all

PREPARE_SECONDS = START_SECONDS = 60.0
SLURM_SECONDS = 90.0
FORGET_SECONDS = 10.0
FORGET_TRIES, FORGET_PAUSE_SECONDS = 72, 0.25
SECRET_BYTES = 32


def start(plan: Plan, session: Session, notice: Mapping[str, Any] | None = None) -> None:
    """Prepare the run on every node, then start it on every node, each in parallel.

    ``notice`` holds the settings of the first node's notifications about the run. A failure on one node
    kills and forgets the run on all. The nodes authenticate each other by a secret that never reaches a
    disk here.

    Raises UnreachableError, naming the nodes that failed, and why.
    """
    secret = secrets.token_hex(SECRET_BYTES)
    specs = plan.specs(secret, time.time())
    specs[0]["notify"] = notice
    own = {host: {"spec": spec} for host, spec in zip(plan.hosts, specs, strict=True)}
    try:
        outcomes = request_every(
            session, plan.hosts, "prepare", PREPARE_SECONDS, own, run=plan.run
        )
        _refuse_without_script(plan, outcomes)
        prepared = require_all(outcomes, "the run cannot be prepared")
        first = prepared[0] if plan.slurm_job is None else _begin_step(plan, session, prepared)
        started = request_every(
            *(session, plan.hosts, "start", START_SECONDS),
            run=plan.run,
            coordinator=first.get("coordinator"),
            coordinator_secret=secret,
            master_port=first.get("master_port"),
        )
        require_all(started, "the run cannot be started")
    except ConsoleError:
        undo(plan, session)
        raise


def undo(plan: Plan, session: Session) -> None:
    """Kill and forget the run on all nodes; unreachable ones end it by themselves."""

    def forget(link: NodeLink) -> None:
        link.request("kill", FORGET_SECONDS, run=plan.run)
        for _ in range(FORGET_TRIES):
            if link.request("forget", FORGET_SECONDS, run=plan.run).get("forgotten"):
                return
            time.sleep(FORGET_PAUSE_SECONDS)

    on_every(session, plan.hosts, forget, 3 * FORGET_SECONDS)


def _refuse_without_script(plan: Plan, outcomes: Sequence[Outcome[dict[str, Any]]]) -> None:
    lacking = [
        failure.host
        for failure in failed(outcomes)
        if isinstance(failure.error, RequestError) and failure.error.code == NO_SCRIPT
    ]
    if lacking:
        script, names = Path(plan.script), list[str]()
        with contextlib.suppress(OSError):
            names = [each.name for each in script.parent.iterdir() if each.suffix == ".py"]
        near = nearest_script(script.name, names)
        cure = f"did you mean {near}? " if near else "it is not on this machine, either; "
        if script.is_file():
            cure = "--sync brings the code to the hosts; "
        raise PlanError(
            f"the script {plan.script} does not exist on {', '.join(lacking)}",
            f"{cure}--workdir says where they have it",
        )


def _begin_step(
    plan: Plan, session: Session, prepared: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Have srun start the ``prepared`` shims in order; return the first shim's answer once all have answered."""
    assert plan.slurm_job is not None
    hosts = plan.hosts
    told = [answer.get("shim_argv") for answer in prepared]
    shims = [[str(word) for word in each] if isinstance(each, list) else [] for each in told]
    if not all(shims):
        raise UnreachableError(
            "the hosts' agents do not say how Slurm can start the run",
            "use the console and the agent of one version",
        )
    argv = list(step_command(plan.slurm_job, plan.run, hosts, shims, plan.slurm_containers))

    def ask(hosts: Sequence[HostName], **what: object) -> list[dict[str, Any]]:
        outcomes = request_every(session, hosts, "slurm", SLURM_SECONDS, run=plan.run, **what)
        return require_all(outcomes, "the run cannot be started below Slurm")

    ask(hosts[:1], do="step", job=plan.slurm_job, argv=argv, held=plan.slurm_held)
    # The first node first: it knows if srun cannot start.
    first = ask(hosts[:1], do="shim")[0]
    ask(hosts[1:], do="shim")
    return first
