"""A launch's requirements on this node: its script, the code and modules it imports, its paths.

The interpreter that the ranks will use is asked, in one process that can be left behind. It reads
the script and does not execute it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from distconsole_agent.node_folder.run_files import is_script
from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import ProbeError, bad_arguments, probe_timeout
from distconsole_agent.probes.environment import launch_environment
from distconsole_agent.probes.host import mounts
from distconsole_agent.probes.scripts import SHARE, Interpreter, ask_script, ranks_interpreter

MAX_PATHS = 32
MAX_SOURCES = 400
MAX_SOURCE_CHARS = 4 * 1024 * 1024
PARTS = ("script", "code", "modules", "workdir", "git", "address", "python")

MAX_NAMES = 300

_looking: dict[str, threading.Thread] = {}
"""Threads that a filesystem holds, by path: none waits beside another for the same."""


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"script", "code", "modules", "workdir", "git", "address", "python", "paths"}``.

    A hung part is ``{"error": …}``; if the interpreter cannot be started, ``python`` has the error,
    and this one inspects the rest, without ``modules``.

    Args:
        args: ``path``: the script, or a module's name if ``module``; ``root``: the first folder of its
            imports; ``workdir``; ``paths``: among its arguments; ``address``: a name to resolve;
            ``sources``: by path, code that is not on the disk yet; ``python``, ``setup``; ``env``
            and ``unset``: the launch's changes of the environment.
    """
    job = _job(args)
    env = _absolute(launch_environment(args), job["workdir"])
    answer, trouble = _run(job, ranks_interpreter(args, env), seconds * SHARE)
    if trouble and answer is None:
        own = {**job, "imports": False}
        env.pop("PYTHONHOME", None)
        answer, _ = _run(own, Interpreter(env=env), seconds * (1 - SHARE))
    paths = [f"path {path}" for path in job["paths"]]
    late = {"error": "did not answer in time", "late": True}
    parts: dict[str, Any] = dict.fromkeys(PARTS)
    parts.update((key, dict(late)) for key in ("workdir", "script", *paths))
    parts.update(answer or {})
    if trouble:
        parts["python"] = {"error": trouble}
    every = mounts.read_mounts()
    parts["paths"] = {
        path: _add_mount(path, parts.pop(f"path {path}"), every) for path in job["paths"]
    }
    parts["workdir"] = _add_mount(job["workdir"], parts["workdir"], every)
    return parts


def _absolute(env: dict[str, str], workdir: str) -> dict[str, str]:
    """Return ``env`` with PYTHONPATH's relative folders whole: our script starts elsewhere than ranks do."""
    given = env.get("PYTHONPATH")
    if not given:
        return env
    folders = [os.path.join(workdir, folder) for folder in given.split(":")]
    return {**env, "PYTHONPATH": ":".join(folders)}


def _job(args: dict[str, Any]) -> dict[str, Any]:
    sources = args.get("sources")
    if sources is not None and not (
        isinstance(sources, dict)
        and len(sources) <= MAX_SOURCES
        and all(isinstance(text, str) for text in sources.values())
        and sum(map(len, sources.values())) <= MAX_SOURCE_CHARS
    ):
        raise bad_arguments("sources is not an object of texts")
    return {
        "path": read.text(args, "path"),
        "module": args.get("module") is True,
        "root": read.text(args, "root"),
        "workdir": read.text(args, "workdir"),
        "paths": read.texts(args, "paths")[:MAX_PATHS],
        "address": read.text(args, "address", ""),
        "sources": sources,
        "imports": True,
        "git": sources is None,
    }


def _run(
    job: dict[str, Any], interpreter: Interpreter, seconds: float
) -> tuple[dict[str, Any] | None, str]:
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


def _add_mount(path: str, found: Any, every: list[mounts.Mount]) -> dict[str, Any]:
    facts = found if isinstance(found, dict) else {"error": "it was not looked at"}
    return mounts.add_mount(path, facts, every)


def look_whether_there(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return ``{"there": bool, "names": [...]}`` of a script's ``path``; names only if it is not there."""
    path = os.path.expanduser(read.text(args, "path"))
    held = _looking.get(path)
    if held is not None and held.is_alive():
        raise probe_timeout(f"the filesystem of {path} does not answer")
    found: dict[str, Any] = {}
    thread = threading.Thread(target=_list_names, args=(path, found), name="script", daemon=True)
    _looking[path] = thread
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise probe_timeout(f"the filesystem of {path} does not answer")
    _looking.pop(path, None)
    return found


def _list_names(path: str, found: dict[str, Any]) -> None:
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
