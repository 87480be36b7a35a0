"""AMD's GPUs by libamd_smi, through the same form as NVIDIA's: see ``device.py``.

Only calls with the same form from ROCm 6.0 to 7.0 are used: plain numbers, and structures whose beginning is the
same (``amdsmi.h``); their buffers are larger than any of them. The PCIe link and the processes are of sysfs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from distconsole_agent.contract import protocol
from distconsole_agent.contract.protocol import Values
from distconsole_agent.system.kernel_files import entries_of, first_line_of, number_of, text_of
from distconsole_agent.telemetry.device import (
    EACH_SECONDS,
    SLOW_SECONDS,
    WARM_SECONDS,
    Questions,
    UnitReading,
)
from distconsole_agent.telemetry.mapping import GpuUnit
from distconsole_agent.telemetry.nvml import (
    MAX_PROCESSES,
    DriverGoneError,
    GpuGoneError,
    NvmlError,
    NvmlMissingError,
    NvmlRefusedError,
    UnsupportedError,
    error_of,
)
from distconsole_agent.telemetry.rates import Rate

LIBRARY = "libamd_smi.so"
FOLDERS = ("/opt/rocm/lib/", "/opt/rocm/lib64/")
MAX_GPUS = 64
BUFFER_BYTES = 1 << 14
"""More than any structure that is filled."""

_OK = 0
_INIT_GPUS = 2
_MEANINGS = (
    # No module, no symbol, not initialised, no driver.
    (frozenset({4, 5, 18, 32, 34, 51}), DriverGoneError),
    (frozenset({31}), GpuGoneError),  # not found
    # Argument, support, permission, files.
    (frozenset({1, 2, 3, 10, 14, 20, 52, 55}), UnsupportedError),
)
_VRAM, _EDGE, _HOTSPOT, _CURRENT = 0, 0, 1, 0
_GFX_CLOCK, _MEMORY_CLOCK = 0, 4
_UNKNOWN = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
SYSFS = "/sys"

Handle = ctypes.c_void_p


class Amd:
    """libamd_smi, initialised. Every method may raise an ``NvmlError``: the kinds of refusal are the same."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handles: list[Handle] = []

    @classmethod
    def open(cls) -> Amd:
        """Load and initialise the library.

        Raises:
            NvmlMissingError: if there is no library, or no GPU of AMD's.
            DriverGoneError: if the driver does not answer.
        """
        root = os.environ.get("ROCM_PATH")
        for folder in ("", *([f"{root}/lib/"] if root else []), *FOLDERS):
            with contextlib.suppress(OSError):
                amd = cls(ctypes.CDLL(folder + LIBRARY))
                break
        else:
            raise NvmlMissingError(f"no {LIBRARY}")
        try:
            amd.call("init", ctypes.c_uint64(_INIT_GPUS))
            found = [
                handle
                for socket in amd._list("get_socket_handles")
                for handle in amd._list("get_processor_handles", socket)
            ]
            amd._handles = found[:MAX_GPUS]
        except NvmlError as error:
            # The library is there without a GPU, too, as in ROCm's containers.
            if not os.path.isdir(f"{SYSFS}/class/kfd/kfd"):
                raise NvmlMissingError(str(error)) from None
            raise DriverGoneError(str(error)) from None
        return amd

    def close(self) -> None:
        with contextlib.suppress(NvmlError):
            self.call("shut_down")

    def call(self, function: str, *arguments: Any) -> None:
        try:
            status = getattr(self._library, f"amdsmi_{function}")(*arguments)
        except AttributeError:
            raise UnsupportedError(f"libamd_smi has no amdsmi_{function}") from None
        if status != _OK:
            raise error_of(status, _MEANINGS, f"amdsmi_{function}: error")

    def count(self) -> int:
        return len(self._handles)

    def version(self) -> str:
        """Return the driver's version; the kernel's, if it is part of it."""
        return first_line_of(f"{SYSFS}/module/amdgpu/version") or os.uname().release

    def handle(self, index: int) -> Handle:
        return self._handles[index]

    def number(self, function: str, handle: Handle, *arguments: int) -> int | None:
        """Return the number that a function gives by its last argument; None for its "unknown"."""
        found = ctypes.c_uint64()
        self.call(function, handle, *arguments, ctypes.byref(found))
        return None if found.value in _UNKNOWN else found.value

    def structure(self, function: str, handle: Handle, *arguments: int) -> bytes:
        buffer = ctypes.create_string_buffer(BUFFER_BYTES)
        self.call(function, handle, *arguments, buffer)
        return buffer.raw

    def uuid(self, handle: Handle) -> str:
        length, text = ctypes.c_uint(256), ctypes.create_string_buffer(256)
        self.call("get_gpu_device_uuid", handle, ctypes.byref(length), text)
        return text.value.decode("ascii", "replace")

    def energy_microjoules(self, handle: Handle) -> int:
        total, unit, at = ctypes.c_uint64(), ctypes.c_float(), ctypes.c_uint64()
        numbers = [ctypes.byref(each) for each in (total, unit, at)]
        self.call("get_energy_count", handle, *numbers)
        return int(total.value * float(unit.value))

    def _list(self, function: str, *arguments: Handle) -> list[Handle]:
        count = ctypes.c_uint32()
        self.call(function, *arguments, ctypes.byref(count), None)
        handles = (Handle * min(count.value, MAX_GPUS))()
        count.value = len(handles)
        self.call(function, *arguments, ctypes.byref(count), handles)
        return [Handle(each) for each in handles[: count.value]]


