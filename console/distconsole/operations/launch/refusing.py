"""What is refused before anything is started, because it cannot be what was meant. It asks no host."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from distconsole.errors import PlanError, UsageError
from distconsole.model.cluster import Cluster
from distconsole.model.requests import Run, hosts_wanted
from distconsole.rpc.link import NodeLink
from distconsole.session import Session

OUR_FLAGS = frozenset(
    (
        *("--hosts", "--hostfile", "--cluster", "--ssh-config", "--nproc", "--launcher"),
        "--nnodes",
        *("--sync", "--no-sync", "--env-file", "--pass-args", "--max-restarts", "--verify-sync"),
        *("--dry-run", "--detach", "--slurm", "--slurm-login", "--emit"),
    )
)
"""Options of ``run`` that few scripts have too; ``--name``, ``--json`` and the like are left to scripts."""

MAX_SOURCE_BYTES = 4 * 1024 * 1024


def refuse_missing(request: Run, cluster: Cluster) -> None:
    """Refuse a script that is not there, where this machine is the only host.

    What lies on other hosts their agents know.

    Raises:
        PlanError: naming the path.
    """
    path = _path(request)
    runnable = path.is_file() or (path / "__main__.py").is_file()
    if request.module or runnable or not all(host.local for host in cluster.hosts):
        return
    folder = Path(request.workdir or ".").expanduser()
    if not folder.is_dir():
        raise PlanError(f"the folder {folder} of --workdir does not exist", "give one that does")
    what = "is a folder without __main__.py" if path.is_dir() else "does not exist"
    raise PlanError(f"the script {path} {what}", "give its path, or --module with a module's name")


def refuse_our_flags(request: Run, verb: str = "run") -> None:
    """Refuse an option of ours behind the script of ``verb``, which would get it and does not know it.

    A script that names the option anywhere gets it, and so does every script behind ``--``.

    Raises:
        UsageError: with the line that was probably meant.
    """
    words = request.arguments
    words = words[: words.index("--")] if "--" in words else words
    given = [word.partition("=")[0] for word in words]
    ours = next((flag for flag in given if flag in OUR_FLAGS), None)
    if ours is None or request.divided or request.module:
        return
    try:
        path = _path(request)
        source = path.read_text("utf-8", "replace") if path.suffix == ".py" else ""
    except OSError:
        return
    spelled = re.escape(ours.removeprefix("--")).replace(r"\-", "[-_]")
    if not source or len(source) > MAX_SOURCE_BYTES or re.search(rf"\b{spelled}\b", source):
        return
    line = shlex.join([request.script, *request.arguments])
    raise UsageError(
        f"{ours} stands behind the script, so {request.script} would get it and not distconsole",
        f"put it before the script; or, if the script wants it: distconsole {verb} … -- {line}",
    )


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


def refuse_one_machine(links: Sequence[NodeLink]) -> None:
    """Refuse two hosts that are one machine: its agent would get the run twice.

    Hosts with a node folder of their own each, as embedded ones, are none.

    Raises:
        PlanError: naming both, and what to type.
    """
    known: dict[object, list[tuple[str, set[str]]]] = {}
    for link in links:
        hello = link.hello
        agent = (hello.boot_id, hello.agent_pid, hello.node_dir, hello.hostname)
        # Containers of one machine can be equal in all that. A machine's own addresses may come and
        # go between two questions; some stay.
        own = {each.address for each in hello.addresses if not each.loopback}
        for other, theirs in known.setdefault(agent, []):
            if other != link.name and (own & theirs or not (own or theirs)):
                raise PlanError(
                    f"{other} and {link.name} are one machine ({hello.hostname})",
                    f"name it once; for more ranks on it: {other}:N",
                )
        known[agent].append((link.name, own))


def _path(request: Run) -> Path:
    return (Path(request.workdir or ".").expanduser() / request.script).absolute()
