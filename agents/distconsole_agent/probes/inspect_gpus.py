"""Script: lists the GPUs by pynvml once and leaves. It samples nothing.

``inspect_gpus.py SECONDS PATH`` prints one line; PATH goes on the module path, for pynvml.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Callable

MARK = "distconsole-gpus "


def text(value: Any) -> Any:
    """Text of old and new pynvml alike."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def asked(call: Callable[..., Any], *args: Any) -> Any:
    """What NVML answers, or None where this device or driver has no answer."""
    try:
        return text(call(*args))
    except pynvml.NVMLError:
        return None


def gpu(index: int) -> dict[str, Any]:
    """One GPU."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    ecc = asked(pynvml.nvmlDeviceGetEccMode, handle)
    mig = asked(pynvml.nvmlDeviceGetMigMode, handle)
    capability = asked(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    processes = asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return {
        "index": index,
        "uuid": asked(pynvml.nvmlDeviceGetUUID, handle),
        "name": asked(pynvml.nvmlDeviceGetName, handle),
        "mem_total": memory.total if memory else None,
        "mem_used": memory.used if memory else None,
        "capability": list(capability) if capability else None,
        "ecc": ecc[0] if ecc else None,
        "mig": mig[0] if mig else None,
        "compute_mode": asked(pynvml.nvmlDeviceGetComputeMode, handle),
        "persistence": asked(pynvml.nvmlDeviceGetPersistenceMode, handle),
        "processes": [{"pid": p.pid, "mem_used": p.usedGpuMemory} for p in processes[:64]],
    }


def gpu_or_error(index: int) -> dict[str, Any]:
    """One GPU; one that fell off the bus is an error of its own and hides no other."""
    try:
        return gpu(index)
    except pynvml.NVMLError as error:
        return {"index": index, "error": str(error)}


def facts() -> dict[str, Any]:
    """Driver and devices; ``present`` is false without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = getattr(error, "value", 0)
        absent = code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return {"present": False, "error": "" if absent else str(error), "gpus": []}
    count = asked(pynvml.nvmlDeviceGetCount) or 0
    gpus: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for index in range(min(count, 64)):
        found = gpu_or_error(index)
        (broken if "error" in found else gpus).append(found)
    return {
        "present": True,
        "error": "",
        "driver": asked(pynvml.nvmlSystemGetDriverVersion),
        "cuda_driver": asked(pynvml.nvmlSystemGetCudaDriverVersion_v2),
        "count": count,
        "gpus": gpus,
        "broken": broken,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]) + 5.0)
    if sys.argv[2]:
        sys.path.insert(0, sys.argv[2])
    try:
        import pynvml
    except ImportError:
        answer = {"present": False, "error": "pynvml is not in this agent", "gpus": []}
    else:
        answer = facts()
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
