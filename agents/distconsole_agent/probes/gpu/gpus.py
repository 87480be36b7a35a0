"""GPUs and driver as NVML tells them, asked from another process, as a wedged driver hangs whoever asks it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from typing import Any

from distconsole_agent.node_folder.folders import this_program
from distconsole_agent.probes.asking import session_environment
from distconsole_agent.probes.host.procfs import read_process, uptime_seconds
from distconsole_agent.probes.scripts import ask_script

LIBRARY = "libnvidia-ml.so.1"


def look(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the facts of group ``gpu``; ``present`` is false on a node without NVIDIA's driver.

    Args:
        args: ``health``: also how each GPU is.
        seconds: For the process that asks the driver.

    Raises:
        ProbeError: when the driver does not answer in time.
    """
    module = _kernel_module()
    devices = sum(name.startswith("nvidia") and name[6:].isdigit() for name in _entries("/dev"))
    if not (module or devices or _has_library()):
        return {"present": False, "devices": 0}
    job = {"deep": bool(args.get("health"))}
    answer = ask_script("inspect_gpus", job, seconds, env=library_environment())
    facts = answer.facts("what asks the NVIDIA driver")
    _name_processes(facts)
    return {**facts, "kernel_module": module, "devices": devices}


def _name_processes(facts: dict[str, Any]) -> None:
    """Add to each process on a GPU who it is; in a container those of others stay unknown."""
    uptime = uptime_seconds()
    for gpu in facts.get("gpus", []):
        for entry in gpu.get("processes", []):
            process = read_process(int(entry["pid"]), uptime)
            if process is not None:
                entry.update(process.told())


def library_environment() -> dict[str, str]:
    """Return the session's environment, with ``pynvml`` on the module path where this agent has it."""
    path = this_program().archive
    if path is None:
        spec = importlib.util.find_spec("pynvml")
        path = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    return {**session_environment(), "PYTHONPATH": path}


def _has_library() -> bool:
    """Whether a process started now would find NVML; opening it asks nothing of the driver."""
    folders = filter(None, session_environment().get("LD_LIBRARY_PATH", "").split(":"))
    if any(os.path.exists(os.path.join(folder, LIBRARY)) for folder in folders):
        return True
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def _kernel_module() -> str:
    """Return the version of the loaded kernel module; it differs from NVML's after an upgrade."""
    try:
        with open("/sys/module/nvidia/version", encoding="ascii", errors="replace") as file:
            return file.readline(64).strip()
    except OSError:
        return ""


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
