"""The programs that ``agent_cost`` measures: each samples once a second when told to, and prints
nothing but that it did.
"""

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

Sample = Callable[[], Any]


def ours(pids: list[int]) -> Sample:
    """Host and GPUs, as the agent samples them."""
    from distconsole_agent.telemetry.sampling import HostSampler

    host, gpus = HostSampler(), ours_gpu(pids)
    return lambda: (host.sample(), gpus())


def ours_gpu(pids: list[int]) -> Sample:
    """The GPUs alone."""
    from distconsole_agent.telemetry.gpu import GpuSampler
    from distconsole_agent.telemetry.mapping import RunningRank

    sampler = GpuSampler()
    ranks = [RunningRank(at, at, pid, None) for at, pid in enumerate(pids)]
    return lambda: sampler.sample(ranks)


def bare_pynvml(_pids: list[int]) -> Sample:
    """The shortest loop over pynvml that reads the same fields of each GPU at each sample."""
    import pynvml as nv

    nv.nvmlInit()
    handles = [nv.nvmlDeviceGetHandleByIndex(at) for at in range(nv.nvmlDeviceGetCount())]
    every_link = 0xFFFFFFFF
    fields = [186, 197, 198, (138, every_link), (139, every_link)]

    def one(handle: Any) -> list[Any]:
        return [
            nv.nvmlDeviceGetUUID(handle),
            nv.nvmlDeviceGetName(handle),
            nv.nvmlDeviceGetUtilizationRates(handle).gpu,
            nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2).used,
            nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU),
            nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM),
            nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_MEM),
            nv.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            nv.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
            nv.nvmlDeviceGetMigMode(handle),
            [value.value.ullVal for value in nv.nvmlDeviceGetFieldValues(handle, fields)[:]],
            [process.pid for process in nv.nvmlDeviceGetComputeRunningProcesses(handle)],
        ]

    return lambda: [one(handle) for handle in handles]


def bare_host(pids: list[int]) -> Sample:
    """The bare loop, and the host's load by psutil in one line each."""
    import psutil

    gpus = bare_pynvml(pids)
    return lambda: (
        gpus(),
        psutil.cpu_percent(),
        psutil.virtual_memory(),
        psutil.net_io_counters(pernic=True),
        psutil.disk_io_counters(perdisk=True),
    )


def nvitop(_pids: list[int]) -> Sample:
    """nvitop's own snapshot of devices and processes; it holds no host values."""
    module = importlib.import_module("nvitop")
    devices = module.Device.all()
    return lambda: module.take_snapshots(devices)


KINDS: dict[str, Callable[[list[int]], Sample]] = {
    "ours": ours,
    "ours_gpu": ours_gpu,
    "bare_pynvml": bare_pynvml,
    "bare_host": bare_host,
    "nvitop": nvitop,
}


def be(kind: str, *pids: str) -> None:
    sample = KINDS[kind]([int(pid) for pid in pids])
    sample()
    for line in sys.stdin:
        due = time.monotonic()
        for _ in range(int(line)):
            due += 1.0
            time.sleep(max(0.0, due - time.monotonic()))
            sample()
        print("done", flush=True)
