"""Who of the hosts that were named takes part: all of them, or as many as ``--nnodes MIN:MAX`` needs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from distconsole.errors import PlanError
from distconsole.launch.everywhere import on_every, required
from distconsole.model.cluster import Cluster
from distconsole.model.events import Event, Narration
from distconsole.model.findings import Severity
from distconsole.model.outcome import failed
from distconsole.model.requests import Run, hosts_wanted
from distconsole.operations.sessions import connect_all
from distconsole.session import Session


def reach(session: Session, cluster: Cluster, request: Run) -> Generator[Event, None, Cluster]:
    """Connect to the hosts; return those that take part, and say which are left out.

    Raises:
        PlanError: if other numbers of hosts were named and asked for.
        UnreachableError: if a host that the job needs cannot be reached, or too few can.
    """
    refuse_other_number(session, cluster, request)
    wanted = hosts_wanted(request.nnodes)
    if wanted is None or not request.may_lose_hosts:
        connect_all(session, cluster)
        return cluster
    fewest, total = wanted[0], len(cluster.hosts)
    outcomes = on_every(session, [host.name for host in cluster.hosts], lambda _link: None)
    lacking = {each.host: each.error for each in failed(outcomes)}
    if total - len(lacking) < fewest:
        what = f"{len(lacking)} of {total} hosts cannot be reached"
        required(outcomes, f"{what}, and --nnodes {request.nnodes} needs {fewest}")
    for name, error in lacking.items():
        said = error.message.removeprefix(f"{name}: ")
        yield Narration(text=f"{name} is left out: {said}", severity=Severity.WARN)
    return replace(cluster, hosts=tuple(h for h in cluster.hosts if h.name not in lacking))


def refuse_other_number(session: Session, cluster: Cluster, request: Run) -> None:
    """Refuse other numbers of hosts than ``--nnodes`` asks for, and what does not go with it.

    Raises:
        PlanError: naming both.
    """
    wanted = hosts_wanted(request.nnodes)
    if wanted is None:
        return
    if request.may_lose_hosts and request.emit is not None:
        raise PlanError(
            "--emit writes a job of a fixed number of hosts",
            "leave --nnodes out",
        )
    if request.may_lose_hosts and request.verify_sync:
        raise PlanError(
            "--verify-sync compares ranks at equal steps, and ranks that begin again after a host "
            "is lost do not count alike",
            "leave one of --nnodes MIN:MAX and --verify-sync out",
        )
    # Those that were taken out by --exclude are lost to a job that may lose hosts.
    named = len((session.cluster if request.may_lose_hosts else cluster).hosts)
    most = wanted[1]
    if most != named:
        raise PlanError(
            f"--nnodes {request.nnodes} means {most} hosts, and there are {named}",
            "give --hosts as many as the larger number, or another --nnodes",
        )
