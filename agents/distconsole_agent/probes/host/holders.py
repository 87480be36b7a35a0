"""Processes that may be leftovers: what they hold, whose they are, in which state. It signals none.

Of a process only its number, user, age and the kernel's short name leave the node: arguments and
environments may hold secrets.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.host.procfs import (
    Process,
    all_processes,
    descendants_of,
    open_files,
    read_head,
    read_process,
    uptime_seconds,
)
from distconsole_agent.probes.network.ports import listeners
from distconsole_agent.supervisor.proctree import ENV_RUN_DIR, MAX_ENVIRON_BYTES

MAX_PROCESSES = 200
MAX_PORTS = 64
PATIENCE_SECONDS = 1.0
POLL_SECONDS = 0.1
SHARE = 0.5
"""Of the probe's time, for looking into open files; what is not looked at by then is counted."""

_TRAINING = re.compile(
    r"python[\d.]*|pypy[\d.]*|pt_main_thread|pt_elastic|torchrun|accelerate|deepspeed|horovodrun"
    r"|mpirun|mpiexec.*|orterun|prterun|prun|orted|prted|hydra_.*|ray::.*"
)
_LAUNCHER = re.compile(r"mpirun|mpiexec.*|orterun|prterun|prte|srun|slurmstepd|horovodrun")
_DAEMON = re.compile(r"orted|prted|hydra_pmi_proxy|hydra_bstrap.*")
_INIT = re.compile(r"systemd|init|tini|dumb-init|docker-init|catatonit|runit|s6-svscan")
_OURS = re.compile(rb"distconsole_agent|/agent-\w+\.pyz\0")
_GPU = re.compile(r"/dev/nvidia(\d+)$")
_CUDA = "/dev/nvidia-uvm"
"""What a process with a CUDA context has open, and one that only asks NVML has not."""


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``proc``.

    Args:
        args: ``ports``: of rendezvous, whose holders are of interest; ``patience_seconds``: how
            long a process must sleep in the kernel to be told as stuck.
    """
    ends = time.monotonic() + seconds
    patience = min(
        read.number(args, "patience_seconds", PATIENCE_SECONDS, 0.0, 10.0), 0.5 * seconds
    )
    ports = {port for port in read.items(args, "ports")[:MAX_PORTS] if isinstance(port, int)}
    every = all_processes()
    others = [each for each in every.values() if not each.kernel and each.pid > 1]
    holding = _Holding(os.getuid(), ports, time.monotonic() + SHARE * (ends - time.monotonic()))
    found = [
        facts
        for process in sorted(others, key=lambda each: not _TRAINING.fullmatch(each.name))
        if (facts := _interesting(process, every, holding)) is not None
    ]
    # What this probe's neighbours have started just now; ranks below us are another matter.
    own = descendants_of(os.getpid(), every)
    found = [facts for facts in found if facts["pid"] not in own or facts.get("run")]
    stuck = _stuck([each for each in others if each.state == "D"], patience)
    return {
        "uid": os.getuid(),
        "processes": [*found[:MAX_PROCESSES], *stuck[:MAX_PROCESSES]],
        "dropped": max(0, len(found) - MAX_PROCESSES),
        "unread": holding.unread,
    }


class _Holding:
    """What processes of this user hold of what training needs."""

    def __init__(self, uid: int, ports: set[int], due: float) -> None:
        self.uid = uid
        self.unread = 0
        self._due = due
        found = listeners() if ports else ()
        self._listeners = {
            each.open_file: each.port for each in found if each.uid == uid and each.port in ports
        }
        self._gpus = os.path.exists(_CUDA)

    def of(self, process: Process) -> tuple[list[int], list[int]]:
        """Return the GPUs that it computes on, and the ports that it listens on."""
        if process.uid != self.uid or not (self._gpus or self._listeners):
            return [], []
        if time.monotonic() > self._due:
            self.unread += 1
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
) -> dict[str, Any] | None:
    training = _TRAINING.fullmatch(process.name) is not None
    own = process.uid == holding.uid
    if process.state in "ZX":
        return _dead(process, every) if training and process.state == "Z" else None
    gpus, ports = holding.of(process)
    run, state = _run_of(process.pid) if own and training else ("", "")
    role = _role(process.name)
    if not (gpus or ports or run or role):
        return None
    if _OURS.search(read_head(f"/proc/{process.pid}/cmdline", 4096) + b"\0"):
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
    """Whether a process has the parent that the kernel gives to those that lost theirs.

    In a container the first process may be the job itself. A parent that is not to be seen is
    another user's (hidepid of proc(5)), and alive.
    """
    return parent is not None and _INIT.fullmatch(parent.name) is not None


def _role(name: str) -> str:
    if _LAUNCHER.fullmatch(name):
        return "launcher"
    return "daemon" if _DAEMON.fullmatch(name) else ""


def _run_of(pid: int) -> tuple[str, str]:
    """Return the run that ``pid`` was started in, and whether that is over."""
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
    parent = every.get(process.ppid)
    return {
        **process.told(),
        "state": "Z",
        "threads": sum(state not in "ZX" for state in _thread_states(process.pid)),
        "parent": parent.told() if parent is not None else None,
    }


def _thread_states(pid: int) -> Iterator[str]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads[:1024]:
        text = read_head(f"/proc/{pid}/task/{thread}/stat", 512)
        fields = text[text.rfind(b")") + 2 :].split()
        if fields:
            yield fields[0].decode("ascii", "replace")


def _stuck(sleepers: list[Process], patience: float) -> list[dict[str, Any]]:
    """Return those that sleep in the kernel for ``patience`` seconds without waking once."""
    began = time.monotonic()
    sleeps = {each.pid: _switches(each.pid) for each in sleepers}
    left = sleepers
    while left and time.monotonic() - began < patience:
        time.sleep(min(POLL_SECONDS, patience))
        uptime = uptime_seconds()
        left = [each for each in left if _sleeps_on(each, uptime, sleeps[each.pid])]
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


def _sleeps_on(process: Process, uptime: float, switches: bytes) -> bool:
    now = read_process(process.pid, uptime)
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
