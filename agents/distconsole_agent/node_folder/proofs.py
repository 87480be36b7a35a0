"""Evidence of the disk and the kernel about a run's folder, required before a removal.

Whatever cannot be read proves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterable

from distconsole_agent.node_folder.folders import write_private
from distconsole_agent.supervisor.proctree import pids_of_run
from distconsole_agent.system.kernel_files import boot_id, boottime

UNBORN = frozenset({"logs", "errors", "journal", "rings"})
HALF_WRITTEN = "spec.json.new"
"""The only file of an interrupted ``prepare`` before there is a spec."""


def is_unborn(folder: str) -> bool:
    """Return whether ``prepare`` has begun a run's folder and put nothing into it."""
    try:
        names = set(os.listdir(folder)) - {HALF_WRITTEN}
        return names <= UNBORN and not any(os.listdir(os.path.join(folder, n)) for n in names)
    except OSError:
        return False


def remove_unborn(folder: str) -> None:
    """Remove the folder of a run that ``is_unborn``; whatever has appeared in it meanwhile stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name != HALF_WRITTEN:
                os.rmdir(os.path.join(folder, name))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, HALF_WRITTEN))
        os.rmdir(folder)


def may_live(folder: str) -> bool:
    """Return True if the shim of a run, or a process that it started, may live."""
    return shim_may_live(folder) or bool(pids_of_run(folder, doubtful=True))


def shim_may_live(folder: str) -> bool:
    """Return True if the shim of a run may live: it holds ``shim.pid`` for life (``runlog.claim``)."""
    return may_be_held(os.path.join(folder, "shim.pid"))


def may_be_held(path: str) -> bool:
    """Return True if a process may hold the lock of a file, which it does for life."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class Ages:
    """How long runs have been over, or files unused, counted by agents between one boot and the next.

    A clock that is set, or wrong after a boot, makes nothing older; a node that is off does not, either.
    The agents of a node folder, of whatever version, keep the count at ``path``.
    """

    def __init__(self, path: str, clock: Callable[[], float] = boottime) -> None:
        self._path = path
        self._clock = clock

    def unused(self, paths: Iterable[str]) -> dict[str, float]:
        """Return the seconds for which none of ``paths`` is known to have been touched.

        When it was touched last is a name here that may change, and no time. Raises OSError as
        ``note``.
        """
        names = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                names[path] = f"{os.path.basename(path)} {os.lstat(path).st_mtime_ns:x}"
        ages = self.note(set(names.values()))
        return {path: ages[name] for path, name in names.items()}

    def note(self, over: Collection[str]) -> dict[str, float]:
        """Note that these runs are over and return since how many seconds; raises OSError."""
        if not over:
            return {}
        now, boot = self._clock(), boot_id()
        try:
            with open(self._path, "rb") as file:
                kept = json.load(file)
            counted = float(kept["time"])
            if boot is not None and kept["boot"] == boot:
                counted += max(0.0, now - float(kept["boottime"]))
            since = {run: min(counted, float(kept["since"].get(run, counted))) for run in over}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            # It is counted from the beginning: all stays for longer.
            counted, since = 0.0, dict.fromkeys(over, 0.0)
        write_private(self._path, {"boot": boot, "boottime": now, "time": counted, "since": since})
        return {run: counted - begun for run, begun in since.items()}
