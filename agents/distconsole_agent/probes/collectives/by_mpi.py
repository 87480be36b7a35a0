"""MPI itself as the engine of a short collective job: its library, called without any binding.

A rank needs neither mpi4py nor torch. The library is the one that a program linked with MPI would
get here, so a library of another MPI than mpirun's shows as it would there: every rank is alone.
Only the two ABIs that there are (Open MPI's and MPICH's, which Intel MPI shares) are known.
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
import time
from array import array
from typing import Any, Callable, NamedTuple

from distconsole_agent.probes.collectives.values import (
    ITEM_BYTES,
    PERIOD,
    SPLIT_OPS,
    Case,
    iterations_for,
    limit_of,
    magnitudes,
    signs,
)

LIBRARIES = ("libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so")
TYPECODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}
OPEN_MPI = {
    "world": "ompi_mpi_comm_world",
    "float32": "ompi_mpi_float",
    "float64": "ompi_mpi_double",
    "int32": "ompi_mpi_int",
    "int64": "ompi_mpi_long_long_int",
    "sum": "ompi_mpi_op_sum",
    "max": "ompi_mpi_op_max",
}
"""Handles are the addresses of these symbols (Open MPI's mpi.h)."""

MPICH = {
    "world": 0x44000000,
    "float32": 0x4C00040A,
    "float64": 0x4C00080B,
    "int32": 0x4C000405,
    "int64": 0x4C000809,
    "sum": 0x58000003,
    "max": 0x58000001,
}
"""Handles are numbers (MPICH's mpi.h, fixed by the MPICH ABI initiative)."""

STATUS_BYTES = 256
VERSION_BYTES = 8192


class Timed(NamedTuple):
    """What a case came to; ``seconds`` of one operation, None where it was not timed."""

    wrong: int
    verified: int
    seconds: float | None
    iterations: int


class Mpi:
    """MPI_COMM_WORLD, joined when this is made.

    Args:
        seed: Of the inputs.
        timeout_seconds: After so long in MPI_Init the process is ended by SIGALRM.

    Raises:
        OSError: if there is no library to load.
    """

    def __init__(self, seed: int, timeout_seconds: float) -> None:
        self._library = load()
        self._open_mpi = hasattr(self._library, "ompi_mpi_comm_world")
        self._world = self._handle("world")
        self._seed = seed
        self._patterns: dict[tuple[str, int | str], bytes] = {}
        signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
        self.call("MPI_Init", None, None)
        self.rank, self.world = self._number("MPI_Comm_rank"), self._number("MPI_Comm_size")

    def place(self) -> dict[str, Any]:
        """Return who this rank finds itself to be, what mpirun meant it to be, and with what."""
        launched = {
            key: int(os.environ[name])
            for key, name in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
            if os.environ.get(name, "").isdigit()
        }
        places = {
            key: int(os.environ[name])
            for key, name in (("local_rank", "LOCAL_RANK"), ("local_size", "LOCAL_WORLD_SIZE"))
            if os.environ.get(name, "").isdigit()
        }
        return {
            "rank": self.rank,
            "world_size": self.world,
            **places,
            "launched": launched,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "backend": "mpi",
            "library": find_library(),
            "mpirun": shutil.which("mpirun") or "",
            "version": self._version(),
            "device": "cpu",
        }

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; its errors end the job by themselves.

        Raises:
            RuntimeError: where they do not.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def prepare(
        self, case: Case, given: bytearray, came: bytearray
    ) -> tuple[Callable[[], None], bytearray]:
        """Return the operation of ``case`` from ``given``, and the buffer with its result.

        Raises:
            NotImplementedError: for a type that C has not.
        """
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
        in_place = case.op in ("broadcast", "barrier")
        return (lambda: self.call(*words)), given if in_place else came

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.call("MPI_Barrier", self._world)

    def greatest(self, seconds: float) -> float:
        """Return the greatest of all ranks' values."""
        mine, all_ = ctypes.c_double(seconds), ctypes.c_double()
        kind, greatest = self._handle("float64"), self._handle("max")
        pointers = ctypes.byref(mine), ctypes.byref(all_)
        self.call("MPI_Allreduce", *pointers, 1, kind, greatest, self._world)
        return all_.value

    def close(self) -> None:
        """Leave together."""
        self.call("MPI_Finalize")

    def values(self, dtype: str, whose: int | str, first: int, count: int) -> bytes:
        """Return ``count`` values from index ``first``: a rank's, or the ``sum`` or ``max`` of all."""
        key = (dtype, whose)
        if key not in self._patterns:
            if isinstance(whose, int):
                numbers = self._numbers(dtype, whose)
            else:
                ranks = [self._numbers(dtype, rank) for rank in range(self.world)]
                numbers = [sum(each) if whose == "sum" else max(each) for each in zip(*ranks)]
            self._patterns[key] = array(TYPECODES[dtype], numbers).tobytes()
        pattern, item = self._patterns[key], ITEM_BYTES[dtype]
        start = first % PERIOD * item
        turned = pattern[start:] + pattern[:start]
        return (turned * (count // PERIOD + 1))[: count * item]

    def _numbers(self, dtype: str, rank: int) -> list[int]:
        limit = limit_of(dtype, self.world)
        return [
            magnitudes(index, rank, self._seed, limit) * signs(index, self._seed)
            for index in range(PERIOD)
        ]

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
    """Return the MPI library: where the linker looks, else beside mpirun.

    Raises:
        OSError: if it is nowhere.
    """
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


def measure(engine: Mpi, case: Case, number: int, case_seconds: float) -> Timed:
    """Verify a case, which warms it up too, then time it (see ``collective_tensors.measure``)."""
    shift, item, world = 17 * number, ITEM_BYTES[case.dtype], engine.world
    if case.dtype not in TYPECODES:
        raise NotImplementedError(f"MPI has no {case.dtype}")
    parts = world if case.op in ("reduce_scatter", "all_to_all") else 1
    given = bytearray(engine.values(case.dtype, engine.rank, shift, case.elements * parts))
    whole = world if case.op in ("all_gather", "all_to_all") else 1
    came = bytearray(case.elements * item * whole)
    run, result = engine.prepare(case, given, came)
    began = time.perf_counter()
    run()
    once = time.perf_counter() - began
    right = compute_expected(engine, case, shift)
    wrong = 0 if right is None or result == right else _differing(result, right, item)
    verified = 0 if right is None else len(right) // item
    if case.iterations == 0:
        return Timed(wrong, verified, None, 0)
    iterations = case.iterations
    if iterations is None:
        began = time.perf_counter()
        run()
        once = min(once, time.perf_counter() - began)
        iterations = iterations_for(engine.greatest(once), case_seconds)
    engine.barrier()
    began = time.perf_counter()
    for _ in range(iterations):
        run()
    return Timed(wrong, verified, (time.perf_counter() - began) / iterations, iterations)


def compute_expected(engine: Mpi, case: Case, shift: int) -> bytes | None:
    """Return the right result at this rank, computed here alone; None where it gets none."""
    rank, world, count = engine.rank, engine.world, case.elements
    if case.op == "barrier" or (case.op == "reduce" and rank != world - 1):
        return None
    if case.op in ("broadcast", "send_recv"):
        whose = world - 1 if case.op == "broadcast" else (rank - 1) % world
        return engine.values(case.dtype, whose, shift, count)
    first = shift + (rank * count if case.op in SPLIT_OPS else 0)
    if case.op in ("all_gather", "all_to_all"):
        first = shift if case.op == "all_gather" else first
        return b"".join(engine.values(case.dtype, each, first, count) for each in range(world))
    return engine.values(case.dtype, "max" if case.op == "all_reduce_max" else "sum", first, count)


def _differing(result: bytearray, right: bytes, item: int) -> int:
    """Return how many values of ``item`` bytes differ."""
    return sum(
        result[at : at + item] != right[at : at + item] for at in range(0, len(right), item)
    )


def _pointer(buffer: bytearray) -> Any:
    return (ctypes.c_char * len(buffer)).from_buffer(buffer)
