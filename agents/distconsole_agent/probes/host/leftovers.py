"""Possible leftovers of crashed jobs: processes, their resources, and segments in /dev/shm.

It signals none. Of a process only its number, user, age and the kernel's short name leave the node:
arguments and environments may hold secrets.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from typing import Any

from distconsole_agent.node_folder.folders import SHARED_MEMORY
from distconsole_agent.probes.arguments import bounded
from distconsole_agent.supervisor.proctree import EMBEDDED, ENV_RUN_DIR, MAX_ENVIRON_BYTES
from distconsole_agent.system.command_lines import is_ours, split_words
from distconsole_agent.system.kernel_files import entries_of
from distconsole_agent.system.procfs import (
    Process,
    all_processes,
    descendants_of,
    open_files,
    read_head,
    read_process,
    sees_all_processes,
)
from distconsole_agent.system.tcp_sockets import LISTEN, tcp_sockets

MAX_PROCESSES = 200
MAX_PORTS = 64
MAX_THREADS = 1024
PATIENCE_SECONDS = 1.0
POLL_SECONDS = 0.1
SHARE = 0.5
"""Of the probe's time, for looking into processes."""

_TRAINING = re.compile(
    r"python[\d.]*[td]*|pypy[\d.]*|pt_main_thread|pt_elastic|torchrun|accelerate|deepspeed|horovodrun"
    r"|mpirun|mpiexec.*|orterun|prterun|prun|orted|prted|hydra_.*|ray::.*"
)
_LAUNCHER = re.compile(r"mpirun|mpiexec.*|orterun|prterun|prte|srun|slurmstepd|horovodrun")
_DAEMON = re.compile(r"orted|prted|hydra_pmi_proxy|hydra_bstrap.*")
_INIT = re.compile(r"systemd|init|tini|dumb-init|docker-init|catatonit|runit|s6-svscan")
_GPU = re.compile(r"/dev/nvidia(\d+)$")
_CUDA = "/dev/nvidia-uvm"
"""A file that a process with a CUDA context has open, and one that only asks NVML has not."""

MAX_ENTRIES = 4096
MAX_TOLD = 64
MAX_MAPS_BYTES = 1 << 22
YOUNG_SECONDS = 60.0
"""A file as young as this may be between its making and its mapping."""

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


def look_at_processes(
    seconds: float, *, ports: Sequence[int] = (), patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, object]:
    """Return the facts of group ``proc``.

    Args:
        ports: Rendezvous ports whose holders are reported.
        patience_seconds: How long a process must sleep in the kernel to count as stuck.
    """
    ends = time.monotonic() + seconds
    patience = bounded(patience_seconds, 0.0, min(10.0, 0.5 * seconds))
    every = all_processes()
    others = [each for each in every.values() if not each.kernel and each.pid > 1]
    if EMBEDDED in os.environ:
        mark = os.fsencode(f"{EMBEDDED}={os.environ[EMBEDDED]}")
        environs = (
            (each, read_head(f"/proc/{each.pid}/environ", MAX_ENVIRON_BYTES)) for each in others
        )
        others = [each for each, environ in environs if mark in environ.split(b"\0")]
    holding = _Holding(
        os.getuid(), set(ports[:MAX_PORTS]), time.monotonic() + SHARE * (ends - time.monotonic())
    )
    found = [
        facts
        for process in sorted(others, key=lambda each: not _TRAINING.fullmatch(each.name))
        if (facts := _interesting(process, every, holding)) is not None
    ]
    # Exclude processes that this probe's neighbours have just started, but not ranks below us.
    own = descendants_of(os.getpid(), every)
    found = [facts for facts in found if facts["pid"] not in own or facts.get("run")]
    stuck = _stuck([each for each in others if each.state == "D"], patience)
    return {
        "uid": os.getuid(),
        "processes": [*found[:MAX_PROCESSES], *stuck[:MAX_PROCESSES]],
        "dropped": max(0, len(found) - MAX_PROCESSES),
    }


class _Holding:
    """Resources for training that processes of this user hold."""

    def __init__(self, uid: int, ports: set[int], due: float) -> None:
        self.uid = uid
        self._due = due
        found = tcp_sockets() if ports else ()
        own = (each for each in found if each.state == LISTEN and each.uid == uid)
        self._listeners = {e.open_file: e.here[1] for e in own if e.here[1] in ports}
        self._gpus = os.path.exists(_CUDA)

    def of(self, process: Process) -> tuple[list[int], list[int]]:
        """Return the GPUs that it computes on, and the ports that it listens on."""
        if process.uid != self.uid or not (self._gpus or self._listeners):
            return [], []
        if time.monotonic() > self._due:
            return [], []
        gpus, ports, cuda = set(), set(), False
        for target in open_files(process.pid):
            gpu = _GPU.match(target)
            if gpu:
                gpus.add(int(gpu[1]))
            cuda = cuda or target == _CUDA
            if target in self._listeners:
                ports.add(self._listeners[target])
        return sorted(gpus) if cuda else [], sorted(ports)


