"""System calls by number, for the two machines that clusters are made of: those in which a program waits."""

from __future__ import annotations

import os

_X86_64 = {
    0: "read",
    1: "write",
    7: "poll",
    17: "pread64",
    18: "pwrite64",
    19: "readv",
    20: "writev",
    23: "select",
    24: "sched_yield",
    32: "dup",
    34: "pause",
    35: "nanosleep",
    40: "sendfile",
    42: "connect",
    43: "accept",
    44: "sendto",
    45: "recvfrom",
    46: "sendmsg",
    47: "recvmsg",
    61: "wait4",
    72: "fcntl",
    73: "flock",
    74: "fsync",
    75: "fdatasync",
    128: "rt_sigtimedwait",
    130: "rt_sigsuspend",
    202: "futex",
    217: "getdents64",
    230: "clock_nanosleep",
    232: "epoll_wait",
    247: "waitid",
    257: "openat",
    262: "newfstatat",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
    288: "accept4",
    299: "recvmmsg",
    332: "statx",
    441: "epoll_pwait2",
}
_AARCH64 = {
    20: "epoll_create1",
    22: "epoll_pwait",
    25: "fcntl",
    32: "flock",
    56: "openat",
    61: "getdents64",
    63: "read",
    64: "write",
    65: "readv",
    66: "writev",
    67: "pread64",
    68: "pwrite64",
    71: "sendfile",
    72: "pselect6",
    73: "ppoll",
    79: "newfstatat",
    82: "fsync",
    83: "fdatasync",
    95: "waitid",
    98: "futex",
    101: "nanosleep",
    115: "clock_nanosleep",
    124: "sched_yield",
    133: "rt_sigsuspend",
    137: "rt_sigtimedwait",
    202: "accept",
    203: "connect",
    206: "sendto",
    207: "recvfrom",
    211: "sendmsg",
    212: "recvmsg",
    242: "accept4",
    243: "recvmmsg",
    260: "wait4",
    291: "statx",
    441: "epoll_pwait2",
}
_OF_MACHINE = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(os.uname().machine, {})

WAITING_FOR_CHILD = frozenset(("wait4", "waitid"))

ON_A_DESCRIPTOR = frozenset(
    (
        *("read", "write", "pread64", "pwrite64", "readv", "writev", "sendfile", "getdents64"),
        *("connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "recvmmsg"),
        *("fcntl", "flock", "fsync", "fdatasync"),
    )
)
"""Those whose first argument is the descriptor that they wait for."""


def name_of(number: int) -> str:
    """Return the name of a system call of this machine; its number where that is not known."""
    return _OF_MACHINE.get(number, f"syscall {number}")