class AmdDevice:
    """A GPU of AMD's and its last reading, as ``Device`` is one of NVIDIA's."""

    def __init__(self, amd: Amd, index: int) -> None:
        self._amd = amd
        self._handle = amd.handle(index)
        self._questions = Questions()
        self._values: Values = {}
        self._energy = Rate(1e-6)
        self._processes: list[tuple[int, int | None]] = []
        ask = self._questions.ask
        uuid = ask("uuid", partial(amd.uuid, self._handle))
        text = ask("name", partial(amd.structure, "get_gpu_asic_info", self._handle)) or b""
        name = text.split(b"\0")[0][:80].decode("ascii", "replace") or None
        place = ask("bdf", partial(amd.number, "get_gpu_device_bdf", self._handle))
        self.place = _Place(place)
        self.unit = GpuUnit(key=uuid or f"gpu{index}", index=index, uuid=uuid, model=name)
        self.readings: tuple[UnitReading, ...] = (UnitReading(self.unit, {}, (), None),)

    def read(self, now: float, with_processes: bool) -> None:
        ask = self._questions.ask
        for pace in self._questions.take_due(now):
            for value, read in _VALUES[pace].items():
                self._values[value] = ask(value, partial(read, self))
        used = ask("energy", partial(self._amd.energy_microjoules, self._handle))
        watts = self._energy.update(used, now)
        self._values[protocol.POWER] = None if watts is None else round(watts, 1)
        if with_processes:
            self._processes = self.place.processes()
        self.readings = (UnitReading(self.unit, dict(self._values), self._processes, now),)

    def utilization(self) -> int | None:
        used = int.from_bytes(self._amd.structure("get_gpu_activity", self._handle)[:4], "little")
        return used if used <= 100 else None

    def temperature(self) -> int | None:
        """Return the temperature of the edge; MI300 has that of the hottest spot only."""
        for sensor in (_EDGE, _HOTSPOT):
            with contextlib.suppress(NvmlRefusedError, UnsupportedError):
                found = self._amd.number("get_temp_metric", self._handle, sensor, _CURRENT)
                if found is not None and 0 < found < 200:
                    return found
        return None

    def clock(self, kind: int) -> int | None:
        text = self._amd.structure("get_clock_info", self._handle, kind)
        found = int.from_bytes(text[:4], "little")
        return None if found in _UNKNOWN else found

    def memory(self, what: str) -> int | None:
        return self._amd.number(f"get_gpu_memory_{what}", self._handle, _VRAM)

    def uncorrected(self) -> int | None:
        text = self._amd.structure("get_gpu_total_ecc_count", self._handle)
        return int.from_bytes(text[8:16], "little")


_VALUES: dict[float, dict[str, Callable[[AmdDevice], Any]]] = {
    SLOW_SECONDS: {
        protocol.ECC: AmdDevice.uncorrected,
        "mem_total": lambda device: device.memory("total"),
    },
    WARM_SECONDS: {"temp_c": AmdDevice.temperature, "pcie": lambda device: device.place.link()},
    EACH_SECONDS: {
        "util": AmdDevice.utilization,
        "sm_clock_mhz": lambda device: device.clock(_GFX_CLOCK),
        "mem_clock_mhz": lambda device: device.clock(_MEMORY_CLOCK),
        "mem_used": lambda device: device.memory("usage"),
    },
}
"""By the pace in seconds: the values that are read then, and how."""


class _Place:
    """The PCI address of a GPU, and its files in sysfs."""

    def __init__(self, number: int | None) -> None:
        """Take a number apart: 3 bits of the function, 5 of the device, 8 of the bus, then the domain."""
        self._number = number
        place = number or 0
        self._folder = (
            f"{SYSFS}/bus/pci/devices/"
            f"{place >> 16:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
        )

    def link(self) -> list[int] | None:
        """Return lanes in use and the most, generation in use and the highest."""
        names = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
        words = [first_line_of(f"{self._folder}/{name}") or "" for name in names]
        numbers = [float(found[0]) if (found := re.match(r"[\d.]+", w)) else 0.0 for w in words]
        link = [*map(int, numbers[:2]), *(_GENERATIONS.get(each, 0) for each in numbers[2:])]
        return link if all(link) else None

    def processes(self) -> list[tuple[int, int | None]]:
        """Return pid and bytes of the processes that compute on it (/sys/class/kfd/kfd/proc)."""
        gpu, root = self._kfd_id(), f"{SYSFS}/class/kfd/kfd/proc"
        found: list[tuple[int, int | None]] = []
        for pid in entries_of(root) if gpu else ():
            used = number_of(f"{root}/{pid}/vram_{gpu}") if pid.isdigit() else None
            if used:
                found.append((int(pid), used))
        return found[:MAX_PROCESSES]

    def _kfd_id(self) -> int | None:
        nodes = f"{SYSFS}/class/kfd/kfd/topology/nodes"
        place = self._number
        for node in entries_of(nodes) if place is not None else ():
            with contextlib.suppress(ValueError):
                told = text_of(f"{nodes}/{node}/properties")
                words = dict(line.split()[:2] for line in told.splitlines())
                where = int(words.get("domain", 0)) << 16 | int(words.get("location_id", -1))
                if where == place:
                    return number_of(f"{nodes}/{node}/gpu_id")
        return None
