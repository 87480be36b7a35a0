"""Removes what agents and hooks of other versions left in the node folder; runs' folders are not its."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator

from distconsole_agent.folders import NodeFolders, remove_tree
from distconsole_agent.joining import OWNER
from distconsole_agent.limits import KEEP_LEFTOVER_SECONDS

_LEFTOVER = re.compile(r"(agent)-(\w{1,64})\.(?:lock|log|sock)|(hook)-\w{1,64}(?:\.\d+)?")


def remove_leftovers(folders: NodeFolders, now: float) -> None:
    """Remove files and hooks that nobody has used for long and nobody uses now.

    Args:
        folders: The node folder, and the version whose files stay.
        now: UNIX seconds.

    Raises:
        OSError: when the folder cannot be read, or something in it not removed.
    """
    os.utime(folders.lock)
    with contextlib.suppress(FileNotFoundError):
        os.utime(os.path.join(folders.node_dir, OWNER))
    in_use = _hooks_in_use(folders)
    for name in sorted(os.listdir(folders.node_dir)):
        found = _LEFTOVER.fullmatch(name)
        if found is None or found[2] == folders.tag or name in in_use:
            continue
        path = os.path.join(folders.node_dir, name)
        with contextlib.suppress(FileNotFoundError):
            if now - os.lstat(path).st_mtime <= KEEP_LEFTOVER_SECONDS:
                continue
            if found[3]:
                remove_tree(path)
            elif _nobody_holds(NodeFolders(folders.node_dir, found[2]).lock, now):
                os.unlink(path)


def _nobody_holds(lock_path: str, now: float) -> bool:
    """Return whether no agent of that version lives, nor lived lately."""
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return now - os.fstat(lock).st_mtime > KEEP_LEFTOVER_SECONDS
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _hooks_in_use(folders: NodeFolders) -> set[str]:
    """Return the names of the hooks that ranks of runs which are not over have loaded."""
    return {
        os.path.basename(hook)
        for run in os.listdir(folders.runs)
        if not os.path.exists(os.path.join(folders.run(run), "ended.json"))
        for hook in _hook_of(os.path.join(folders.run(run), "spec.json"))
    }


def _hook_of(path: str) -> Iterator[str]:
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        spec = json.load(file)
        if isinstance(spec, dict) and isinstance(spec.get("hook"), str):
            yield spec["hook"]
