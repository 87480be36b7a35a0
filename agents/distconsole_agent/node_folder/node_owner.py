"""Which of several hosts works in a node folder: each in a part of its own.

Containers with the machine's /tmp, or hosts with a folder on a network, would else take one another's
sockets, runs and processes for their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from distconsole_agent.contract.refusal import storage
from distconsole_agent.node_folder.folders import open_node_dir, storage_refusal
from distconsole_agent.server.joining import OWNER, this_host

MAX_HOSTS = 64


def take_node_dir(path: str) -> tuple[str, int]:
    """Return the folder for this host in ``path``, opened, and a descriptor that keeps it ours.

    The first host has ``path`` itself, others ``path/host-2`` and so on, and each finds its own
    again. A folder whose lock is held is not taken. A free one passes to a host of
    the same name, as which the owner comes back from a boot, and without runs to any host. Raises
    Refusal (``storage``) as ``open_node_dir``, or when too many hosts share the folder.
    """
    path = open_node_dir(path)
    parts = [path, *(os.path.join(path, f"host-{number}") for number in range(2, MAX_HOSTS + 1))]
    try:
        for part in filter(_is_ours, parts):
            held = _hold(part)
            if held is not None:
                return part, held
        for part in parts:
            held = _hold(open_node_dir(part), take=True)
            if held is not None:
                return part, held
    except OSError as error:
        raise storage_refusal(path, error) from None
    raise storage(
        f"{MAX_HOSTS} hosts have their runs in {path}",
        "set node_dir to a local folder of this host",
    )


def keep_node_dir(path: str) -> int | None:
    """Return a descriptor that reserves ``path`` for its host; None without an owner; raises OSError."""
    try:
        held = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


def keep_from_cleaners(path: str) -> int | None:
    """Return a descriptor whose lock has systemd-tmpfiles leave ``path`` alone; None if it cannot be locked.

    A cleaner of /tmp would remove files unread for days: ones that ranks may still import, and a run's spec.
    """
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
    except OSError:
        os.close(held)
        return None
    return held


def _is_ours(part: str) -> bool:
    try:
        with open(os.path.join(part, OWNER), encoding="utf-8", errors="replace") as file:
            return file.read().startswith(this_host())
    except FileNotFoundError:
        return False


def _hold(part: str, *, take: bool = False) -> int | None:
    """Return a descriptor that holds ``part``; None if another host has it, and may keep it."""
    held = _open(part, os.O_RDWR | os.O_CREAT)
    try:
        if take:
            # The process that holds it may be ours, and have taken it a moment ago.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                name, owner = os.uname().nodename, os.pread(held, 4096, 0).split(b"\n")
                is_back = len(owner) < 3 or owner[1] == os.fsencode(name)
                if is_back or not os.listdir(os.path.join(part, "runs")):
                    os.ftruncate(held, 0)
                    os.pwrite(held, os.fsencode(f"{this_host()}{name}\n"), 0)
        fcntl.flock(held, fcntl.LOCK_SH)
        # Read under the lock: another process may take it while its kind changes.
        if os.pread(held, 4096, 0).startswith(os.fsencode(this_host())):
            return held
    except BaseException:
        os.close(held)
        raise
    os.close(held)
    return None


def _open(part: str, flags: int) -> int:
    return os.open(os.path.join(part, OWNER), flags | os.O_NOFOLLOW, 0o600)
