"""A Slurm job as hosts with Slurm's commands report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distconsole.config.hostfile import read_list
from distconsole.config.ranges import RangeError
from distconsole.errors import ConsoleError, PlanError, UnavailableError, UsageError
from distconsole.launch.addresses import NodeFacts
from distconsole.launch.job import new_run_id
from distconsole.launch.slurm.srun import Allocation, JobState, fit_hosts, read_job
from distconsole.launch.slurm.submit import read_options, submit_command, words_of
from distconsole.model.cluster import Cluster
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run, Where
from distconsole.operations.launch.code_sync import refuse_our_flags
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

ASK_SECONDS = 45.0


def ask_slurm(link: NodeLink, **arguments: object) -> Mapping[str, object]:
    """Return Slurm's answer through a host's agent; raises UnavailableError if Slurm does not answer."""
    try:
        return link.request("slurm", ASK_SECONDS, **arguments)
    except PlanError:
        raise
    except ConsoleError as error:
        raise UnavailableError(f"{link.host.name}: {error.message}", error.hint) from None


def ask_state(link: NodeLink, job: str) -> JobState:
    """Return the state of a job; raises as ``ask_slurm`` and ``read_job``."""
    return read_job(str(ask_slurm(link, do="show", job=job).get("text")))


def fit_to_job(
    session: Session,
    allocation: Allocation,
    cluster: Cluster,
    facts: Mapping[HostName, NodeFacts],
    request: Run,
) -> tuple[Cluster, dict[HostName, NodeFacts]]:
    """Return hosts and facts as the job has them; its first node says so unless it is known."""
    state = allocation.state
    if state is None:
        state = ask_state(session.link(cluster.hosts[0].name), allocation.job)
    return fit_hosts(cluster, facts, state, request)


def prepare_submission(
    request: Run, exclude: Sequence[str]
) -> tuple[RunId, dict[str, int | None], list[str]]:
    """Return the run's id, the hosts of ``--hosts`` with their slots, and the sbatch that submits its job.

    Raises UsageError, naming the options, for what a submitted job cannot be asked for.
    """
    _refuse_before_submitting(request)
    refuse_our_flags(request)
    named = _parse_hosts(request.where)
    run = new_run_id(request.script, request.name)
    return run, named, submit_command(request.slurm, run, list(named), exclude)


def _refuse_before_submitting(request: Run) -> None:
    if request.where.hostfile is not None or request.where.cluster is not None:
        raise UsageError(
            "--slurm chooses its nodes itself, or takes those of --hosts",
            "leave --hostfile and --cluster out",
        )
    if request.detach and read_options(words_of(request.slurm)).requeue:
        raise UsageError(
            "--slurm with --requeue needs the console when Slurm starts the job again, and --detach leaves",
            "leave one of them out; --emit sbatch writes a job that needs no console",
        )


def _parse_hosts(where: Where) -> dict[str, int | None]:
    if where.hosts is None:
        return {}
    try:
        return {host.name: host.slots for host in read_list(where.hosts)}
    except RangeError as error:
        raise UsageError(f"--hosts: {error}") from None
