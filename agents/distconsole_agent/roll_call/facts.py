"""Reads from /proc the activity and the waits of a rank's main thread, and its children."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from distconsole_agent.system.procfs import Process, printable, read_head, stat_fields
from distconsole_agent.system.tcp_sockets import tcp_sockets

MAX_WORDS = 512
MAX_CHILDREN = 64

_TICKS = os.sysconf("SC_CLK_TCK")
_HEAD = 4096
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_CHILD_WAITS = frozenset(("do_wait", "kernel_wait4", "wait_consider_task"))
_BY_WCHAN = (
    ("futex_", "lock"),
    ("pipe_read", "pipe"),
    ("anon_pipe_read", "pipe"),
    ("wait_for_partner", "pipe"),
    ("unix_stream_", "socket"),
    ("sk_wait_data", "socket"),
    ("inet_csk_accept", "socket"),
    ("n_tty_read", "terminal"),
)
"""Kernel function -> the wait of a thread in it, without the permission to see its system call."""
_FILE_LOCKS = ("posix_lock", "locks_lock", "flock_lock", "fcntl_setlk", "nlmclnt_")

_CALLS = {
    "read": (0, 63),
    "write": (1, 64),
    "poll": (7, None),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "select": (23, None),
    "sched_yield": (24, 124),
    "dup": (32, None),
    "pause": (34, None),
    "nanosleep": (35, 101),
    "sendfile": (40, 71),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "wait4": (61, 260),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "futex": (202, 98),
    "getdents64": (217, 61),
    "clock_nanosleep": (230, 115),
    "epoll_wait": (232, None),
    "waitid": (247, 95),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "epoll_pwait": (281, 22),
    "accept4": (288, 242),
    "recvmmsg": (299, 243),
    "statx": (332, 291),
    "epoll_pwait2": (441, 441),
    "epoll_create1": (None, 20),
}
"""System calls in which a program waits, with their numbers on x86-64 and ARM64."""

_MACHINE = ("x86_64", "aarch64")
_SYSTEM_CALLS = {
    numbers[_MACHINE.index(os.uname().machine)]: name
    for name, numbers in (_CALLS.items() if os.uname().machine in _MACHINE else ())
}

_WAITING_FOR_CHILD = frozenset(("wait4", "waitid"))

_ON_A_DESCRIPTOR = frozenset(
    (
        *("read", "write", "pread64", "pwrite64", "readv", "writev", "sendfile", "getdents64"),
        *("connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "recvmmsg"),
        *("fcntl", "flock", "fsync", "fdatasync"),
    )
)
"""Those whose first argument is the descriptor that they wait for."""

Facts = dict[str, Any]


class ProcessLook(NamedTuple):
    """Counters of a process at a time: CPU seconds of it and of its main thread, and major page faults."""

    at: float
    cpu: float
    main_cpu: float
    major_faults: int


def look(pid: int) -> ProcessLook | None:
    """Return the counters of ``pid`` now; None when there is no such process (any more)."""
    whole, main = _fields(f"/proc/{pid}/stat"), _fields(f"/proc/{pid}/task/{pid}/stat")
    if len(whole) < 13:
        return None
    cpu_of_main = _cpu(main) if len(main) >= 13 else 0.0
    return ProcessLook(time.monotonic(), _cpu(whole), cpu_of_main, int(whole[9]))


def cpu_of(pid: int) -> float:
    fields = _fields(f"/proc/{pid}/stat")
    return _cpu(fields) if len(fields) >= 13 else 0.0


def last_run_of(task: str) -> float | None:
    """Return when a task of /proc has last run, in seconds of the kernel's own clock; None if unknown."""
    found = re.search(rb"se\.exec_start +: +(\d+)(\.\d+)", read_head(f"/proc/{task}/sched", _HEAD))
    return None if found is None else float(found[1] + found[2]) / 1000


def interpreter_of(pid: int) -> str:
    """Return the interpreter of ``pid``'s command line; empty if unknown."""
    return read_head(f"/proc/{pid}/cmdline", _HEAD).split(b"\0")[0].decode("utf-8", "replace")


def describe_main_thread(pid: int, status: dict[str, str]) -> Facts:
    """Return state, wchan, system call, kernel stack, debugger, memory, and wait of the main thread."""
    stat = _fields(f"/proc/{pid}/task/{pid}/stat")
    wchan = printable(read_head(f"/proc/{pid}/wchan", 128), 64)
    # Functions of the kernel; none without the permission to ask.
    stack = read_head(f"/proc/{pid}/stack", _HEAD).decode("ascii", "replace")
    found: Facts = {
        "state": stat[0].decode("ascii", "replace") if stat else "",
        "wchan": "" if wchan == "0" else wchan,
        "syscall": _syscall(pid),
        "native": re.findall(r"\] ([\w.]+)\+", stack)[:32],
        "tracer": _number(status.get("TracerPid")),
        "swap_bytes": _number(status.get("VmSwap")) * 1024,
        "rss_bytes": _number(status.get("VmRSS")) * 1024,
    }
    found["waits_for"] = waits_for(pid, found)
    if found["syscall"] is not None:
        del found["syscall"]["first"]
    return found


