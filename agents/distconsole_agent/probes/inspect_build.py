"""Script: says whether the Python that runs it could build Horovod and have it installed.

It prints one line: a mark and a JSON object. It imports neither torch nor Horovod.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import signal
import sys
import sysconfig
from typing import Any

MARK = "distconsole-build "
SECONDS = 30
TOOLS = ("cmake", "c++", "g++", "mpicxx", "nvcc")


def look() -> dict[str, Any]:
    """What decides whether a wheel fits here, and what building one needs."""
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
    }


def identity(path: str) -> str:
    """What tells a folder from those of the same name on other hosts, unless they share it."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_ino}-{found.st_ctime_ns}"


if __name__ == "__main__":
    # Whatever becomes of the agent, this process ends.
    signal.alarm(SECONDS)
    # A rank's first entry is its script's folder; ours must not shadow anything.
    sys.path[:] = [entry for entry in sys.path if entry and not entry.startswith("/dev/fd")]
    sys.stdout.write("\n" + MARK + json.dumps(look()) + "\n")
