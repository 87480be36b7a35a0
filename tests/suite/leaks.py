"""What a test must not leave: threads, child processes, file descriptors. It ends none of them."""

import contextlib
import gc
import itertools
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from distconsole_agent.system.procfs import read_process

SETTLE_SECONDS = 3.0
TICKS = os.sysconf("SC_CLK_TCK")
DESCRIPTORS = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
TASKS = Path("/proc/self/task")
KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Children that multiprocessing starts once and keeps until this process ends."""


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds at one moment."""

    threads: frozenset[tuple[int, str]]
    children: frozenset[tuple[int, str]]
    descriptors: frozenset[tuple[int, str]]
    ticks: int = 0

    @classmethod
    def now(cls) -> "Held":
        ticks = ticks_since_boot()
        return cls(threads(), children(), descriptors(), ticks)

    def since(self, earlier: "Held") -> list[str]:
        """Say what is held now and was not earlier, a line each.

        A child is known by its pid: one that was just started may have no words yet.
        """
        known = {pid for pid, _ in earlier.children}
        return [
            *(f"thread {name!r}" for _, name in sorted(self.threads - earlier.threads)),
            *(
                f"process {pid}: {argv}"
                for pid, argv in sorted(self.children)
                if pid not in known and began_after(pid, earlier.ticks)
            ),
            *(
                f"descriptor {fd}: {to}"
                for fd, to in sorted(self.descriptors - earlier.descriptors)
            ),
        ]


def leaked_since(earlier: Held, seconds: float = SETTLE_SECONDS) -> list[str]:
    """Return what is still held after at most ``seconds``, in which it may end by itself."""
    deadline = time.monotonic() + seconds
    # Garbage is nearly always young, and a look at all that modules hold takes half a second.
    generations = iter(range(3))
    while (left := Held.now().since(earlier)) and time.monotonic() < deadline:
        gc.collect(next(generations, 0))
        time.sleep(0.02)
    return left


def ticks_since_boot() -> int:
    """Return the clock by which the kernel says when a process began; 0 where there is none."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return int(time.clock_gettime(clock) * TICKS) if clock is not None else 0


def began_after(pid: int, ticks: int) -> bool:
    """Whether a process began at ``ticks`` or later, or is gone.

    Linux leaves children out of its list while one of their siblings ends (proc(5), on ``children``),
    so that one which was there all the time may seem to be new.
    """
    stat = read_process(pid)
    return stat is None or stat.starttime >= ticks


def threads() -> frozenset[tuple[int, str]]:
    return frozenset((thread.ident or 0, thread.name) for thread in threading.enumerate())


def children() -> frozenset[tuple[int, str]]:
    found = set()
    for child in own_children():
        try:
            argv = " ".join(child.cmdline())
        except psutil.ZombieProcess:
            argv = "(not waited for)"
        except psutil.NoSuchProcess:
            continue
        if not any(kept in argv for kept in KEPT_BY_PYTHON):
            found.add((child.pid, argv))
    return frozenset(found)


def own_children() -> list[psutil.Process]:
    """Return this process's children; Linux lists them, elsewhere all processes have to be looked at."""
    try:
        listed = [(task / "children").read_text().split() for task in TASKS.iterdir()]
    except OSError:  # no such list here, or a thread ended meanwhile
        return psutil.Process().children()
    found = []
    for pid in itertools.chain.from_iterable(listed):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(pid)))
    return found


def descriptors() -> frozenset[tuple[int, str]]:
    found = set()
    for name in os.listdir(DESCRIPTORS):  # noqa: PTH208 - a Path for each costs more than all else here
        with contextlib.suppress(OSError):
            found.add((int(name), os.readlink(f"{DESCRIPTORS}/{name}")))  # noqa: PTH115
    return frozenset(found - kept_descriptors(found))


def kept_descriptors(found: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return the listing's own descriptor, and the two pipes that modules hold for good once they need them."""
    from multiprocessing import resource_tracker

    held = {getattr(resource_tracker._resource_tracker, "_fd", None)}
    python_env = sys.modules.get("distconsole_agent.probes.software.python_env")
    if python_env and python_env._agent_pipe.cache_info().currsize:
        held.update(python_env._agent_pipe())
    own = {f"/proc/{os.getpid()}/fd", str(DESCRIPTORS)}
    return {(fd, target) for fd, target in found if fd in held or target in own}
