"""Program: can the Python that runs it build and install Horovod?"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig

from distconsole_agent.probes.standalone.reporting import FACTS, begin, find_mapped, leave, say

TOOLS = ("cmake", "c++", "g++", "mpicxx", "nvcc")


def look(modules: dict[str, str]) -> dict[str, object]:
    """Facts that decide if a wheel fits here, and if one can be built."""
    site = sysconfig.get_paths()["purelib"]
    marker = os.path.join(sysconfig.get_paths()["stdlib"], "EXTERNALLY-MANAGED")
    return {
        "tag": sysconfig.get_config_var("SOABI") or "",
        "platform": sysconfig.get_platform(),
        "libc": "-".join(platform.libc_ver()),
        "executable": sys.executable,
        "site": site,
        "site_id": identity(site),
        "writable": os.access(site, os.W_OK),
        "managed": os.path.exists(marker) and sys.prefix == sys.base_prefix,
        "pip": importlib.util.find_spec("pip") is not None,
        "tools": {name: shutil.which(name) for name in TOOLS},
        "cpus": len(os.sched_getaffinity(0)),
        "nccl": any(os.path.isfile(path) for path in headers()),
        "missing": [modules[name] for name in sorted(modules) if lacks(name)],
        "libstdcxx": libstdcxx(),
    }


def headers() -> list[str]:
    """Places of NCCL's header: beside torch's own NCCL, or in the system."""
    named = [os.environ.get(name) for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME", "CUDA_HOME")]
    folders = [*filter(None, named), "/usr", "/usr/local", "/usr/local/cuda"]
    folders += [os.path.join(entry, "nvidia", "nccl") for entry in sys.path]
    return [os.path.join(folder, "include", "nccl.h") for folder in folders]


def lacks(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        return True


def libstdcxx() -> str:
    """The file of the C++ library that this Python loads, its own or the system's; its name has the version."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libstdc++.so.6")
    found = find_mapped(r"/libstdc\+\+\.so")
    return os.path.basename(os.path.realpath(found[0])) if found else ""


def identity(path: str) -> str:
    """Identifies a folder among those of the same name on other hosts, unless they share it."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_ino}-{found.st_ctime_ns}"


def main(seconds: float, modules: dict[str, str]) -> None:
    """Look; ``modules`` are those that a build imports, with the packages that bring them."""
    begin(seconds)
    say(FACTS, look(modules))
    leave()