def read_status(pid: int) -> dict[str, str]:
    """Return the lines of /proc/PID/status; empty when there is no such process."""
    lines = read_head(f"/proc/{pid}/status", 2 * _HEAD).decode("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def waits_for(pid: int, found: Facts) -> Facts | None:
    """Return the wait of the thread that ``found`` describes, as far as the kernel shows it."""
    state, wchan = found["state"], found["wchan"]
    call = found["syscall"] or {}
    name, fd = call.get("name", ""), call.get("fd")
    if found["tracer"]:
        return {"kind": "debugger", "what": f"pid {found['tracer']}"}
    if state == "T":
        return {"kind": "stopped", "what": ""}
    if state == "D":
        return {"kind": "disk", "what": _path_of(pid, fd)}
    if state != "S":
        return None
    if name in _WAITING_FOR_CHILD or wchan in _CHILD_WAITS:
        child = call.get("first", 0)
        return {"kind": "child", "what": f"pid {child}" if 0 < child < 1 << 31 else ""}
    if wchan.startswith(_FILE_LOCKS) or name == "flock":
        return {"kind": "lock", "what": _file_lock(pid, fd)}
    if name in _ON_A_DESCRIPTOR:
        return _wait_on(pid, fd)
    kind = next((kind for begin, kind in _BY_WCHAN if wchan.startswith(begin)), None)
    if name == "futex":
        kind = "lock"
    return None if kind is None else {"kind": kind, "what": ""}


def children_of(pid: int, processes: dict[int, Process]) -> list[Facts]:
    """Return the processes that ``pid`` has started and not waited for, at most ``MAX_CHILDREN``."""
    found: list[Facts] = []
    for each in sorted(one for one in processes.values() if one.ppid == pid)[:MAX_CHILDREN]:
        ended = None
        # The kernel shows the exit of a zombie to its own user.
        if each.has_ended and len(fields := _fields(f"/proc/{each.pid}/stat")) >= 50:
            status = int(fields[49])
            number = status & 0x7F
            ended = {"signal": number} if number else {"exit_code": status >> 8 & 0xFF}
        found.append({"pid": each.pid, "state": each.state, "name": each.name, "ended": ended})
    return found


def _fields(path: str) -> list[bytes]:
    """Return the fields of a stat file from the third one on, the state (proc(5))."""
    return stat_fields(read_head(path, _HEAD))[1]


def _cpu(fields: list[bytes]) -> float:
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _number(text: str | None) -> int:
    first = (text or "").split(" ")[0]
    return int(first) if first.isdecimal() else 0


def _syscall(pid: int) -> Facts | None:
    """Return name, descriptor and first argument of the system call that the main thread is in."""
    words = read_head(f"/proc/{pid}/syscall", 256).split()
    if len(words) < 4 or not words[0].isdigit():
        return None
    number, first = int(words[0]), int(words[1], 16)
    name = _SYSTEM_CALLS.get(number, f"syscall {number}")
    fd = first if name in _ON_A_DESCRIPTOR and first < 1 << 20 else None
    return {"name": name, "fd": fd, "first": first}


def keeps_its_call(pid: int) -> bool:
    """Return True if the kernel may hide the present system call of ``pid`` from us."""
    try:
        with open(f"/proc/{pid}/syscall", "rb", buffering=0) as file:
            file.read(256)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _path_of(pid: int, fd: int | None) -> str:
    if fd is None:
        return ""
    with contextlib.suppress(OSError):
        return printable(os.fsencode(os.readlink(f"/proc/{pid}/fd/{fd}")), MAX_WORDS)
    return ""


def _wait_on(pid: int, fd: int | None) -> Facts | None:
    """Return the object behind a descriptor that a thread reads or writes."""
    path = _path_of(pid, fd)
    if path.startswith("socket:["):
        peer = next((peer for _, peer in connections_of(pid, {path[8:-1]})), "")
        return {"kind": "socket", "what": peer}
    if path.startswith("pipe:["):
        return {"kind": "pipe", "what": path}
    if path.startswith(_TERMINALS):
        return {"kind": "terminal", "what": path}
    if path.startswith("/"):
        return {"kind": "file", "what": path}
    return None


def connections_of(pid: int, inodes: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the addresses of both ends of TCP sockets of ``pid``; the other one has port 0 for a listener."""
    for each in tcp_sockets(f"/proc/{pid}/net"):
        if each.inode in inodes:
            yield _write_end(*each.here), _write_end(*each.there)


def _write_end(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _file_lock(pid: int, fd: int | None) -> str:
    """Return the holder of a file's lock that ``pid`` waits for (proc_locks(5))."""
    lines = read_head("/proc/locks", 1 << 18).decode("ascii", "replace").splitlines()
    for line in lines:
        words = line.split()
        if "->" in words and words[words.index("->") + 4 :][:1] == [str(pid)]:
            number = words[0]
            for held in (each.split() for each in lines):
                if held[:1] == [number] and "->" not in held and len(held) > 4:
                    path = _path_of(pid, fd)
                    return f"pid {held[4]}" + (f", {path}" if path else "")
    return _path_of(pid, fd)
