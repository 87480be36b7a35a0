"""NVML by pynvml, refusals as four exceptions. Names and codes are those of ``nvml.h``."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

MAX_PROCESSES = 256
"""Processes of one GPU that are listed."""

_OK = 0
_WIDE_TYPES = (2, 3)  # unsigned long, unsigned long long
_NEVER = frozenset({2, 3, 4, 13, 25, 26})  # argument, support, permission, function, version, old
_XID_EVENTS = 0x8
MAX_EVENTS = 64
"""Errors that are taken at once; more come with the next call."""
_LIST = "nvmlDeviceGetComputeRunningProcesses"
_PCIE_LINK = (
    "CurrPcieLinkWidth",
    "MaxPcieLinkWidth",
    "CurrPcieLinkGeneration",
    "MaxPcieLinkGeneration",
)


class NvmlMissingError(Exception):
    """There is no NVML library or no pynvml here: this host has no GPU to ask about."""


class NvmlError(Exception):
    """NVML gave no answer."""


class DriverGoneError(NvmlError):
    """NVML does not answer for any GPU: it has to be initialised again."""


class GpuGoneError(NvmlError):
    """This GPU fell off the bus or needs a reset; the others may be well."""


class UnsupportedError(NvmlError):
    """This GPU or driver never has this value."""


class NvmlRefusedError(NvmlError):
    """There is no value this time."""


Meanings = Sequence[tuple[frozenset[int], type[NvmlError]]]
"""Meaning of a driver's codes; any other is a ``NvmlRefusedError``."""

_MEANINGS: Meanings = (
    # Uninitialized, not loaded, no library, mismatch.
    (frozenset({1, 9, 12, 18}), DriverGoneError),
    (frozenset({15, 16, 28}), GpuGoneError),  # lost, reset required, not found
    (_NEVER, UnsupportedError),
)


def error_of(status: int, meanings: Meanings, text: str) -> NvmlError:
    kind = next((kind for codes, kind in meanings if status in codes), NvmlRefusedError)
    return kind(f"{text} {status}")


class Nvml:
    """NVML, initialised. Every method may raise an ``NvmlError``."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._list = _LIST + "_v3"
        self._events: Any = None
        self._xids: dict[int | None, int] = {}
        """Address of a handle -> the last error of its GPU."""

    @classmethod
    def open(cls) -> Nvml:
        """Load and initialise NVML. This may take seconds if the driver was not in use.

        Raises:
            NvmlMissingError: if there is no library or no pynvml.
            DriverGoneError: if the driver does not answer.
        """
        nvml = cls(load_pynvml())
        try:
            nvml.call("nvmlInit")
            nvml._choose_list()
        except NvmlError as error:
            raise DriverGoneError(str(error)) from None
        return nvml

    def close(self) -> None:
        with contextlib.suppress(NvmlError):
            self.call("nvmlShutdown")

    def call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._api, function)(*arguments)
        except self._api.NVMLError as error:
            raise error_of(error.value, _MEANINGS, "NVML error") from None
        except AttributeError:
            raise UnsupportedError(f"pynvml has no {function}") from None
        except UnicodeDecodeError:
            raise NvmlRefusedError(f"{function} gave no text") from None

    def count(self) -> int:
        return int(self.call("nvmlDeviceGetCount"))

    def version(self) -> str:
        return str(self.call("nvmlSystemGetDriverVersion"))

    def counters(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> dict[int, int | None]:
        """Return by field the value of its counter; None if this GPU never has it.

        ``wanted`` holds ``(field, scope)``. A counter of 32 bits is none: at PCIe's rates it wraps
        several times a second.
        """
        # One entry more than asked for: NVML may write one past the count.
        values = (self._api.c_nvmlFieldValue_t * (len(wanted) + 1))()
        for value, (field, scope) in zip(values, wanted):
            value.fieldId, value.scopeId = field, scope
        function = self.call("_nvmlGetFunctionPointer", "nvmlDeviceGetFieldValues")
        status = function(handle, len(wanted), values)
        if status != _OK:
            raise error_of(status, _MEANINGS, "NVML error")
        found: dict[int, int | None] = {}
        for value, (field, _) in zip(values, wanted):
            if value.nvmlReturn == _OK and value.valueType in _WIDE_TYPES:
                found[field] = value.value.ullVal
            elif value.nvmlReturn == _OK or value.nvmlReturn in _NEVER:
                found[field] = None
        return found

    def pcie_link(self, handle: Any) -> list[int]:
        """Return lanes in use and the most, generation in use and the highest."""
        return [self.call(f"nvmlDeviceGet{name}", handle) for name in _PCIE_LINK]

    def watch_xids(self, handle: Any) -> None:
        """Have the driver keep the errors of a GPU for ``last_xid``; this needs no privilege."""
        if self._events is None:
            self._events = self.call("nvmlEventSetCreate")
        self.call("nvmlDeviceRegisterEvents", handle, _XID_EVENTS, self._events)

    def last_xid(self, handle: Any) -> int | None:
        """Return the number of the newest error of a GPU since the last call; None without one."""
        # A lost GPU ends the wait for all of them; its time is 0, and that it has passed is refused.
        with contextlib.suppress(NvmlRefusedError, GpuGoneError):
            for _ in range(MAX_EVENTS if self._events is not None else 0):
                event = self.call("nvmlEventSetWait_v2", self._events, 0)
                self._xids[_address(event.device)] = event.eventData
        return self._xids.pop(_address(handle), None)

    def processes(self, handle: Any) -> list[tuple[int, int | None]]:
        """Return pid and bytes of the compute processes; None if the driver may not list them."""
        found = self.call(self._list, handle)[:MAX_PROCESSES]
        return [(process.pid, process.usedGpuMemory) for process in found]

    def mig_instances(self, handle: Any) -> list[Any]:
        found = []
        for index in range(self.call("nvmlDeviceGetMaxMigDeviceCount", handle)):
            with contextlib.suppress(NvmlRefusedError):
                found.append(self.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index))
        return found

    def _choose_list(self) -> None:
        """Choose the process list with the structure of version 2.

        The first 535 drivers gave version 3 one more member and took it back: those drivers
        have the call of confidential computing but not the list of details.
        """
        drifted = self._has("nvmlDeviceGetConfComputeMemSizeInfo") and not self._has(
            "nvmlDeviceGetRunningProcessDetailList"
        )
        if drifted or not self._has(self._list):
            self._list = _LIST + "_v2"

    def _has(self, function: str) -> bool:
        try:
            self.call("_nvmlGetFunctionPointer", function)
        except UnsupportedError:
            return False
        return True


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def load_pynvml() -> Any:
    """Return the pynvml module, if there is a library for it; raises NvmlMissingError."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        raise NvmlMissingError(f"no {LIBRARY}") from None
    try:
        import pynvml
    except ImportError:
        raise NvmlMissingError("no pynvml") from None
    # Give the system back the 12 MB that compiling pynvml took, which glibc would keep.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return pynvml
