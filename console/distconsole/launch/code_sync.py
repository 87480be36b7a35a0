"""The script of a run and its code: refusals, the files of ``--sync``, the requirements of ``--no-sync``."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from distconsole.config.paths import code_dir, expand_home
from distconsole.config.spelling import nearest_script
from distconsole.errors import PlanError, UsageError
from distconsole.grammar.mistakes import hosts_meant
from distconsole.grammar.secrets import mask_text
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import Plan
from distconsole.launch.script import MAX_SOURCE_BYTES, find_traits, module_files, traits_of
from distconsole.launch.sync import send
from distconsole.launch.sync.code import COMMIT_VARIABLE, project_root
from distconsole.launch.sync.kept_code import KeptCode
from distconsole.model.cluster import Cluster
from distconsole.model.events import Narration, warn
from distconsole.model.job import ScriptTraits
from distconsole.model.names import RunId, count_text, join_some
from distconsole.model.outcome import Ok
from distconsole.model.requests import Run
from distconsole.rpc.link import NodeLink
from distconsole.session import Session, on_every, probe

SOUGHT_SECONDS = 3.0
CONFIGURATIONS = (".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
OUR_FLAGS = frozenset(
    (
        *("--hosts", "--hostfile", "--cluster", "--ssh-config", "--nproc", "--launcher"),
        *("--nnodes", "--dry-run", "--detach", "--slurm", "--slurm-login", "--emit"),
        *("--sync", "--no-sync", "--env-file", "--pass-args", "--max-restarts", "--verify-sync"),
    )
)
"""Options of ``run`` that few scripts have too; ``--name``, ``--json`` and the like are left to scripts."""


def collect_project(request: Run, again: RunId | None = None) -> send.Project | None:
    """Return the code to bring, as it is now or as the run ``again`` had it; None unless ``--sync`` asks for it.

    Raises PlanError if it cannot be read, or is too large; RunNotFoundError if that run's code is gone.
    """
    if not request.sync:
        return None
    kept, here = KeptCode(code_dir()), Path.cwd()
    code = send.gather(request, here, kept) if again is None else kept.of_run(again)
    return send.Project(code, kept, *send.locate(request, here, Path(code.root)))


def inspect_script(request: Run, project: send.Project | None) -> ScriptTraits:
    if project is None:
        return find_traits(request)
    path = send.script_path(request, Path.cwd())
    paths = module_files(request) if path is None else [path]
    for file in project.code.files:
        if Path(project.code.root, file.path) in [each.absolute() for each in paths]:
            source = project.kept.read(file.sha256).decode("utf-8", "replace")
            return traits_of(source, Path(project.code.root, file.path), request)
    return ScriptTraits()


def find_own_modules(request: Run) -> dict[str, tuple[str, str]]:
    """Return the modules of the script's project that Python does not find by itself: folder of each, and the cure."""
    workdir = expand_home(request.workdir or ".").absolute()
    script = None if request.module else _path(request)
    root = project_root(workdir if script is None else script.parent)
    beside = workdir if script is None else script.parent
    told = dict(request.env).get("PYTHONPATH", "").split(":")
    searched = {beside, *(Path(os.path.normpath(workdir / each)) for each in told if each)}
    found: dict[str, tuple[str, str]] = {}
    for folder in dict.fromkeys(each for top in (root, workdir) for each in (top / "src", top)):
        near = Path(os.path.relpath(folder, workdir))
        shown = near if request.sync or folder.is_relative_to(workdir) else folder
        cure = f"--env PYTHONPATH={shlex.quote(str(shown))} has Python look there first"
        files = [each.parent for each in folder.glob("*/__init__.py")]
        files += [each.with_suffix("") for each in folder.glob("*.py")]
        for module in files if folder not in searched else ():
            found.setdefault(module.name, (str(folder), cure))
    return found | _packages_around(script, workdir, root)


def _packages_around(script: Path | None, workdir: Path, root: Path) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for package in script.parents if script is not None else ():
        is_inside = any(top in package.parents for top in (root, workdir))
        if script is None or not (is_inside or (package / "__init__.py").is_file()):
            break
        name = ".".join(script.relative_to(package.parent).with_suffix("").parts)
        where = "" if package.parent == workdir else f"--workdir {package.parent} "
        cure = f"start it as a part of its package: distconsole run {where}-m {name}"
        found[package.name] = (str(package.parent), cure)
    return found


def seek_own_modules(launch: PreparedLaunch, plan: Plan, session: Session) -> Iterator[Narration]:
    """Say which modules of the project the hosts take from elsewhere, as from an older checkout that is installed there.

    Only hosts that may do so are asked: the ranks run already.
    """
    own = find_own_modules(launch.request)
    names = sorted(own.keys() & launch.traits.modules)
    nodes = {node.name: node for node in plan.nodes}
    workdir = str(expand_home(launch.request.workdir or ".").absolute())
    path = f"{workdir}/imports.py"

    def ask(link: NodeLink) -> dict[str, str]:
        node = nodes[link.host.name]
        args = {
            "python": link.interpreter(link.host.python),
            "setup": node.host.setup,
            "container": node.host.container,
            "env": {name: text for name, text in node.env.items() if "{" not in text},
            "unset": list(node.unset),
            "path": path,
            "module": False,
            "root": workdir,
            "workdir": workdir,
            "paths": [],
            "address": "",
            "sources": {path: f"import {', '.join(names)}"},
        }
        found = probe(link, "script", SOUGHT_SECONDS, args).get("modules")
        known = found.items() if isinstance(found, dict) else ()
        return {name: str(each.get("place", "")) for name, each in known if isinstance(each, dict)}

    places: dict[tuple[str, str], list[str]] = {}
    for outcome in on_every(session, list(nodes), ask) if names else ():
        for name, place in outcome.value.items() if isinstance(outcome, Ok) else ():
            here = launch.project is None and place.startswith(f"{own[name][0]}/")
            if place and not here:
                places.setdefault((name, place), []).append(outcome.host)
    for (name, place), hosts in places.items():
        folder, cure = own[name]
        yield warn(
            f"{name} is taken from {place} on {join_some(hosts, 4)}, and not from {folder}: {cure}"
        )


