"""The code of a run: what ``--sync`` takes from here, and what ``--no-sync`` wants on the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from distconsole.config.paths import code_dir
from distconsole.launch.script import ScriptTraits, find_traits, traits_of
from distconsole.launch.sync.code import Code
from distconsole.launch.sync.kept_code import KeptCode
from distconsole.launch.sync.send import bring, gather, located, script_path, tree_of
from distconsole.model.cluster import Cluster
from distconsole.model.events import Narration
from distconsole.model.job import LaunchPlan
from distconsole.model.names import RunId
from distconsole.model.requests import Run
from distconsole.operations.control import Control
from distconsole.session import Session


@dataclass(frozen=True, slots=True)
class Project:
    """The code to bring for a request, and how the request reads where it will lie.

    Attributes:
        request: With the script's place on the nodes.
        folder: Where relative paths start there.
        note: What a person should know about that; may be empty.
    """

    code: Code
    kept: KeptCode
    request: Run
    folder: str
    note: str


def collect_project(request: Run, again: RunId | None = None) -> Project | None:
    """Return the code to bring; None unless ``--sync`` asks for it.

    Args:
        request: What to run.
        again: The run whose code is wanted; None for the code as it is now.

    Raises:
        PlanError: if it cannot be read, or is too large.
        RunNotFoundError: if that run's code is gone.
    """
    if not request.sync:
        return None
    kept, here = KeptCode(code_dir()), Path.cwd()
    code = gather(request, here, kept) if again is None else kept.of_run(again)
    return Project(code, kept, *located(request, here, Path(code.root)))


def inspect_script(request: Run, project: Project | None) -> ScriptTraits:
    """Return what the script says about itself, read from the code that will run."""
    if project is None:
        return find_traits(request)
    path = script_path(request, Path.cwd())
    if path is None:
        path = Path(request.workdir or ".").absolute().joinpath(*request.script.split("."))
        names = [f"{path}.py", f"{path}/__main__.py"]
    else:
        names = [str(path)]
    for file in project.code.files:
        if f"{project.code.root}/{file.path}" in names:
            return traits_of(project.kept.read(file.sha256).decode("utf-8", "replace"))
    return ScriptTraits()


def attach_code(plan: LaunchPlan, project: Project, shown_script: str) -> LaunchPlan:
    """Return ``plan`` with the code that its nodes get."""
    notes = (*plan.notes, project.note) if project.note else plan.notes
    return replace(plan, script=shown_script, code=tree_of(project.code), notes=notes)


def require_script(plan: LaunchPlan, request: Run, cluster: Cluster) -> LaunchPlan:
    """Return ``plan`` with the script that its nodes must have.

    Where a host's ``setup`` may fetch the script, only ``--no-sync`` says that it is there already.
    """
    may_come = request.sync is None and any(host.setup for host in cluster.hosts)
    return plan if request.module or may_come else replace(plan, needs=(plan.script,))


def describe_code(project: Project) -> str:
    """Return the code's size as a person reads it."""
    files, size = len(project.code.files), project.code.size
    return (
        f"{files:,} {'file' if files == 1 else 'files'} ({_amount(size)}) of {project.code.root}"
    )


def bring_code(
    plan: LaunchPlan, project: Project, session: Session, control: Control
) -> Iterator[Narration]:
    """Bring the code to the plan's hosts, and say what was sent; stops when that is wished.

    Raises:
        UnreachableError: naming the nodes that could not take it, and why.
    """
    hosts = [node.host for node in plan.nodes]

    def left() -> bool:
        return control.asked is not None

    sent = bring(project.code, project.kept, plan.run, session, hosts, left)
    if left():
        return
    project.kept.note(plan.run, project.code)
    new = f"{sent.contents:,} new ({_amount(sent.size)})" if sent.contents else "none of them new"
    yield Narration(
        text=f"code: {describe_code(project)} to {_hosts(len(hosts))} in {sent.seconds:.2f} s, {new}; "
        f"each has its own copy in runs/{plan.run}/code of its node folder"
    )


def _hosts(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"


def _amount(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
