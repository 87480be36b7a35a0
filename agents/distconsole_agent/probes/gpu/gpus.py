"""GPUs and driver by NVML or libamd_smi.

Another process asks, because a wedged driver hangs its callers.
"""

from __future__ import annotations

import ctypes
import grp
import importlib.util
import os

from distconsole_agent.node_folder.folders import this_program
from distconsole_agent.probes.environment import session_environment
from distconsole_agent.probes.scripts import Interpreter, ask_script
from distconsole_agent.system.kernel_files import entries_of, first_line_of
from distconsole_agent.system.procfs import describe_process

LIBRARY, AMD_LIBRARY = "libnvidia-ml.so.1", "libamd_smi.so"
KFD = "/dev/kfd"


def look(seconds: float, *, health: bool = False) -> dict[str, object]:
    """Return the facts of group ``gpu``; ``present`` is false on a node without a GPU's driver.

    On a node with both, ``gpus`` are NVIDIA's, and ``kfd`` shows that AMD's are there. With ``health``
    also how each GPU is.
    """
    # It differs from NVML's version after an upgrade.
    module = first_line_of("/sys/module/nvidia/version") or ""
    devices = sum(name.startswith("nvidia") and name[6:].isdigit() for name in entries_of("/dev"))
    nvidia = bool(module or devices or _has_library(LIBRARY))
    kfd = look_at_kfd()
    if not (nvidia or kfd or _has_library(AMD_LIBRARY)):
        return {"present": False, "devices": 0}
    vendor = "NVIDIA" if nvidia else "AMD"
    job = {"deep": health, "amd": not nvidia}
    answer = ask_script("inspect_gpus", job, seconds, Interpreter(env=library_environment()))
    facts = answer.facts(f"what asks {vendor}'s driver")
    for gpu in facts.get("gpus", []):
        for entry in gpu.get("processes", []):
            entry.update(describe_process(int(entry["pid"])))
    return {
        **facts,
        "vendor": vendor,
        "kernel_module": module,
        "devices": devices,
        "kfd": kfd,
        "rocm": first_line_of("/opt/rocm/.info/version") or "",
    }


def look_at_kfd() -> dict[str, object] | None:
    """Return the devices of ROCm that this user may not open, and the group of /dev/kfd; None without it."""
    try:
        status = os.stat(KFD)
    except OSError:
        return None
    renders = [f"/dev/dri/{name}" for name in entries_of("/dev/dri") if name.startswith("renderD")]
    shut = [path for path in (KFD, *renders) if not os.access(path, os.R_OK | os.W_OK)]
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    return {"shut": shut[:16], "owner": group}


def library_environment() -> dict[str, str]:
    """Return the session's environment, with this agent's ``pynvml`` on the module path."""
    path = this_program().archive
    if path is None:
        spec = importlib.util.find_spec("pynvml")
        path = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    return {**session_environment(), "PYTHONPATH": path}


def _has_library(name: str) -> bool:
    """Return True if a new process would find a driver's library; opening it does not touch the driver."""
    folders = filter(None, session_environment().get("LD_LIBRARY_PATH", "").split(":"))
    if any(os.path.exists(os.path.join(folder, name)) for folder in folders):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
