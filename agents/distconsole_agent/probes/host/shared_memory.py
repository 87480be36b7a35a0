"""What lies in /dev/shm under the names that training gives, and whether anybody has it."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable
from typing import Any

from distconsole_agent.node_folder.folders import SHARED_MEMORY
from distconsole_agent.probes.host.procfs import open_files, read_head

MAX_ENTRIES = 4096
MAX_TOLD = 64
MAX_MAPS_BYTES = 1 << 22
SHARE = 0.6
"""Of the probe's time, for looking into the memory of processes."""
YOUNG_SECONDS = 60.0
"""A file as young as this may be between its making and its mapping."""
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of include/linux/proc_ns.h: in another one some processes are not to be seen."""

_KINDS = (
    ("NCCL", re.compile(r"nccl-\w+")),
    ("torch", re.compile(r"torch_(?P<pid>\d+)_\d+_\d+")),
    ("Open MPI", re.compile(r"(?:vader|sm)_segment\..+")),
    ("Open MPI", re.compile(r"openmpi-.+|osc_rdma\..+")),
    ("UCX", re.compile(r"ucx_shm_.+|ucx_posix_.+")),
    ("PSM2", re.compile(r"psm[23]?_shm\..+")),
    ("Intel MPI", re.compile(r"Intel_MPI_.+|shm-col-space-.+")),
    ("Gloo", re.compile(r"gloo[-_.].+")),
    ("joblib", re.compile(r"joblib_memmapping_folder_(?P<pid>\d+)_.+|sem\.loky-(?P<loky>\d+)-.+")),
    ("Python", re.compile(r"psm_[0-9a-f]{8}|sem\.mp-\w+|wnsm_[0-9a-f]{8}")),
    ("semaphore", re.compile(r"sem\..+")),
    ("CUDA", re.compile(r"cuda\.shm\.[0-9a-f]+\.(?P<hex>[0-9a-f]+)\.\d+")),
    ("OpenMP", re.compile(r"__KMP_REGISTERED_LIB_(?P<pid>\d+)_\d+")),
)


def look(_args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``shm``: entries with name, kind, bytes, uid, age, and who has them.

    ``used`` of an entry is null where that cannot be known: another user's processes may have it.
    """
    return {
        **entries_of(SHARED_MEMORY, time.time(), time.monotonic() + SHARE * seconds),
        "uid": os.getuid(),
        "all_processes_seen": sees_all_processes(),
    }


def entries_of(folder: str, now: float, due: float) -> dict[str, Any]:
    """Return the entries of ``folder`` that bear the name of an engine; ``due`` ends the search for users."""
    found: list[dict[str, Any]] = []
    try:
        names = os.listdir(folder)
    except OSError as error:
        return {"entries": [], "error": error.strerror or str(error), "dropped": 0}
    for name in sorted(names)[:MAX_ENTRIES]:
        kind, pid = kind_of(name)
        if kind:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            age = now - max(status.st_mtime, status.st_ctime)
            if age >= YOUNG_SECONDS and not stat.S_ISLNK(status.st_mode):
                found.append(_entry(name, kind, pid, status, age))
    _note_users(folder, found, due)
    found.sort(key=lambda entry: -int(entry["bytes"]))
    return {"entries": found[:MAX_TOLD], "error": "", "dropped": max(0, len(found) - MAX_TOLD)}


def kind_of(name: str) -> tuple[str, int | None]:
    """Return whose kind of name it is, empty for none, and the process that it names."""
    for kind, pattern in _KINDS:
        found = pattern.fullmatch(name)
        if found:
            groups = found.groupdict()
            pid = groups.get("pid") or groups.get("loky")
            if groups.get("hex"):
                return kind, int(groups["hex"], 16)
            return kind, int(pid) if pid and len(pid) < 10 else None
    return "", None


def _entry(
    name: str, kind: str, pid: int | None, status: os.stat_result, age: float
) -> dict[str, Any]:
    return {
        "name": name[:255],
        "kind": kind,
        "pid": pid,
        # What it takes of the memory; a file may be longer than what of it was ever written.
        "bytes": status.st_blocks * 512,
        "uid": status.st_uid,
        "folder": stat.S_ISDIR(status.st_mode),
        "age_seconds": round(age),
        "used": None,
    }


def _note_users(folder: str, entries: list[dict[str, Any]], due: float) -> None:
    """Note of each entry whether a process has it: the one that its name says, or one that maps it."""
    for entry in entries:
        if entry["pid"] is not None and os.path.exists(f"/proc/{entry['pid']}"):
            entry["used"] = True
    open_ones = [entry for entry in entries if entry["used"] is None]
    if not open_ones:
        return
    mapped, complete = _find_files({entry["uid"] for entry in open_ones}, folder, due)
    for entry in open_ones:
        path = os.fsencode(os.path.join(folder, entry["name"]))
        if any(each == path or each.startswith(path + b"/") for each in mapped):
            entry["used"] = True
        elif complete and os.getuid() in (0, entry["uid"]):
            entry["used"] = False


def _find_files(uids: Iterable[int], folder: str, due: float) -> tuple[set[bytes], bool]:
    """Return the files below ``folder`` that processes of ``uids`` have, and whether all were seen."""
    wanted, prefix = set(uids), os.fsencode(folder) + b"/"
    found: set[bytes] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid not in wanted:
                continue
        except OSError:
            continue
        if time.monotonic() > due:
            return found, False
        for line in read_head(f"/proc/{pid}/maps", MAX_MAPS_BYTES).splitlines():
            at = line.find(prefix)
            if at >= 0:
                found.add(line[at:].split(b" (deleted)")[0])
        found.update(
            os.fsencode(path) for path in open_files(int(pid)) if path.startswith(f"{folder}/")
        )
    return found, True


def sees_all_processes() -> bool:
    """Whether this process is in the first pid namespace, from which those of containers are seen."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False
