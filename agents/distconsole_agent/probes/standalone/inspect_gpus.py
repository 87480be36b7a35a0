"""Program: lists the GPUs by pynvml, or libamd_smi, once; the caller puts that, and the agent, on the module path."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Callable

from distconsole_agent.probes.standalone.reporting import FACTS, begin, leave, say

try:
    import pynvml
except ImportError:
    pynvml = None

MAX_LINKS = 36
SLOW = 0x08 | 0x20 | 0x40 | 0x80
SECOND_LOOK_SECONDS = 0.25


def ask(call: Callable[..., Any], *args: Any) -> Any:
    """NVML's answer, or None if this device or driver has none."""
    try:
        value = call(*args)
    except pynvml.NVMLError:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def gpu(index: int) -> dict[str, object]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    memory = memory or ask(pynvml.nvmlDeviceGetMemoryInfo, handle)  # before driver 510
    ecc = ask(pynvml.nvmlDeviceGetEccMode, handle)
    mig = ask(pynvml.nvmlDeviceGetMigMode, handle)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    processes = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return {
        "index": index,
        "uuid": ask(pynvml.nvmlDeviceGetUUID, handle),
        "name": ask(pynvml.nvmlDeviceGetName, handle),
        "mem_total": memory.total if memory else None,
        "mem_used": memory.used if memory else None,
        "capability": list(capability) if capability else None,
        "ecc": ecc[0] if ecc else None,
        "ecc_next": ecc[1] if ecc else None,
        "mig": mig[0] if mig else None,
        "mig_next": mig[1] if mig else None,
        "instances": instances(handle) if mig and mig[0] else [],
        "compute_mode": ask(pynvml.nvmlDeviceGetComputeMode, handle),
        "persistence": ask(pynvml.nvmlDeviceGetPersistenceMode, handle),
        "processes": [{"pid": p.pid, "mem_used": p.usedGpuMemory} for p in processes[:64]],
    }


def instances(handle: Any) -> list[int]:
    found = []
    for at in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at)
        memory = instance and ask(pynvml.nvmlDeviceGetMemoryInfo, instance)
        if memory:
            found.append(int(memory.total))
    return found


def health(index: int) -> dict[str, Any]:
    """How one GPU is: clocks held back, memory errors, the ways to it; null without an answer."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    rows = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    of_sram = uncorrected, pynvml.NVML_AGGREGATE_ECC, pynvml.NVML_MEMORY_LOCATION_SRAM
    since_reset = uncorrected, pynvml.NVML_VOLATILE_ECC
    return {
        "index": index,
        "clock_reasons": clock_reasons(handle),
        "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "uncorrected": ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, *since_reset),
        "sram_uncorrected": ask(pynvml.nvmlDeviceGetMemoryErrorCounter, handle, *of_sram),
        "power_limit_mw": ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        "power_default_mw": ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        "remap_pending": bool(rows[2]) if rows else None,
        "remap_failed": bool(rows[3]) if rows else None,
        "pcie_width": ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        "pcie_width_max": ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "pcie_generation_max": ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "links_up": links_up(handle),
        **fabric(handle),
    }


def clock_reasons(handle: Any) -> int | None:
    """Why the clocks are held back; a slowdown comes for a moment with a change of clocks, too."""
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:
        # Its name before driver 535.
        reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return reasons if reasons is None else int(reasons)


def links_up(handle: Any) -> int:
    states = (ask(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(MAX_LINKS))
    return sum(map(bool, states))


def fabric(handle: Any) -> dict[str, int | None]:
    """nvmlGpuFabricState_t: 0 none, 1 not started, 2 in progress, 3 completed; then with a code."""
    try:
        info = pynvml.c_nvmlGpuFabricInfo_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    except (pynvml.NVMLError, AttributeError):
        return {"fabric_state": None, "fabric_status": None}
    return {"fabric_state": int(info.state), "fabric_status": int(info.status)}


def twice(indexes: list[int]) -> list[dict[str, Any]]:
    """The health of GPUs, with the reasons for slow clocks that are still there a moment later."""
    found = [or_error(health, index) for index in indexes]
    held = [each for each in found if (each.get("clock_reasons") or 0) & SLOW]
    if held:
        time.sleep(SECOND_LOOK_SECONDS)
    for each in held:
        again = clock_reasons(pynvml.nvmlDeviceGetHandleByIndex(each["index"]))
        each["clock_reasons"] &= again if again is not None else each["clock_reasons"]
    return found


def or_error(look: Callable[[int], dict[str, Any]], index: int) -> dict[str, Any]:
    """A GPU as ``look`` sees it; one that fell off the bus is an error of its own and hides no other."""
    try:
        return look(index)
    except pynvml.NVMLError as error:
        return {"index": index, "error": str(error)}


def facts(deep: bool) -> dict[str, Any]:
    """Driver and devices; ``present`` is false without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = getattr(error, "value", 0)
        absent = code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return {"present": False, "error": "" if absent else str(error), "gpus": []}
    count = ask(pynvml.nvmlDeviceGetCount) or 0
    gpus: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for index in range(min(count, 64)):
        found = or_error(gpu, index)
        (broken if "error" in found else gpus).append(found)
    return {
        "present": True,
        "error": "",
        "driver": ask(pynvml.nvmlSystemGetDriverVersion),
        "cuda_driver": ask(pynvml.nvmlSystemGetCudaDriverVersion_v2),
        "count": count,
        "gpus": gpus,
        "broken": broken,
        "health": twice([found["index"] for found in gpus]) if deep else [],
    }


def facts_of_amd() -> dict[str, object]:
    """Driver and devices of AMD's; ``present`` is false without a driver that answers."""
    from distconsole_agent.telemetry.amd import Amd, AmdDevice
    from distconsole_agent.telemetry.nvml import NvmlError, NvmlMissingError

    try:
        driver = Amd.open()
    except (NvmlError, NvmlMissingError) as error:
        return {"present": False, "error": str(error), "gpus": []}
    gpus: list[dict[str, object]] = []
    broken: list[dict[str, object]] = []
    for index in range(driver.count()):
        try:
            device = AmdDevice(driver, index)
            device.read(0.0, with_processes=True)
        except NvmlError as error:
            broken.append({"index": index, "error": str(error)})
            continue
        (reading,) = device.readings
        gpus.append(
            {
                "index": index,
                "uuid": reading.unit.uuid,
                "name": reading.unit.model,
                "mem_total": reading.values["mem_total"],
                "mem_used": reading.values["mem_used"],
                "processes": [{"pid": p, "mem_used": used} for p, used in reading.processes[:64]],
            }
        )
    return {
        "present": True,
        "error": "",
        "driver": driver.version(),
        "count": driver.count(),
        "gpus": gpus,
        "broken": broken,
    }


def main(seconds: float, deep: bool, amd: bool) -> None:
    begin(seconds)
    absent = {"present": False, "error": "pynvml is not in this agent", "gpus": []}
    say(FACTS, facts_of_amd() if amd else facts(deep) if pynvml else absent)
    leave()
