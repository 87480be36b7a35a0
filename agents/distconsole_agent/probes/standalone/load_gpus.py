"""Program: copies to and from idle GPUs, and reads their links meanwhile.

It prints its facts before it touches a GPU and whenever it has more; pynvml is on its module path.
At rest a GPU slows its link down, so only a loaded one shows its speed. Each GPU in turn gets four
bursts of 40 ms, at most 2 GiB each. If another process comes to a GPU, the bursts end there at once.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable

import pynvml

from distconsole_agent.probes.standalone.cuda_copies import NOT_VISIBLE, Copier, Cuda, CudaError
from distconsole_agent.probes.standalone.inspect_gpus import (
    MAX_LINKS,
    ask,
    clock_reasons,
    memory_of,
)
from distconsole_agent.probes.standalone.reporting import begin, leave, say

BUFFER_BYTES = 32 << 20
SMALL_BYTES = 4 << 20
BURST_SECONDS = 0.04
BURSTS = 2
MAX_TIMES = 64
WAKE_SECONDS = 0.5
WAKE_READINGS = 3
WAKE_PAUSE_SECONDS = 0.005
POLL_SECONDS = 0.0005
UNENDED = "a copy did not end in time"
HELD_BYTES = 512 << 20
"""More than the driver itself keeps on an idle GPU."""
HELD_BYTES_OLD = 1 << 30
"""The same if the driver's reserve counts as used."""
BUSY_PERCENT = 10
CLOCK_BITS = (0x02, 0x08, 0x20, 0x40, 0x80)
"""Of nvmlClocksEventReason: clocks that were set, and reasons that no healthy GPU has."""
ERRORS = ("replays", "recoveries", "flit_errors", "data_errors")
"""NVML_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC_FLIT and _CRC_DATA."""
FIELD_RECOVERIES = 215
"""NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: links of the fifth generation count by fields."""


class GuestError(Exception):
    def __init__(self, pid: int | None) -> None:
        super().__init__("somebody came to it while it was measured")
        self.pid = pid


class LateError(Exception):
    """A copy takes too long."""


