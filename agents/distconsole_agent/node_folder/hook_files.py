"""The hook that ranks load, in the node folder; and removal of hooks and agents of other versions."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from distconsole_agent.contract import records
from distconsole_agent.contract.limits import KEEP_LEFTOVER_SECONDS
from distconsole_agent.node_folder.folders import NodeFolders, Program, remove_tree, replace_file
from distconsole_agent.node_folder.proofs import Ages, may_be_held
from distconsole_agent.server.joining import OWNER
from distconsole_agent.system.kernel_files import boottime
from distconsole_agent.system.sha256 import sha256

PACKAGE = "distconsole_training/"
SITE = PACKAGE + "_sitecustomize.py"
"""Becomes ``sitecustomize.py`` beside the package: the name that Python looks for."""

_LEFTOVER = re.compile(r"(agent)-(\w{1,64})\.(?:lock|log|sock)|(hook)-\w{1,64}(?:\.\d+)?")


def unpack_hook(folders: NodeFolders, program: Program) -> str:
    """Return the folder for ``PYTHONPATH``; missing files, as after a cleaner of /tmp, are written.

    Raises OSError.
    """
    if program.archive is None:
        files = _from_package()
        parts = (name.encode() + b"\0" + files[name] + b"\0" for name in sorted(files))
        tag = sha256(b"".join(parts)).hexdigest()[:16]
    else:
        import zipfile

        with zipfile.ZipFile(program.archive) as packed:
            files = {name: packed.read(name) for name in packed.namelist() if _is_wanted(name)}
        tag = program.tag
    path = os.path.join(folders.node_dir, f"hook-{tag}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    for name, content in {**files, "sitecustomize.py": files[SITE]}.items():
        at = os.path.join(path, name)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(at).st_size == len(content):
                continue
        os.makedirs(os.path.dirname(at), mode=0o700, exist_ok=True)
        replace_file(at, content, sync=False)
    with contextlib.suppress(OSError):  # it may be whole and read-only
        os.utime(path)  # in use
    return path


def _from_package() -> dict[str, bytes]:
    from distconsole_agent.journal.rings import training_folder

    base = training_folder()
    files: dict[str, bytes] = {}
    for folder, _folders, names in os.walk(base):
        for name in names:
            full = os.path.join(folder, name)
            inside = PACKAGE + os.path.relpath(full, base)
            if _is_wanted(inside):
                with open(full, "rb") as file:
                    files[inside] = file.read()
    return files


def _is_wanted(name: str) -> bool:
    return name.startswith(PACKAGE) and name.endswith(".py")


def remove_leftovers(folders: NodeFolders, clock: Callable[[], float] = boottime) -> None:
    """Remove files of other versions that are unused now and have been for long.

    ``clock`` gives seconds since the boot. Raises OSError when something cannot be read or removed.
    """
    os.utime(folders.lock)
    with contextlib.suppress(FileNotFoundError):
        os.utime(os.path.join(folders.node_dir, OWNER))
    found = filter(None, map(_LEFTOVER.fullmatch, os.listdir(folders.node_dir)))
    matches = {os.path.join(folders.node_dir, each[0]): each for each in found}
    ages = Ages(os.path.join(folders.node_dir, "leftovers_since.json"), clock).unused(matches)
    in_use = _hooks_in_use(folders)
    for path in sorted(ages):
        name, tag, is_hook = matches[path].group(0, 2, 3)
        if tag == folders.tag or name in in_use or ages[path] <= KEEP_LEFTOVER_SECONDS:
            continue
        lock = NodeFolders(folders.node_dir, tag or "").lock
        with contextlib.suppress(FileNotFoundError):
            if is_hook:
                remove_tree(path)
            elif ages.get(lock, math.inf) > KEEP_LEFTOVER_SECONDS and not may_be_held(lock):
                os.unlink(path)


class _OfHook(NamedTuple):
    """The part of a spec, of whatever version, that names the hook."""

    hook: str


def _hooks_in_use(folders: NodeFolders) -> set[str]:
    """Return the names of the hooks that ranks of running runs have loaded."""
    found = set()
    for folder in map(folders.run, os.listdir(folders.runs)):
        if os.path.exists(os.path.join(folder, "ended.json")):
            continue
        spec = records.read_file(_OfHook, os.path.join(folder, "spec.json"))
        if spec is not None:
            found.add(os.path.basename(spec.hook))
    return found
