"""The launch that ``check SCRIPT`` is about, planned as ``run`` would plan it.

What ``run`` would refuse is no error here but a part of the plan, which the check makes a finding of.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distconsole.checks.engine.target import HostLaunch, Launch, LaunchPath
from distconsole.errors import ConsoleError, NodeError, PlanError
from distconsole.grammar.secrets import mask_words
from distconsole.launch import planner
from distconsole.launch.choose import starter_of
from distconsole.launch.own_modules import find_own_modules
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import PORT, RUN_DIR, NodePlan, Plan
from distconsole.launch.script import find_traits, refuse_our_flags
from distconsole.launch.slurm.srun import inside
from distconsole.launch.sync.send import Project, collect_project, script_path
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import ScriptTraits
from distconsole.model.requests import Check, LauncherName, Run, Target, count_of_hosts
from distconsole.session import Session

MAX_SOURCES, MAX_SOURCE_CHARS = 300, 512 * 1024
"""Files, and characters of them all, that travel for a check of code that ``--sync`` would bring."""

ENGINE_SECONDS = 6.0

MAX_PATHS = 16
HINTS = re.compile(
    r"data|path|dir|root|folder|file|ckpt|checkpoint|output|save|log|resume|load|config|cfg|corpus|"
    r"tokenizer|vocab|weights|cache|train|val|test"
)
READS = re.compile(r"resume|load|pretrained|init_from|restore|from_checkpoint|input")
WRITES = re.compile(
    r"output|out_dir|outdir|^out$|save|ckpt|checkpoint|log_?dir|log_?file|results?|tensorboard|work_?dir"
)
STRANGE = re.compile(r"://|[\n\t{}$*?<>|;]|^~")

RENDEZVOUS = re.compile(r"tcp://(\[[^\]]+\]|[^:/\s]+):(\d+)")


def make_planner(request: Check, target: Target) -> Targeting:
    """Return the planner for ``target``.

    Raises UsageError for an option of ours behind the script, or a variable that is none;
    ConfigError for a file of variables that cannot be read.
    """
    env = planner.user_env(target.run)
    if not starter_of(target.run):
        refuse_our_flags(target.run, "check")
    return Targeting(target, env, python_asked=request.where.python is not None)


@dataclass(slots=True)
class Targeting:
    """Plans one launch; of one that ``run`` would refuse it says so.

    Attributes:
        env: The user's variables.
        python_asked: Whether ``--python`` says which interpreter, whatever the command says.
    """

    target: Target
    env: dict[str, str]
    python_asked: bool = False
    notes: list[str] = field(default_factory=list)

    def __call__(self, session: Session, hosts: Sequence[Host]) -> Launch:
        run = self.target.run
        self.notes = list(self.target.notes)
        known = PreparedLaunch(run, self.env, ScriptTraits())
        plan: Plan | None = None
        launcher = why = ""
        refused = PlanError("")
        python = None if self.python_asked else self.target.python
        placed = [replace(host, python=python or host.python) for host in hosts]
        try:
            known = replace(known, project=collect_project(run) if run.sync else None)
            traits = known.project.find_traits(run) if known.project else find_traits(run)
            run = self._as_run(run, traits, session.cluster)
            known = replace(known, request=run, traits=traits)
            choice = known.decide()
            launcher, why = choice.launcher.value, choice.why
            placed, notes = planner.place_total(self.target.run, placed)
            self.notes += notes
            plan = self._plan(session, placed, known)
            launcher, why = plan.launcher.value, plan.why
        except NodeError:
            raise
        except ConsoleError as error:
            refused = PlanError(error.message, error.hint)
        launch = self._launch(placed, known, plan, session)
        return replace(
            launch,
            launcher=launcher,
            why=why,
            refused=refused.message,
            refused_hint=refused.hint,
            missing=self._missing(session, {host.name for host in hosts}, run),
        )

    def _as_run(self, run: Run, traits: ScriptTraits, cluster: Cluster) -> Run:
        """Return the request of a pasted srun outside of its job as these hosts can have it."""
        if run.slurm is not None:
            self.notes.append(
                "run --slurm gets its hosts from Slurm: these are checked in their place"
            )
            run = replace(run, slurm=None)
        if not starter_of(run).startswith("srun") or run.launcher is not LauncherName.SLURM:
            return run
        if inside(os.environ, cluster) is not None:
            return run
        self.notes.append("srun takes its hosts from Slurm: these are checked in their place")
        mpi = traits.mpi or traits.horovod
        return replace(run, launcher=LauncherName.MPI if mpi else LauncherName.TORCH)

    def _missing(self, session: Session, reached: Collection[str], run: Run) -> tuple[str, ...]:
        wanted, hosts = count_of_hosts(run.nnodes), session.cluster.hosts
        if run.may_lose_hosts and wanted is not None and len(reached) >= wanted[0]:
            return ()
        total = run.ranks
        counts = [1] * len(hosts) if total is None else planner.divide_ranks(total, run, hosts)
        pairs = zip(hosts, counts, strict=True)
        return tuple(host.name for host, count in pairs if count and host.name not in reached)

    def _plan(self, session: Session, hosts: Sequence[Host], known: PreparedLaunch) -> Plan:
        cluster = replace(session.cluster, hosts=tuple(hosts))
        if len(hosts) == len(session.cluster.hosts):
            planner.refuse_other_number(session, cluster, known.request)
        allocation = inside(os.environ, session.cluster)
        reached = planner.collect_facts(known, session, cluster, allocation)
        return planner.plan_launch(
            planner.ask_engines(reached, session, ENGINE_SECONDS), known.project
        )

    def _launch(
        self, hosts: Sequence[Host], known: PreparedLaunch, plan: Plan | None, session: Session
    ) -> Launch:
        run, project = known.request, known.project
        workdir = posixpath.normpath(posixpath.join(str(Path.cwd()), run.workdir or ""))
        path, root, sources = run.script, workdir, None
        if not run.module:
            path = posixpath.normpath(posixpath.join(workdir, run.script))
            root = posixpath.dirname(path)
        if project is not None:
            sources, root = _read_sources(project, run, root)
        nodes = {node.name: node for node in plan.nodes} if plan is not None else {}
        return Launch(
            command=tuple(mask_words(self.target.command)),
            path=path,
            module=run.module,
            root=root,
            workdir=workdir,
            arguments=run.arguments,
            auto=run.launcher is LauncherName.AUTO,
            traits=known.traits,
            hosts={
                host.name: self._host(host, nodes.get(host.name), plan, session) for host in hosts
            },
            **self._rendezvous(run),
            nic=run.nic,
            env=self.env,
            paths=argument_paths(run.arguments, workdir, os.path.exists),
            own=find_own_modules(run),
            brought=project.description if project is not None else "",
            sources=sources,
            notes=(*self.notes, *(plan.notes if plan is not None else ())),
        )

    def _host(
        self, host: Host, node: NodePlan | None, plan: Plan | None, session: Session
    ) -> HostLaunch:
        python = session.link(host.name).interpreter(host.python)
        if node is None or plan is None:
            return HostLaunch((), python, self.env, setup=host.setup, container=host.container)
        later = (PORT, RUN_DIR)
        known = {k: v for k, v in node.env.items() if not any(each in v for each in later)}
        return HostLaunch(
            ranks=node.world_ranks,
            python=python,
            env=known,
            unset=node.unset,
            address=node.endpoint.address,
            interface=node.endpoint.nic,
            setup=host.setup,
            container=host.container,
            workdir=plan.workdir,
        )

    def _rendezvous(self, run: Run) -> dict[str, Any]:
        """Return the meeting point of the ranks: address, port, and its source (``fixed_by``)."""
        for word in run.arguments:
            told = RENDEZVOUS.search(word)
            if told is not None:
                return _meeting(told[1].strip("[]"), int(told[2]), told[0])
        target, port = self.target, self.env.get("MASTER_PORT", "")
        if target.port is not None or target.address:
            by = "MASTER_PORT" if port else starter_of(run) or "the command"
            return _meeting(target.address, target.port, by)
        if run.launcher is LauncherName.TORCHRUN:
            return {}
        fixed = int(port) if re.fullmatch(r"\d{1,5}", port) and 0 < int(port) < 65536 else None
        by = "MASTER_PORT" if fixed else ""
        return _meeting(self.env.get("MASTER_ADDR", ""), fixed, by)


def _meeting(address: str, port: int | None, fixed_by: str) -> dict[str, Any]:
    return {"address": address, "port": port, "fixed_by": fixed_by}


def _read_sources(project: Project, run: Run, root: str) -> tuple[dict[str, str], str]:
    """Return the Python files that would be brought, by path here, and where imports begin."""
    script = script_path(run, Path.cwd())
    if script is not None:
        root = str(script.parent)
    found: dict[str, str] = {}
    room = MAX_SOURCE_CHARS
    base = project.code.root
    files = sorted(project.code.files, key=lambda file: f"{base}/{file.path}" != str(script))
    for file in files:
        if len(found) >= MAX_SOURCES or room <= 0:
            break
        path = f"{base}/{file.path}"
        if file.path.endswith((".py", ".sh")) and file.size <= room:
            found[path] = project.kept.read(file.sha256).decode("utf-8", "replace")
            room -= file.size
    return found, root


def argument_paths(
    arguments: Sequence[str], workdir: str, exists: Callable[[str], bool]
) -> tuple[LaunchPath, ...]:
    """Return the words among a script's arguments that name files or folders, guessed by the words alone.

    Args:
        arguments: The script's own.
        workdir: Where relative paths start on the hosts.
        exists: Whether a path is there on this machine.
    """
    found: dict[str, LaunchPath] = {}
    for option, word in _pairs(arguments):
        name = option.lstrip("-").replace("-", "_").lower()
        path = posixpath.normpath(posixpath.join(workdir, word))
        if len(path) < 1024 and path != "/" and _is_path(word, name, path, exists):
            output = bool(WRITES.search(name)) and not READS.search(name)
            found.setdefault(path, LaunchPath(path, option, output))
    return tuple(found.values())[:MAX_PATHS]


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    option = ""
    for word in arguments:
        if word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            name, equals, value = word.partition("=")
            option = "" if equals else name
            if equals:
                yield name, value
        else:
            yield option, word


def _is_path(word: str, name: str, path: str, exists: Callable[[str], bool]) -> bool:
    if not word or len(word) > 512 or STRANGE.search(word):
        return False
    if word.startswith(("/", "./", "../")):
        return True
    if re.fullmatch(r"[-+\d.eE:,x]+", word):
        return False
    return ("/" in word or not name or bool(HINTS.search(name))) and exists(path)