class GpuUnderLoad:
    """A GPU, its facts so far (``entry``), and its copier once it has one."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = ask(pynvml.nvmlDeviceGetUUID, self.handle)
        self.bus_id = str(getattr(pynvml.nvmlDeviceGetPciInfo(self.handle), "busIdLegacy", ""))
        self.entry: dict[str, Any] = {"index": index, "uuid": self.uuid}
        self.copier: Copier | None = None
        self.readings: list[tuple[int, int, int]] = []

    def why_not(self) -> str:
        """Why it must not be loaded; notes the process that uses it. Empty if it is idle."""
        mode = ask(pynvml.nvmlDeviceGetComputeMode, self.handle)
        if mode:
            return "its compute mode is exclusive: a job that starts now would be refused"
        mig = ask(pynvml.nvmlDeviceGetMigMode, self.handle)
        if mig and mig[0]:
            return "MIG is on: others may use the same link"
        pids = self.users()
        if pids:
            self.entry["pid"] = pids[0]
            return "in use"
        return self._unseen_use()

    def users(self) -> list[int]:
        found = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, self.handle) or []
        found += ask(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, self.handle) or []
        return sorted({int(process.pid) for process in found})

    def _unseen_use(self) -> str:
        memory, without_reserved = memory_of(self.handle)
        most = HELD_BYTES if without_reserved else HELD_BYTES_OLD
        screens = ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses, self.handle) or []
        shown = sum(int(process.usedGpuMemory or 0) for process in screens)
        held = (memory.used if memory else 0) - shown
        if held > most:
            return f"in use: {held >> 20} MiB are held by a process that is not to be seen"
        load = ask(pynvml.nvmlDeviceGetUtilizationRates, self.handle)
        if load and load.gpu >= BUSY_PERCENT and not screens:
            return f"in use: it is {load.gpu} % busy for a process that is not to be seen"
        return ""

    def watch(self) -> None:
        """Take a reading of the link. Raises GuestError if another process uses the GPU now."""
        width = ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, self.handle)
        generation = ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, self.handle)
        self.readings.append((width or 0, generation or 0, clock_reasons(self.handle) or 0))
        pids = self.users()
        # In a PID namespace of our own one of them is us under another number.
        others = [pid for pid in pids if pid != os.getpid()] if os.getpid() in pids else pids[1:]
        if others:
            raise GuestError(others[0])

    def awake(self) -> bool:
        best = (self.entry["width_max"] or 0, self.entry["generation_max"] or 0)
        return any(one[0] >= best[0] and one[1] >= best[1] for one in self.readings)


def finish(gpu: GpuUnderLoad, ends: float, during: Callable[[], None]) -> float:
    """Wait for the copies; returns their seconds on the GPU. ``during`` runs at least once."""
    assert gpu.copier is not None
    during()
    while not gpu.copier.done():
        if time.monotonic() > ends:
            raise LateError
        during()
        time.sleep(POLL_SECONDS)
    return max(gpu.copier.seconds(), 1e-6)


def burst(
    gpu: GpuUnderLoad, begin: Callable[[int, int], None], ends: float, during: Callable[[], None]
) -> float:
    """Bytes a second of the best of a few bursts, each as long as the first copy lets expect."""
    begin(SMALL_BYTES, 1)
    rate = SMALL_BYTES / finish(gpu, ends, during)
    for _ in range(BURSTS):
        times = min(MAX_TIMES, max(1, round(rate * BURST_SECONDS / BUFFER_BYTES)))
        begin(BUFFER_BYTES, times)
        rate = max(rate, times * BUFFER_BYTES / finish(gpu, ends, during))
    return rate


def measure_pcie(gpu: GpuUnderLoad, ends: float) -> None:
    """Wake the link of a GPU, then fill it for some moments in each direction."""
    copier = gpu.copier
    assert copier is not None
    gpu.entry.update(
        width_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, gpu.handle),
        generation_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu.handle),
    )
    replays = ask(pynvml.nvmlDeviceGetPcieReplayCounter, gpu.handle)
    began = time.monotonic()
    while len(gpu.readings) < WAKE_READINGS or not gpu.awake():
        copier.to_device(SMALL_BYTES, 1)
        finish(gpu, ends, gpu.watch)
        if time.monotonic() - began > WAKE_SECONDS:
            break
        time.sleep(WAKE_PAUSE_SECONDS)
    counted: list[int] = []

    def count() -> None:
        gpu.watch()
        counter = pynvml.NVML_PCIE_UTIL_RX_BYTES
        if len(counted) < BURSTS:  # each looks for 20 ms
            counted.append(ask(pynvml.nvmlDeviceGetPcieThroughput, gpu.handle, counter) or 0)

    to_device = burst(gpu, copier.to_device, ends, count)
    from_device = burst(gpu, copier.from_device, ends, gpu.watch)
    after = ask(pynvml.nvmlDeviceGetPcieReplayCounter, gpu.handle)
    half = len(gpu.readings) / 2
    gpu.entry.update(
        width=max(one[0] for one in gpu.readings) or None,
        generation=max(one[1] for one in gpu.readings) or None,
        clock_reasons=sum(
            bit for bit in CLOCK_BITS if sum(bool(one[2] & bit) for one in gpu.readings) > half
        ),
        to_device=round(to_device),
        from_device=round(from_device),
        counted=max(counted, default=0) * 1024 or None,
        replays=None if replays is None or after is None else after - replays,
    )


def links(gpu: GpuUnderLoad) -> list[dict[str, Any]]:
    found = []
    for link in range(MAX_LINKS):
        state = ask(pynvml.nvmlDeviceGetNvLinkState, gpu.handle, link)
        if state is None:
            break
        counter = pynvml.nvmlDeviceGetNvLinkErrorCounter
        counts = {name: ask(counter, gpu.handle, link, at) for at, name in enumerate(ERRORS)}
        if counts["recoveries"] is None:
            counts["recoveries"] = field(gpu.handle, FIELD_RECOVERIES, link)
        found.append({"link": link, "up": bool(state), **counts})
    return found


def field(handle: Any, which: int, scope: int) -> int | None:
    """A counter that has no call of its own; None if the driver does not answer.

    One entry more than asked for is there: NVML may write one past the count.
    """
    values = (pynvml.c_nvmlFieldValue_t * 2)()
    values[0].fieldId, values[0].scopeId = which, scope
    try:
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
    except pynvml.NVMLError:
        return None
    if function(handle, 1, values) or values[0].nvmlReturn:
        return None
    wide = values[0].valueType != pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return int(values[0].value.ullVal if wide else values[0].value.uiVal)


def grown(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The links before and after, with the growth of their counters."""
    found = []
    for old, new in zip(before, after):
        known = [name for name in ERRORS if None not in (old[name], new[name])]
        more = {name: max(0, new[name] - old[name]) for name in known}
        found.append({"link": new["link"], "up_before": old["up"], "up": new["up"], **more})
    return found


