"""Which processes belong to a run, by ancestry and by environment, read from /proc.

Reading a process's memory, with its environment and arguments, takes the kernel's lock on that
memory. If a process hangs with the lock (a mount or a swap device that is gone), its readers hang
too. So a thread reads, and is left behind until the kernel releases it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from distconsole_agent.system.command_lines import read_target, split_words
from distconsole_agent.system.procfs import (
    Process,
    all_processes,
    descendants_of,
    list_pids,
    read_head,
    read_process,
)

ENV_RUN_DIR = "DISTCONSOLE_RUN_DIR"
"""The run's folder on this node. The run's id would not do: where several nodes of a run live on
one machine (the demo), one node must not take another one's processes for its own."""

ENV_JOB, SLURM_JOB = "DISTCONSOLE_SLURM_JOB", "SLURM_JOB_ID"
"""The Slurm job of a rank at its start: jobs that the rank submits inherit the first of them, and get a
job of their own in the second."""

EMBEDDED = "DISTCONSOLE_EMBEDDED"
"""Set by a console that embeds nodes in its own machine: a process with another value is not of this node."""

MAX_ENVIRON_BYTES = 1 << 20
RETRY_SECONDS = 0.05
KILL_SECONDS = 5.0

TIDY_SECONDS = 4.0
"""Time for a process that removes leftovers of killed ones."""

SHM_MANAGER = "torch_shm_manag"
"""The kernel's name of torch's ``torch_shm_manager``, in a session of its own. 2 s after the last process that shares
tensors by files it removes these files and ends; SIGTERM ends it before it does."""

TRACKER = b".resource_tracker import main"
"""In the command line of the resource trackers of multiprocessing, multiprocess and loky. They end by themselves after
those that they serve and remove their semaphores and shared memory, and ignore SIGTERM. One that is killed with those
leaves them in /dev/shm until the next boot."""

ENDING = (b".forkserver import main", b"/wandb-core\0")
"""In the command lines of other helpers that end as soon as they see that the process that started them has ended: the
forkserver (with the script's modules loaded, for more than 1 s on busy processors) and the one that writes what
wandb records."""

IDLE = (b"torch/_inductor/compile_worker/", b"/wandb-symon\0")
"""In the command lines of helpers of torch and wandb that look for the end of the process that started them only now
and then (4 to 60 s), and hold nothing that a signal would lose."""

MAX_FILE_BYTES = 1 << 20

PATIENCE_SECONDS = 1.0
"""A file that takes longer hangs."""

MAX_HANGING = 8
"""Threads that are left behind; with this many nothing more is read."""

_hanging: dict[str, threading.Thread] = {}