def bring_code(
    plan: Plan, project: send.Project, session: Session, is_stopped: Callable[[], bool]
) -> Iterator[Narration]:
    """Bring the code to the plan's hosts and report it, unless stopped; raises UnreachableError."""
    began = time.monotonic()
    contents, size = send.bring(
        project.code, project.kept, plan.run, session, plan.hosts, is_stopped
    )
    if is_stopped():
        return
    project.kept.note(plan.run, project.code)
    new = f"{contents:,} new ({send.size_text(size)})"
    git = f"; it has no .git: the commit is in {COMMIT_VARIABLE}" if project.code.commit else ""
    yield Narration(
        text=f"code: {project.description} to {count_text(len(plan.nodes), 'host')} in "
        f"{time.monotonic() - began:.2f} s, {new if contents else 'none of them new'}; "
        f"each has its own copy in runs/{plan.run}/code of its node folder{git}"
    )


def refuse_other_file(request: Run) -> None:
    """Refuse a script that neither Python nor a shell can run: by its name, or as it lies here. Raises PlanError, naming the path."""
    path = _path(request)
    if request.module:
        return
    typed = expand_home(request.workdir or ".") / request.script
    if path.suffix == ".ipynb":
        made = _unused(path, ".py")
        cure = f"make a script of it: jupyter nbconvert --to script {shlex.quote(str(typed))}"
        cure += f" --output {shlex.quote(made)}" if made != path.stem else ""
        raise PlanError(f"{path} is a notebook and no Python script", cure)
    if path.suffix in CONFIGURATIONS:
        name = shlex.quote(request.script)
        cure = f"name the script first, then this file: distconsole run train.py … {name}"
        raise PlanError(f"{path} is a configuration and no script", cure)
    program = False
    with suppress(OSError), path.open("rb") as file:
        program = file.read(4) == b"\x7fELF"
    if program:
        name = shlex.quote(request.script if "/" in request.script else f"./{request.script}")
        line = shlex.quote(f'exec {name} "$@"')
        made = shlex.quote(f"{typed.with_name(_unused(path, '.sh'))}.sh")
        cure = f"a script that starts it can be launched: echo {line} > {made}"
        raise PlanError(f"{path} is a program and no Python script", cure)


def refuse_missing_script(request: Run, cluster: Cluster) -> None:
    """Raise PlanError if this machine is the only host and the script is not there."""
    path = _path(request)
    runnable = path.is_file() or (path / "__main__.py").is_file()
    elsewhere = not all(host.local and not host.container for host in cluster.hosts)
    if request.module or runnable or elsewhere:
        return
    folder = expand_home(request.workdir or ".")
    if not folder.is_dir():
        raise PlanError(f"the folder {folder} of --workdir does not exist", "give one that does")
    if not request.script:
        raise UsageError("SCRIPT is empty", "a variable that is not set?")
    what = "is a folder without __main__.py" if path.is_dir() else "does not exist"
    raise PlanError(f"the script {path} {what}", _meant_script(request, path))


def _meant_script(request: Run, path: Path) -> str:
    text = request.script
    end = "give its path, or --module with a module's name"
    if path.is_dir():
        scripts = sorted(each.name for each in path.glob("*.py"))
        return f"did you mean {Path(text) / scripts[0]}?" if len(scripts) == 1 else end
    if "$" in text:
        return f"the shell has not replaced the variable in {text}: leave the single quotes out"
    if text.startswith("~/") and (meant := Path.home() / text[2:]).is_file():
        return f"did you mean {meant}? a shell replaces ~ only outside of quotes"
    if Path(f"{path}.py").is_file():
        return f"did you mean {text}.py?"
    if (path.parent / f"{path.name.replace('.', '/')}.py").is_file():
        return f"did you mean --module {text}?"
    if not request.divided and (hosts := hosts_meant((text, *request.arguments))):
        return hosts
    near = nearest_script(path.name, (each.name for each in path.parent.glob("*.py")))
    return f"did you mean {Path(text).parent / near}? {end}" if near else end


def _unused(path: Path, suffix: str) -> str:
    stems = (f"{path.stem}{number or ''}" for number in count())
    return next(stem for stem in stems if not path.with_name(stem + suffix).exists())


def refuse_our_flags(request: Run, verb: str = "run") -> None:
    """Refuse an option of ours behind the script of ``verb``, which would get it and does not know it.

    A script that names the option anywhere gets it, and so does every script behind ``--``. Raises UsageError
    with the line that was probably meant.
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
    line = mask_text(shlex.join([request.script, *request.arguments]))
    raise UsageError(
        f"{ours} stands behind the script, so {request.script} would get it and not distconsole",
        f"put it before the script; or, if the script wants it: distconsole {verb} … -- {line}",
    )


def _path(request: Run) -> Path:
    return (expand_home(request.workdir or ".") / request.script).absolute()
