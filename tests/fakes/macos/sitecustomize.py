"""Python that takes this machine for a Mac: names that only Linux has are missing, as there.

What cannot be tried so is what a system call does on macOS.
"""

import os
import platform
import select
import signal
import socket
import sys
import types

import psutil  # noqa: F401 - chooses by the true platform, once

LINUX_ONLY = {
    os: "sched_getaffinity sched_setaffinity memfd_create pidfd_open eventfd posix_fadvise "
    "getresuid setresuid O_TMPFILE O_DIRECT O_PATH splice copy_file_range",
    select: "epoll",
    signal: "SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT",
    socket: "SO_PEERCRED SO_BINDTODEVICE AF_NETLINK AF_VSOCK TCP_USER_TIMEOUT SOCK_CLOEXEC "
    "SOCK_NONBLOCK",
}
for module, names in LINUX_ONLY.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
proxies = types.ModuleType("_scproxy")
proxies._get_proxies = proxies._get_proxy_settings = dict  # type: ignore[attr-defined]
sys.modules["_scproxy"] = proxies
sys.platform = "darwin"
platform.system = lambda: "Darwin"
