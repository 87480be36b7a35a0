"""Removes what agents and hooks of other versions left in the node folder."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator

from distconsole_agent.contract.limits import KEEP_LEFTOVER_SECONDS
from distconsole_agent.node_folder.folders import NodeFolders, remove_tree
from distconsole_agent.node_folder.proofs import Ages, boottime, may_be_held
from distconsole_agent.server.joining import OWNER

_LEFTOVER = re.compile(r"(agent)-(\w{1,64})\.(?:lock|log|sock)|(hook)-\w{1,64}(?:\.\d+)?")


def remove_leftovers(folders: NodeFolders, clock: Callable[[], float] = boottime) -> None:
    """Remove files and hooks that nobody has used for long and nobody uses now.

    Args:
        folders: The node folder, and the version whose files stay.
        clock: Seconds since the boot.

    Raises:
        OSError: when the folder cannot be read, or something in it not removed.
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