def owner_of(pid: int) -> int | None:
    """Return the user of a process; None when there is no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def own_pids() -> list[int]:
    return [pid for pid in list_pids() if owner_of(pid) == os.getuid()]


def descendants(root: int) -> dict[int, Process]:
    """Return the living processes below ``root``, of whatever user, without zombies."""
    every = all_processes()
    below = (every[pid] for pid in descendants_of(root, every) - {root})
    return {each.pid: each for each in below if not each.has_ended}


def pids_of_run(run_dir: str, *, doubtful: bool = False) -> dict[int, Process]:
    """Return this user's living processes that were started in ``run_dir``.

    The environment is that of the last exec, so a process cannot lose the mark by accident; one
    that removes it from its environment on purpose before an exec is not found. One of a Slurm job
    that a rank has submitted inherits the mark and is not of the run.

    Args:
        doubtful: Also those that cannot be looked into in time.
    """
    mark = os.fsencode(f"{ENV_RUN_DIR}={run_dir}")
    before = {pid: read_process(pid) for pid in own_pids() if pid != os.getpid()}
    texts = read_in_time([f"/proc/{pid}/environ" for pid in before])
    found = {}
    for (pid, then), text in zip(before.items(), texts.values()):
        words = text.split(b"\0") if text is not None else []
        named = dict(word.partition(b"=")[::2] for word in words) if mark in words else {}
        job = named.get(os.fsencode(ENV_JOB))
        is_ours = named and job in (None, named.get(os.fsencode(SLURM_JOB), b""))
        if is_ours or (doubtful and text is None):
            now = read_process(pid)
            if now is not None and not now.has_ended and now.is_of(then):
                found[pid] = now
    return found


def read_environ(pid: int) -> dict[bytes, bytes]:
    """Return the environment of ``pid`` as of its last exec; empty when it cannot be read."""
    return {
        name: value
        for name, equals, value in (
            word.partition(b"=") for word in _read(f"/proc/{pid}/environ").split(b"\0")
        )
        if equals
    }


def _read(path: str) -> bytes:
    return read_in_time([path])[path] or b""


def host_pid(inner: int, run_dir: str, rank: int) -> int:
    """Return the pid here of a run's process whose own namespace calls it ``inner``; 0 when there is none.

    Of several, each in a namespace of its own, it is that of ``rank``. One that has come into its container
    and has not executed its program yet is known by its script.
    """
    found = []
    for pid in own_pids():
        if own_number(pid) != inner:
            continue
        environment = read_environ(pid)
        script = (*_read(f"/proc/{pid}/cmdline").split(b"\0"), b"", b"")[1]
        if environment.get(os.fsencode(ENV_RUN_DIR)) == os.fsencode(run_dir):
            found.append((environment.get(b"RANK") != b"%d" % rank, pid))
        elif script.startswith(os.fsencode(f"{run_dir}/")):
            found.append((b"-%d-" % rank not in os.path.basename(script), pid))
    return min(found, default=(False, 0))[1]


def own_number(pid: int) -> int:
    """Return the pid that a process has in its own namespace (NSpid of proc(5)); 0 when it is gone."""
    found = re.search(rb"^NSpid:.*\s(\d+)$", _read(f"/proc/{pid}/status"), re.MULTILINE)
    return int(found[1]) if found else 0


def kill_run(run_dir: str) -> list[int]:
    """SIGKILL the processes started in ``run_dir``; return those that are still there, as the kernel holds them."""
    begun = time.monotonic()
    deadline = begun + KILL_SECONDS
    while True:
        left = pids_of_run(run_dir)
        patient = time.monotonic() < begun + TIDY_SECONDS
        for pid, stat in left.items():
            if not (patient and tidies_up(pid, stat)):
                send(pid, stat, signal.SIGKILL)
        if not left or time.monotonic() >= deadline:
            return list(left)
        time.sleep(RETRY_SECONDS)


def kill_marked(mark: str) -> None:
    """SIGKILL the processes started with the word ``mark`` in their environment or command line."""
    deadline = time.monotonic() + KILL_SECONDS
    while (left := _pids_marked(os.fsencode(mark))) and time.monotonic() < deadline:
        for pid, stat in left.items():
            send(pid, stat, signal.SIGKILL)
        time.sleep(RETRY_SECONDS)


def _pids_marked(mark: bytes) -> dict[int, Process]:
    stats = {pid: read_process(pid) for pid in own_pids() if pid != os.getpid()}
    paths = [f"/proc/{pid}/{name}" for pid in stats for name in ("environ", "cmdline")]
    texts = read_in_time(paths)
    return {
        pid: stat
        for pid, stat in stats.items()
        if stat is not None and not stat.has_ended
        for words in (f"/proc/{pid}/environ", f"/proc/{pid}/cmdline")
        if mark in (texts[words] or b"").split(b"\0")
    }


def tidies_up(pid: int, stat: Process) -> bool:
    """Return True if a process removes leftovers of others, and then ends by itself."""
    return stat.name == SHM_MANAGER or TRACKER in _read(f"/proc/{pid}/cmdline")


class Helpers(NamedTuple):
    """The pids of helpers that packages start; none has to be ended by the script that uses them.

    Attributes:
        ending: They end by themselves within seconds after the process that started them. Any process that the
            kernel is ending is among them.
        idle: They would stay longer, and do nothing.
    """

    ending: set[int]
    idle: set[int]


def find_helpers(processes: dict[int, Process]) -> Helpers:
    """Return which of ``processes`` are helpers that outlive the process that started them."""
    texts = read_in_time([f"/proc/{pid}/cmdline" for pid in processes])
    found = Helpers(set(), set())
    for (pid, stat), text in zip(processes.items(), texts.values()):
        words = text or b""
        now = stat if words else read_process(pid)
        is_known = stat.name == SHM_MANAGER or any(each in words for each in (TRACKER, *ENDING))
        if now is None or now.is_over or is_known:
            found.ending.add(pid)
        elif any(each in words for each in IDLE):
            found.idle.add(pid)
    return found


def program_names(pids: Sequence[int]) -> list[str]:
    """Return each process's program, and its pid: for Python the script or the module."""
    texts = read_in_time([f"/proc/{pid}/cmdline" for pid in pids])
    found = []
    for pid, text in zip(pids, texts.values()):
        words = split_words(text or b"\0")
        name = os.path.basename(words[0])
        target = read_target(words).name if name.startswith(("python", "pypy")) else ""
        found.append(f"{os.path.basename(target) or name or 'a process'} ({pid})")
    return found


def send(pid: int, stat: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            held = os.pidfd_open(pid)
        except (AttributeError, OSError):  # an old kernel, or no descriptor left
            if _is(pid, stat):
                os.kill(pid, number)
            return
        try:
            if _is(pid, stat):
                signal.pidfd_send_signal(held, number)
        finally:
            os.close(held)


def _is(pid: int, stat: Process) -> bool:
    now = read_process(pid)
    return now is not None and now.is_of(stat)


def send_group(pgid: int, number: int) -> bool:
    """Send a signal to a process group; return False if there is no such group."""
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def read_in_time(paths: Sequence[str]) -> dict[str, bytes | None]:
    """Return the content of the files: empty for an unreadable one, None for one that does not come in time."""
    for path in [path for path, thread in _hanging.items() if not thread.is_alive()]:
        del _hanging[path]
    found: dict[str, bytes | None] = dict.fromkeys(paths)
    left = [path for path in paths if path not in _hanging]
    while left and len(_hanging) < MAX_HANGING:
        reader = _Reader(left)
        try:
            reader.start()
        except RuntimeError:  # the system has no thread left
            reader.run()
        reader.wait()
        taken = list(reader.found)
        found.update(taken)
        if len(taken) == len(left):
            break
        _hanging[left[len(taken)]] = reader
        left = left[len(taken) + 1 :]
    return found


class _Reader(threading.Thread):
    """Reads files one after the other; ``found`` has those that it has read."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(daemon=True, name="reader of /proc")
        self._paths = paths
        self._given_up = False
        self.found: list[tuple[str, bytes]] = []

    def run(self) -> None:
        for path in self._paths:
            text = read_head(path, MAX_FILE_BYTES)
            if self._given_up:
                return
            self.found.append((path, text))

    def wait(self) -> None:
        seen = -1
        while self.is_alive() and len(self.found) > seen:
            seen = len(self.found)
            self.join(PATIENCE_SECONDS)
        self._given_up = True