def _interesting(
    process: Process, every: dict[int, Process], holding: _Holding
) -> dict[str, object] | None:
    training = _TRAINING.fullmatch(process.name) is not None
    own = process.uid == holding.uid
    if process.has_ended:
        return _dead(process, every) if training and process.state == "Z" else None
    gpus, ports = holding.of(process)
    run, state = _run_of(process.pid) if own and training else ("", "")
    role = "daemon" if _DAEMON.fullmatch(process.name) else ""
    role = "launcher" if _LAUNCHER.fullmatch(process.name) else role
    if not (gpus or ports or run or role):
        return None
    if is_ours(split_words(read_head(f"/proc/{process.pid}/cmdline", 4096))):
        return None
    return {
        **process.told(),
        "state": process.state,
        "role": role,
        "gpus": gpus,
        "ports": ports,
        "run": run,
        "run_state": state,
        "orphan": _is_orphan(every.get(process.ppid)),
    }


def _is_orphan(parent: Process | None) -> bool:
    """Return True if a process has the parent that the kernel gives to orphans.

    In a container the first process may be the job itself. A parent that is invisible is
    another user's (hidepid of proc(5)), and alive.
    """
    return parent is not None and _INIT.fullmatch(parent.name) is not None


def _run_of(pid: int) -> tuple[str, str]:
    environ = read_head(f"/proc/{pid}/environ", MAX_ENVIRON_BYTES)
    mark = os.fsencode(ENV_RUN_DIR) + b"="
    for entry in environ.split(b"\0"):
        if entry.startswith(mark):
            # As that process sees it: it may live in a container with folders of its own.
            folder = f"/proc/{pid}/root{os.fsdecode(entry[len(mark) :])}"
            name = os.path.basename(folder)[:128]
            if not os.path.isdir(folder):
                return name, "gone"
            ended = os.path.exists(os.path.join(folder, "ended.json"))
            return name, "ended" if ended else "going on"
    return "", ""


def _dead(process: Process, every: dict[int, Process]) -> dict[str, Any]:
    """A zombie; while a thread of it lives, it keeps its memory and its GPUs."""
    parent, folder = every.get(process.ppid), f"/proc/{process.pid}/task"
    threads = (read_process(int(name), folder) for name in entries_of(folder)[:MAX_THREADS])
    return {
        **process.told(),
        "state": "Z",
        "threads": sum(thread is not None and not thread.has_ended for thread in threads),
        "parent": parent.told() if parent is not None else None,
    }


def _stuck(sleepers: list[Process], patience: float) -> list[dict[str, Any]]:
    """Return those that sleep in the kernel for ``patience`` seconds without waking once."""
    began = time.monotonic()
    sleeps = {each.pid: _switches(each.pid) for each in sleepers}
    left = sleepers
    while left and time.monotonic() - began < patience:
        time.sleep(min(POLL_SECONDS, patience))
        left = [each for each in left if _sleeps_on(each, sleeps[each.pid])]
    waited = time.monotonic() - began
    return [
        {
            **each.told(),
            "state": "D",
            "wait_seconds": round(waited, 1),
            "where": read_head(f"/proc/{each.pid}/wchan", 64)
            .decode("ascii", "replace")
            .strip("0"),
        }
        for each in left
    ]


def _sleeps_on(process: Process, switches: bytes) -> bool:
    now = read_process(process.pid)
    return (
        now is not None
        and (now.starttime, now.state) == (process.starttime, "D")
        and _switches(process.pid) == switches
    )


def _switches(pid: int) -> bytes:
    """Return how often the process has gone to sleep: the same number is the same sleep."""
    for line in read_head(f"/proc/{pid}/status", 8192).splitlines():
        if line.startswith(b"voluntary_ctxt_switches:"):
            return line
    return b""


def look_at_shared_memory(seconds: float) -> dict[str, object]:
    """Return the facts of group ``shm``: entries with name, kind, bytes, uid, age, and the processes that have them open.

    ``used`` of an entry is null if it is unknown: another user's processes may have it open.
    """
    return {
        **find_entries(SHARED_MEMORY, time.time(), time.monotonic() + SHARE * seconds),
        "uid": os.getuid(),
        "all_processes_seen": sees_all_processes(),
    }


def find_entries(folder: str, now: float, due: float) -> dict[str, Any]:
    """Return the entries of ``folder`` that bear the name of an engine; ``due`` ends the search for users."""
    found: list[dict[str, Any]] = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:  # so nothing is left in it
        names = []
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
                found.append(
                    {
                        "name": name[:255],
                        "kind": kind,
                        "pid": pid,
                        # Its memory; a file may be longer than its written part.
                        "bytes": status.st_blocks * 512,
                        "uid": status.st_uid,
                        "folder": stat.S_ISDIR(status.st_mode),
                        "age_seconds": round(age),
                        "used": None,
                    }
                )
    _note_users(folder, found, due)
    found.sort(key=lambda entry: -int(entry["bytes"]))
    return {"entries": found[:MAX_TOLD], "error": "", "dropped": max(0, len(found) - MAX_TOLD)}


def kind_of(name: str) -> tuple[str, int | None]:
    for kind, pattern in _KINDS:
        found = pattern.fullmatch(name)
        if found:
            groups = found.groupdict()
            pid = groups.get("pid") or groups.get("loky")
            if groups.get("hex"):
                return kind, int(groups["hex"], 16)
            return kind, int(pid) if pid and len(pid) < 10 else None
    return "", None


def _note_users(folder: str, entries: list[dict[str, Any]], due: float) -> None:
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
