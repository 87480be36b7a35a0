"""MPI's library as engine of a short collective job, by Open MPI's or MPICH's ABI.

The library is the one that a program linked with MPI would get here, so one of another MPI than
mpirun's shows as it would there: every rank is alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import shutil
import signal
import socket
from array import array
from typing import Any

from distconsole_agent.probes.collectives.values import (
    ITEM_BYTES,
    PERIOD,
    Case,
    Prepared,
    limit_of,
    magnitudes,
    signs,
)

LIBRARIES = ("libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so")
TYPECODES = {"float32": "f", "float64": "d", "int64": "q"}
OPEN_MPI = {
    "world": "ompi_mpi_comm_world",
    "float32": "ompi_mpi_float",
    "float64": "ompi_mpi_double",
    "int64": "ompi_mpi_long_long_int",
    "sum": "ompi_mpi_op_sum",
    "max": "ompi_mpi_op_max",
}
"""Handles are the addresses of these symbols (Open MPI's mpi.h)."""

MPICH = {
    "world": 0x44000000,
    "float32": 0x4C00040A,
    "float64": 0x4C00080B,
    "int64": 0x4C000809,
    "sum": 0x58000003,
    "max": 0x58000001,
}
"""Handles are numbers (MPICH's mpi.h, fixed by the MPICH ABI initiative)."""

STATUS_BYTES = 256
VERSION_BYTES = 8192


class ByteValues:
    """Every rank's input and the right results, as bytes of C's types."""

    def __init__(self, world: int, seed: int) -> None:
        self._world, self._seed = world, seed
        self._patterns: dict[tuple[str, int | str], bytes] = {}

    def of(self, case: Case, rank: int | str, first: int, count: int, shift: int) -> bytes:
        """Return ``count`` values from ``first``: a rank's, ``sum`` or ``max``; raises NotImplementedError."""
        if case.dtype not in TYPECODES:
            raise NotImplementedError(f"MPI has no {case.dtype}")
        key = (case.dtype, rank)
        if key not in self._patterns:
            if isinstance(rank, int):
                numbers = self._numbers(case.dtype, rank)
            else:
                ranks = [self._numbers(case.dtype, each) for each in range(self._world)]
                numbers = [sum(each) if rank == "sum" else max(each) for each in zip(*ranks)]
            self._patterns[key] = array(TYPECODES[case.dtype], numbers).tobytes()
        pattern, item = self._patterns[key], ITEM_BYTES[case.dtype]
        start = (first + shift) % PERIOD * item
        turned = pattern[start:] + pattern[:start]
        return (turned * (count // PERIOD + 1))[: count * item]

    def reduced(self, case: Case, first: int, count: int, shift: int) -> bytes:
        """Return the sum over all ranks; the greatest for ``all_reduce_max``."""
        whose = "max" if case.op == "all_reduce_max" else "sum"
        return self.of(case, whose, first, count, shift)

    def joined(self, parts: list[bytes]) -> bytes:
        return b"".join(parts)

    def buffer(self, values: bytes, _engine: Mpi) -> bytearray:
        """Return ``values`` where the library may write."""
        return bytearray(values)

    def compare(self, case: Case, result: bytearray, right: bytes) -> tuple[int, int]:
        item = ITEM_BYTES[case.dtype]
        places = range(0, len(right), item) if result != right else ()
        wrong = sum(result[at : at + item] != right[at : at + item] for at in places)
        return wrong, len(right) // item

    def clear(self, given: bytearray) -> None:
        """Leave an input as it is: nothing is summed in place."""

    def _numbers(self, dtype: str, rank: int) -> list[int]:
        limit = limit_of(dtype, self._world)
        return [
            magnitudes(index, rank, self._seed, limit) * signs(index, self._seed)
            for index in range(PERIOD)
        ]


class Mpi:
    """MPI_COMM_WORLD, joined when made, or SIGALRM ends us after ``timeout_seconds``; raises OSError."""

    def __init__(self, timeout_seconds: float) -> None:
        self._library = load()
        self._open_mpi = hasattr(self._library, "ompi_mpi_comm_world")
        self._world = self._handle("world")
        signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
        self.call("MPI_Init", None, None)
        self.rank, self.world = self._number("MPI_Comm_rank"), self._number("MPI_Comm_size")

    def place(self) -> dict[str, Any]:
        places = {
            key: int(os.environ[name])
            for key, name in (("local_rank", "LOCAL_RANK"), ("local_size", "LOCAL_WORLD_SIZE"))
            if os.environ.get(name, "").isdigit()
        }
        return {
            "rank": self.rank,
            "world_size": self.world,
            **places,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "backend": "mpi",
            "library": find_library(),
            "mpirun": shutil.which("mpirun") or "",
            "version": self._version(),
            "device": "cpu",
        }

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; RuntimeError where its errors do not end the job by themselves."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def prepare(self, case: Case, given: bytearray) -> Prepared:
        whole = self.world if case.op in ("all_gather", "all_to_all") else 1
        came = bytearray(case.elements * ITEM_BYTES[case.dtype] * whole)
        kind, count = self._handle(case.dtype), case.elements
        send, receive = _pointer(given), _pointer(came)
        total = self._handle("max" if case.op == "all_reduce_max" else "sum")
        last, status = self.world - 1, ctypes.create_string_buffer(STATUS_BYTES)
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        calls: dict[str, tuple[Any, ...]] = {
            "all_reduce": ("MPI_Allreduce", send, receive, count, kind, total),
            "all_reduce_max": ("MPI_Allreduce", send, receive, count, kind, total),
            "broadcast": ("MPI_Bcast", send, count, kind, last),
            "reduce": ("MPI_Reduce", send, receive, count, kind, total, last),
            "all_gather": ("MPI_Allgather", send, count, kind, receive, count, kind),
            "reduce_scatter": ("MPI_Reduce_scatter_block", send, receive, count, kind, total),
            "all_to_all": ("MPI_Alltoall", send, count, kind, receive, count, kind),
            "send_recv": (
                *("MPI_Sendrecv", send, count, kind, after, 0),
                *(receive, count, kind, before, 0),
            ),
            "barrier": ("MPI_Barrier",),
        }
        words = (*calls[case.op], self._world)
        if case.op == "send_recv":
            words = (*words, status)
        result = given if case.op in ("broadcast", "barrier") else came
        return Prepared(lambda: self.call(*words), lambda: result)

    def synchronize(self) -> None:
        """Wait for nothing: MPI's calls return when they are done."""

    def barrier(self) -> None:
        self.call("MPI_Barrier", self._world)

    def greatest(self, seconds: float) -> float:
        mine, all_ = ctypes.c_double(seconds), ctypes.c_double()
        kind, greatest = self._handle("float64"), self._handle("max")
        pointers = ctypes.byref(mine), ctypes.byref(all_)
        self.call("MPI_Allreduce", *pointers, 1, kind, greatest, self._world)
        return all_.value

    def close(self) -> None:
        self.call("MPI_Finalize")

    def _handle(self, name: str) -> Any:
        table: dict[str, Any] = OPEN_MPI if self._open_mpi else MPICH
        if name not in table:
            raise NotImplementedError(f"MPI has no {name}")
        if not self._open_mpi:
            return ctypes.c_int(table[name])
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, table[name])))

    def _number(self, name: str) -> int:
        found = ctypes.c_int(-1)
        self.call(name, self._world, ctypes.byref(found))
        return found.value

    def _version(self) -> str:
        text, length = ctypes.create_string_buffer(VERSION_BYTES), ctypes.c_int()
        with contextlib.suppress(AttributeError, RuntimeError):
            self.call("MPI_Get_library_version", text, ctypes.byref(length))
        return " ".join(text.value.decode("utf-8", "replace").split())[:120]


def load() -> ctypes.CDLL:
    """Return the MPI library: where the linker looks, else beside mpirun; OSError if it is nowhere."""
    mpirun = shutil.which("mpirun")
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(mpirun))) if mpirun else ""
    beside = [
        path
        for name in LIBRARIES
        for folder in ("lib", "lib64", "lib/*")
        for path in sorted(glob.glob(os.path.join(glob.escape(prefix), folder, name)))
        if prefix
    ]
    for path in (*LIBRARIES, *beside):
        with contextlib.suppress(OSError):
            # Open MPI's own plugins look for its symbols among the global ones.
            return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    raise OSError("no libmpi can be loaded, neither where the linker looks nor beside mpirun")


def find_library() -> str:
    """Return the path of the MPI library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        found = re.search(r"(/\S*/libmpi(?:ch)?\.so\S*)", file.read())
    return found[1] if found else ""


def _pointer(buffer: bytearray) -> Any:
    return (ctypes.c_char * len(buffer)).from_buffer(buffer)
