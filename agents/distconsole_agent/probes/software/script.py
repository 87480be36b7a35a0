"""A launch's requirements on this node: its script, the code and modules it imports, its paths.

The interpreter that the ranks will use is asked, in one process that can be left behind. It reads
the script and does not execute it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from distconsole_agent.node_folder.run_files import is_script
from distconsole_agent.probes.arguments import ProbeError, Shell, probe_timeout
from distconsole_agent.probes.environment import launch_environment
from distconsole_agent.probes.host import mounts
from distconsole_agent.probes.scripts import SHARE, Interpreter, ask_script, ranks_interpreter

MAX_PATHS = 32
PARTS = ("script", "code", "modules", "workdir", "git", "address", "python")

MAX_NAMES = 300

_looking: dict[str, threading.Thread] = {}
"""Threads that a filesystem holds, by path: none waits beside another for the same."""


def look(
    seconds: float,
    *,
    shell: Shell,
    path: str,
    root: str,
    workdir: str,
    module: bool = False,
    paths: Sequence[str] = (),
    address: str = "",
    sources: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return ``{"script", "code", "modules", "workdir", "git", "address", "python", "paths"}``.

    A hung part is ``{"error": …}``; if the interpreter cannot be started, ``python`` has the error,
    and this one inspects the rest, without ``modules``.

    Args:
        path: The script, or a module's name if ``module``.
        root: The first folder of its imports.
        paths: Among its arguments.
        address: A name to resolve.
        sources: By path, code that is not on the disk yet.
    """
    paths = paths[:MAX_PATHS]
    job: dict[str, object] = {
        "path": path,
        "module": module,
        "root": root,
        "workdir": workdir,
        "paths": list(paths),
        "address": address,
        "sources": sources,
        "imports": True,
        "git": sources is None,
    }
    env = launch_environment(shell)
    if env.get("PYTHONPATH"):
        # Our script starts elsewhere than ranks do: relative folders are made whole.
        folders = [os.path.join(workdir, folder) for folder in env["PYTHONPATH"].split(":")]
        env["PYTHONPATH"] = ":".join(folders)
    answer, trouble = _run(job, ranks_interpreter(shell, env), seconds * SHARE)
    if trouble and answer is None:
        own = {**job, "imports": False}
        env = {name: env[name] for name in env.keys() - {"PYTHONHOME", "PYTHONPLATLIBDIR"}}
        answer, _ = _run(own, Interpreter(env=env), seconds * (1 - SHARE))
    late = {"error": "did not answer in time", "late": True}
    parts: dict[str, object] = dict.fromkeys(PARTS)
    parts.update(
        (key, dict(late)) for key in ("workdir", "script", *(f"path {each}" for each in paths))
    )
    parts.update(answer or {})
    if trouble:
        parts["python"] = {"error": trouble}
    every = mounts.read_mounts()
    parts["paths"] = {each: _add_mount(each, parts.pop(f"path {each}"), every) for each in paths}
    parts["workdir"] = _add_mount(workdir, parts["workdir"], every)
    return parts


def _run(
    job: dict[str, object], interpreter: Interpreter, seconds: float
) -> tuple[dict[str, object] | None, str]:
    python = interpreter.python
    try:
        answer = ask_script("inspect_script", job, seconds, interpreter)
    except ProbeError as error:
        return None, error.message
    if answer.ended.exit_code is None and not answer.parts:
        return None, f"{python} did not answer in {seconds:.1f} s"
    if answer.ended.exit_code or not answer.parts:
        return None, answer.failure(python).message
    return answer.parts, ""


def _add_mount(path: str, found: Any, every: list[mounts.Mount]) -> dict[str, object]:
    facts = found if isinstance(found, dict) else {"error": "it was not looked at"}
    return mounts.add_mount(path, facts, every)


def look_whether_there(seconds: float, *, path: str) -> dict[str, object]:
    """Return ``{"there": bool, "names": [...]}`` of a script's ``path``; names only if it is not there."""
    path = os.path.expanduser(path)
    held = _looking.get(path)
    if held is not None and held.is_alive():
        raise probe_timeout(f"the filesystem of {path} does not answer")
    found: dict[str, object] = {}
    thread = threading.Thread(target=_list_names, args=(path, found), name="script", daemon=True)
    _looking[path] = thread
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise probe_timeout(f"the filesystem of {path} does not answer")
    _looking.pop(path, None)
    return found


def _list_names(path: str, found: dict[str, object]) -> None:
    there = is_script(path)
    names: list[str] = []
    if not there:
        try:
            with os.scandir(os.path.dirname(path) or ".") as entries:
                for entry in entries:
                    if len(names) == MAX_NAMES:
                        break
                    names.append(entry.name)
        except (OSError, ValueError):
            pass
    found.update(there=there, names=names)
