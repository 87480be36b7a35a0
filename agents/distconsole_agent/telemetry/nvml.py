"""A thin typed layer over pynvml: values in plain units, refusals as four exceptions.

Names, structures and return codes are those of NVIDIA's ``nvml.h``.
"""

from __future__ import annotations

import ctypes
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

ALL_LINKS = 0xFFFFFFFF
"""The scope of an NVLink field that means all links together."""

NO_VALUE = 2**64 - 1
"""``NVML_VALUE_NOT_AVAILABLE`` of a 64-bit value."""

MAX_PROCESSES = 256
"""Processes of one GPU that are listed."""

FIELD_ENERGY_MJ = 83
FIELD_NVLINK_TX_KIB = 138
FIELD_NVLINK_RX_KIB = 139
FIELD_POWER_MW = 186
FIELD_PCIE_TX_BYTES = 197
FIELD_PCIE_RX_BYTES = 198

CLOCK_SM, CLOCK_MEMORY = 1, 2

_OK = 0
_INSUFFICIENT_SIZE = 7
_WIDE_TYPES = (2, 3)  # unsigned long, unsigned long long
_GONE_DRIVER = frozenset({1, 9, 12, 18})  # uninitialized, not loaded, no library, mismatch
_GONE_GPU = frozenset({15, 16, 28})  # lost, reset required, not found
_NEVER = frozenset({2, 3, 4, 13, 25, 26})  # argument, support, permission, function, version, old

_THROTTLE_REASONS = (
    (0x0004, "power_cap"),
    (0x0008, "hw_slowdown"),
    (0x0010, "sync_boost"),
    (0x0020, "sw_thermal"),
    (0x0040, "hw_thermal"),
    (0x0080, "hw_power_brake"),
    (0x0100, "display_clock"),
    (0x0200, "board_limit"),
    (0x0400, "reliability"),
)
"""``nvmlClocksEventReason*``, without the two that are no throttling: idle, and clocks that
somebody set."""


class NvmlMissingError(Exception):
    """There is no NVML library or no pynvml here: this host has no GPU to ask about."""


class DriverGoneError(Exception):
    """NVML does not answer for any GPU: it has to be initialised again."""


class GpuGoneError(Exception):
    """This GPU fell off the bus or needs a reset; the others may be well."""


class UnsupportedError(Exception):
    """This GPU or driver never has this value."""


class RefusedError(Exception):
    """There is no value this time."""


@dataclass(frozen=True)
class MemoryBytes:
    """Memory of a GPU; ``used`` is without what the driver reserves, where it tells them apart."""

    used: int
    total: int