def measure_nvlink(gpus: list[GpuUnderLoad], ends: float) -> None:
    """Copy from each GPU to the next one by NVLink, and read the links' counters."""
    before = {gpu.index: links(gpu) for gpu in gpus}
    linked = [gpu for gpu in gpus if any(link["up"] for link in before[gpu.index])]
    for gpu in linked:
        peer = find_next_linked(gpu, linked)
        if peer is None or time.monotonic() > ends:
            continue
        try:
            rate = copy_to(gpu, peer, ends)
        except GuestError:
            break
        except LateError:
            gpu.entry.update(peer=peer.index, peer_error=UNENDED)
        except CudaError as error:
            gpu.entry.update(peer=peer.index, peer_error=str(error))
        else:
            gpu.entry.update(peer=peer.index, to_peer=round(rate) if rate is not None else None)
    for gpu in linked:
        gpu.entry["links"] = grown(before[gpu.index], links(gpu))
        tell(gpu.entry)


def copy_to(gpu: GpuUnderLoad, peer: GpuUnderLoad, ends: float) -> float | None:
    """Bytes a second from one GPU to another; None if it cannot reach it."""
    mine, other = gpu.copier, peer.copier
    assert mine is not None
    assert other is not None
    if not mine.reach(other):
        return None

    def watch() -> None:
        gpu.watch()
        peer.watch()

    return burst(gpu, lambda size, times: mine.to_peer(other, size, times), ends, watch)


def find_next_linked(gpu: GpuUnderLoad, gpus: list[GpuUnderLoad]) -> GpuUnderLoad | None:
    """The next GPU, in a circle, that NVLink leads to, by the driver."""
    at = gpus.index(gpu)
    for peer in gpus[at + 1 :] + gpus[:at]:
        kind = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        status = ask(pynvml.nvmlDeviceGetP2PStatus, gpu.handle, peer.handle, kind)
        if status in (None, pynvml.NVML_P2P_STATUS_OK):
            return peer
    return None


def tell(entry: dict[str, Any]) -> None:
    """Print a GPU's facts; the last line of one counts."""
    say(str(entry["index"]), entry)


def load(gpu: GpuUnderLoad, cuda: Cuda, ends: float) -> bool:
    """Measure one GPU; False if it is not to be touched any more."""
    why = gpu.why_not()
    if why or time.monotonic() > ends:
        tell({**gpu.entry, "skipped": why or "the time was over"})
        return False
    tell({**gpu.entry, "begun": True})
    # The copies are to come from the memory that is next to this GPU.
    ask(pynvml.nvmlDeviceSetCpuAffinity, gpu.handle)
    try:
        gpu.copier = Copier(cuda, gpu.bus_id, BUFFER_BYTES)
        measure_pcie(gpu, ends)
    except GuestError as error:
        gpu.entry.update(skipped=str(error), pid=error.pid)
    except LateError:
        gpu.entry["error"] = UNENDED
    except CudaError as error:
        hidden = error.code in NOT_VISIBLE
        gpu.entry.update({"skipped" if hidden else "error": str(error)})
    tell(gpu.entry)
    well = not {"skipped", "error"} & gpu.entry.keys()
    if not well and gpu.copier is not None:
        gpu.copier.close()
    return well


def main(seconds: float, wanted: list[str]) -> None:
    load_all(wanted, begin(seconds))
    leave()


def load_all(wanted: list[str], ends: float) -> None:
    pynvml.nvmlInit()
    found = [open_gpu(index) for index in range(min(pynvml.nvmlDeviceGetCount(), 64))]
    gpus = [gpu for gpu in found if gpu is not None and (not wanted or gpu.uuid in wanted)]
    free = []
    for gpu in gpus:
        why = gpu.why_not()
        if why:
            tell({**gpu.entry, "skipped": why})
        else:
            free.append(gpu)
    if not free:
        return
    try:
        cuda = Cuda()
    except (OSError, CudaError) as error:
        hidden = isinstance(error, OSError) or error.code in NOT_VISIBLE
        for gpu in free:
            tell({**gpu.entry, "skipped" if hidden else "error": str(error)})
        return
    loaded = [gpu for gpu in free if load(gpu, cuda, ends)]
    if len(loaded) > 1:
        measure_nvlink(loaded, ends)
    for gpu in loaded:
        if gpu.copier is not None:
            gpu.copier.close()


def open_gpu(index: int) -> GpuUnderLoad | None:
    """A GPU; None for one that cannot be opened, which other probes report."""
    try:
        return GpuUnderLoad(index)
    except pynvml.NVMLError:
        return None
