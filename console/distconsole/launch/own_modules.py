"""The modules of a run's own project: those that Python does not find by itself, or hosts take from elsewhere."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from distconsole.config.paths import expand_home
from distconsole.launch.place import PreparedLaunch
from distconsole.launch.plan import Plan
from distconsole.launch.script import path_here
from distconsole.launch.sync.code import project_root
from distconsole.model.events import Narration, warn
from distconsole.model.names import join_some
from distconsole.model.outcome import Ok
from distconsole.model.requests import Run
from distconsole.rpc.link import NodeLink
from distconsole.session import Session, on_every, probe

SOUGHT_SECONDS = 3.0


def find_own_modules(request: Run) -> dict[str, tuple[str, str]]:
    """Return folder and cure of the project's modules, also namespace packages below ``src``, that Python does not find by itself."""
    workdir = expand_home(request.workdir or ".").absolute()
    script = None if request.module else path_here(request)
    root = project_root(workdir if script is None else script.parent)
    beside = workdir if script is None else script.parent
    told = dict(request.env).get("PYTHONPATH", "").split(":")
    searched = {beside, *(Path(os.path.normpath(workdir / each)) for each in told if each)}
    found: dict[str, tuple[str, str]] = {}
    folders = [top / name for top in (root, workdir) for name in ("src", "lib", "python", "")]
    for folder in (each for each in dict.fromkeys(folders) if each not in searched):
        near = Path(os.path.relpath(folder, workdir))
        shown = near if request.sync or folder.is_relative_to(workdir) else folder
        cure = f"--env PYTHONPATH={shlex.quote(str(shown))} has Python look there first"
        packages = ("*/*.py", "*/*/*.py") if folder.name == "src" else ("*/__init__.py",)
        files = [each for kind in ("*.py", *packages) for each in folder.glob(kind)]
        for file in files:
            name = file.relative_to(folder).parts[0].removesuffix(".py")
            found.setdefault(name, (str(folder), cure))
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