@dataclass(frozen=True)
class GpuProcess:
    """A compute process as the driver lists it; ``used_bytes`` is None where it may not say."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class MigSlices:
    """How much of a GPU an instance has."""

    gpu_slices: int
    compute_slices: int
    memory_bytes: int


class FieldBuffer:
    """A prepared request for some fields, ``(field, scope)`` each, filled anew at each read.

    The bytes are an array of ``nvmlFieldValue_t``, taken apart at once: a ctypes structure costs
    a call for each member. One entry more than asked for is allocated: NVML may write one past
    the count.
    """

    # fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
    _LAYOUT = struct.Struct("=IIqqIIQ")

    def __init__(self, wanted: Sequence[tuple[int, int]]) -> None:
        self.wanted = tuple(wanted)
        size = self._LAYOUT.size
        self.memory = ctypes.create_string_buffer(size * (len(self.wanted) + 1))
        for at, (field, scope) in enumerate(self.wanted):
            self._LAYOUT.pack_into(self.memory, at * size, field, scope, 0, 0, 0, 0, 0)
        self._asked = memoryview(self.memory).cast("B")[: size * len(self.wanted)]

    def values(self) -> tuple[dict[int, int], set[int]]:
        """Return what the last read filled in, and the fields that this GPU never has.

        A counter that is only 32 bits wide counts as unsupported: at PCIe's rates it wraps
        several times a second.
        """
        found: dict[int, int] = {}
        never: set[int] = set()
        for field, _, _, _, kind, status, value in self._LAYOUT.iter_unpack(self._asked):
            if status == _OK and kind in _WIDE_TYPES:
                found[field] = value
            elif status == _OK and field == FIELD_POWER_MW:
                found[field] = value & 0xFFFFFFFF
            elif status == _OK or status in _NEVER:
                never.add(field)
        return found, never


class Nvml:
    """NVML, initialised. Every method may raise the four errors below ``NvmlMissingError``."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._processes_function: Any = None
        self._memory_version: int | None = getattr(api, "nvmlMemory_v2", None)

    @classmethod
    def open(cls) -> Nvml:
        """Load and initialise NVML. This may take seconds where the driver was not in use.

        Raises:
            NvmlMissingError: if there is no library or no pynvml.
            DriverGoneError: if the driver does not answer.
        """
        nvml = cls(load_pynvml())
        try:
            nvml._call("nvmlInit")
        except (GpuGoneError, UnsupportedError, RefusedError) as error:
            raise DriverGoneError(str(error)) from None
        return nvml

    def close(self) -> None:
        """Let go of the driver; never raises."""
        try:
            self._call("nvmlShutdown")
        except (DriverGoneError, GpuGoneError, UnsupportedError, RefusedError):
            return

    def driver_version(self) -> str:
        return str(self._call("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def gpu(self, index: int) -> Any:
        """Return the handle of a GPU by its number in PCI order."""
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def uuid(self, handle: Any) -> str:
        return str(self._call("nvmlDeviceGetUUID", handle))

    def name(self, handle: Any) -> str:
        return str(self._call("nvmlDeviceGetName", handle))

    def util_percent(self, handle: Any) -> int:
        return int(self._call("nvmlDeviceGetUtilizationRates", handle).gpu)

    def memory(self, handle: Any) -> MemoryBytes:
        if self._memory_version is not None:
            try:
                memory = self._call("nvmlDeviceGetMemoryInfo", handle, self._memory_version)
            except UnsupportedError:
                self._memory_version = None
            else:
                return MemoryBytes(memory.used, memory.total)
        memory = self._call("nvmlDeviceGetMemoryInfo", handle)
        return MemoryBytes(memory.used, memory.total)

    def clock_mhz(self, handle: Any, kind: int) -> int:
        return int(self._call("nvmlDeviceGetClockInfo", handle, kind))

    def throttle_reasons(self, handle: Any) -> int:
        """Return the bits of ``nvmlClocksEventReason*``; the older name answers the same."""
        return int(self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle))

    def temperature_c(self, handle: Any) -> int:
        return int(self._call("nvmlDeviceGetTemperature", handle, 0))

    def power_w(self, handle: Any) -> float:
        return int(self._call("nvmlDeviceGetPowerUsage", handle)) / 1000.0

    def ecc_uncorrected(self, handle: Any) -> int:
        """Return the uncorrected memory errors since the driver was loaded."""
        return int(self._call("nvmlDeviceGetTotalEccErrors", handle, 1, 0))

    def read_fields(self, handle: Any, buffer: FieldBuffer) -> tuple[dict[int, int], set[int]]:
        """Read all fields of ``buffer`` in one call; return as ``FieldBuffer.values``."""
        if not buffer.wanted:
            return {}, set()
        function = self._call("_nvmlGetFunctionPointer", "nvmlDeviceGetFieldValues")
        self._check(function(handle, len(buffer.wanted), buffer.memory))
        return buffer.values()

    def processes(self, handle: Any) -> list[GpuProcess]:
        """Return the compute processes, at most ``MAX_PROCESSES``.

        Asked with a buffer at once, not for the size first: each call holds the driver's lock for
        milliseconds.
        """
        function = self._processes()
        size = 32
        while True:
            count = ctypes.c_uint(size)
            listed = (self._api.c_nvmlProcessInfo_v2_t * size)()
            status = function(handle, ctypes.byref(count), listed)
            if status != _INSUFFICIENT_SIZE or size >= MAX_PROCESSES:
                break
            size = min(MAX_PROCESSES, max(count.value, 2 * size))
        self._check(status)
        found = [listed[at] for at in range(min(count.value, size))]
        return [
            GpuProcess(one.pid, None if one.usedGpuMemory == NO_VALUE else one.usedGpuMemory)
            for one in found
        ]

    def mig_enabled(self, handle: Any) -> bool:
        return bool(self._call("nvmlDeviceGetMigMode", handle)[0])

    def mig_instances(self, handle: Any) -> list[Any]:
        """Return the handles of a GPU's instances."""
        count = int(self._call("nvmlDeviceGetMaxMigDeviceCount", handle))
        found = [self._mig_instance(handle, index) for index in range(count)]
        return [instance for instance in found if instance is not None]

    def instance_ids(self, handle: Any) -> tuple[int, int]:
        """Return the GPU instance and compute instance of an instance's handle."""
        return (
            int(self._call("nvmlDeviceGetGpuInstanceId", handle)),
            int(self._call("nvmlDeviceGetComputeInstanceId", handle)),
        )

    def slices(self, handle: Any) -> MigSlices:
        found = self._call("nvmlDeviceGetAttributes_v2", handle)
        return MigSlices(
            int(found.gpuInstanceSliceCount),
            int(found.computeInstanceSliceCount),
            int(found.memorySizeMB) * 2**20,
        )

    def _mig_instance(self, handle: Any, index: int) -> Any:
        try:
            return self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        except RefusedError:
            return None

    def _processes(self) -> Any:
        """Return the process list whose structure is that of version 2, chosen once.

        The first 535 drivers gave version 3 one more member and took it back: they are told by
        having the call of confidential computing but not the list of details.
        """
        if self._processes_function is None:
            drifted = self._has("nvmlDeviceGetConfComputeMemSizeInfo") and not self._has(
                "nvmlDeviceGetRunningProcessDetailList"
            )
            version = "_v2" if drifted or not self._has(_LIST + "_v3") else "_v3"
            self._processes_function = self._call("_nvmlGetFunctionPointer", _LIST + version)
        return self._processes_function

    def _has(self, function: str) -> bool:
        try:
            self._call("_nvmlGetFunctionPointer", function)
        except UnsupportedError:
            return False
        return True

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._api, function)(*arguments)
        except self._api.NVMLError as error:
            raise _meaning(error.value) from None
        except AttributeError:
            raise UnsupportedError(f"pynvml has no {function}") from None
        except UnicodeDecodeError:
            raise RefusedError(f"{function} gave no text") from None

    @staticmethod
    def _check(status: int) -> None:
        if status != _OK:
            raise _meaning(status)


_LIST = "nvmlDeviceGetComputeRunningProcesses"


def load_pynvml() -> Any:
    """Return the pynvml module, imported only where there is a library for it to load.

    Raises:
        NvmlMissingError: if either is missing.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        raise NvmlMissingError(f"no {LIBRARY}") from None
    try:
        with warnings.catch_warnings():
            # An older package of this name warns that it was renamed.
            warnings.simplefilter("ignore")
            import pynvml
    except ImportError:
        raise NvmlMissingError("no pynvml") from None
    _return_freed_memory()
    return pynvml


def throttle_words(reasons: int) -> list[str]:
    """Return the words of what slows the clocks down; empty when nothing does."""
    return [word for bit, word in _THROTTLE_REASONS if reasons & bit]


def _return_freed_memory() -> None:
    """Give the system back what compiling pynvml took.

    Out of an archive pynvml is compiled at each import, and glibc keeps the 12 MB of it.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def _meaning(status: int) -> Exception:
    if status in _GONE_DRIVER:
        return DriverGoneError(f"NVML error {status}")
    if status in _GONE_GPU:
        return GpuGoneError(f"NVML error {status}")
    if status in _NEVER:
        return UnsupportedError(f"NVML error {status}")
    return RefusedError(f"NVML error {status}")
