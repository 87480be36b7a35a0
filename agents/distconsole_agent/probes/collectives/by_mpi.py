"""MPI's library as engine of a short collective job, by the standard ABI, Open MPI's or MPICH's.

The library is that of the mpirun that started this rank. If the linker would load another MPI into a
program, that one is reported too: every rank of such a program is alone.
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
import subprocess
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from distconsole_agent.probes.collectives.values import (
    ITEM_BYTES,
    PERIOD,
    Case,
    PreparedCollective,
    limit_of,
    magnitudes,
    signs,
    stage,
)

OPEN_MPIS, MPICHS = ("libmpi.so.40",), ("libmpi.so.12", "libmpich.so.12")
STANDARD = "libmpi_abi.so.1"
FOLDERS = ("lib", "lib64", "lib/release", "lib/*")
"""Below the prefix of an MPI; Intel MPI's debug library lies beside ``release``."""

STARTERS = re.compile(
    r"(?:mpirun|orterun|orted|prte|prterun|prted|mpiexec\.hydra|hydra_pmi_proxy|pmi_proxy)"
)
MAX_ANCESTORS = 32
LINKER_SECONDS = 10

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

STANDARD_ABI = {
    "world": 0x101,
    "float32": 0x210,
    "float64": 0x214,
    "int64": 0x258,
    "sum": 0x21,
    "max": 0x23,
}
"""Handles are pointers of these values (the ABI of MPI 5.0)."""

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
    """MPI_COMM_WORLD, joined when made, or SIGALRM ends us after ``timeout_seconds``; raises OSError.

    ``linked``: by the library that the linker gives to a program, be it another MPI's than mpirun's.
    """

    def __init__(self, timeout_seconds: float, linked: bool = False) -> None:
        self._loaded = load(linked)
        stage("loaded MPI")
        self._library = self._loaded.library
        self._standard = os.path.basename(find_library()).startswith("libmpi_abi.")
        self._open_mpi = not self._standard and hasattr(self._library, "ompi_mpi_comm_world")
        self._world = self._handle("world")
        signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
        self.call("MPI_Init", None, None)
        self.rank, self.world = self._number("MPI_Comm_rank"), self._number("MPI_Comm_size")

    def place(self) -> dict[str, object]:
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
            "mpirun": find_mpirun(),
            "own": self._loaded.own,
            "linked": self._loaded.linked,
            "version": version_of(self._library),
            "device": "cpu",
        }

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; RuntimeError if its errors do not end the job by themselves."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def prepare(self, case: Case, given: bytearray) -> PreparedCollective:
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
        return PreparedCollective(lambda: self.call(*words), lambda: result)

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
        alone = _mapped(r"/\S*/sm_segment\.\S+") if self.world == 1 else set()
        self.call("MPI_Finalize")
        for segment in alone:
            # Open MPI 5.0.7 leaves files of a lone rank: its shared memory, and its empty folders.
            name, job, _ = os.path.basename(segment).rsplit(".", 2)
            folder = os.path.join(tempfile.gettempdir(), name.replace("sm_segment", "ompi", 1))
            with contextlib.suppress(OSError, ValueError):
                os.unlink(segment)
                for path in (os.path.join("jf.0", str(int(job, 16))), "jf.0", ""):
                    os.rmdir(os.path.join(folder, path))

    def _handle(self, name: str) -> Any:
        tables: tuple[dict[str, Any], ...] = (MPICH, OPEN_MPI, STANDARD_ABI)
        table = tables[2 if self._standard else self._open_mpi]
        if name not in table:
            raise NotImplementedError(f"MPI has no {name}")
        if self._open_mpi:
            symbol = ctypes.c_char.in_dll(self._library, table[name])
            return ctypes.c_void_p(ctypes.addressof(symbol))
        return ctypes.c_void_p(table[name]) if self._standard else ctypes.c_int(table[name])

    def _number(self, name: str) -> int:
        found = ctypes.c_int(-1)
        self.call(name, self._world, ctypes.byref(found))
        return found.value


class LoadedLibrary(NamedTuple):
    """The MPI library of this process.

    Attributes:
        own: The library was found beside mpirun.
        linked: Path and version of another MPI's that the linker gives to a program; empty for none.
    """

    library: ctypes.CDLL
    own: bool = False
    linked: str = ""


def load(linked: bool = False) -> LoadedLibrary:
    """Return the library of mpirun, else, or if ``linked``, that of the linker; OSError if there is none."""
    # As programs of the MPI that started this rank call their library.
    names: tuple[str, ...] = MPICHS if "PMI_SIZE" in os.environ else (*OPEN_MPIS, *MPICHS)
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        names = OPEN_MPIS
    refused = None
    for path in () if linked else _own_libraries(names):
        # Before the load: the linker finds loaded libraries first.
        other = _ask_linker(path, names)
        try:
            # Open MPI's own plugins look for its symbols among the global ones.
            library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError as error:
            refused = refused or error
        else:
            return LoadedLibrary(library, True, "" if version_of(library) in other else other)
    for name in names if refused else (*names, STANDARD, *OPEN_MPIS, *MPICHS, "libmpi.so"):
        with contextlib.suppress(OSError):
            return LoadedLibrary(ctypes.CDLL(name, ctypes.RTLD_GLOBAL))
    lacks = "no libmpi can be loaded, neither where the linker looks nor beside mpirun"
    raise refused or OSError(lacks)


def _own_libraries(names: Sequence[str]) -> Iterator[str]:
    """Yield the libraries of mpirun's installation, then those that its compiler wrapper links."""
    mpirun = find_mpirun()
    path = os.path.realpath(mpirun)
    prefixes = dict.fromkeys(os.path.dirname(os.path.dirname(each)) for each in (mpirun, path))
    for prefix in filter(None, prefixes):
        for folder in FOLDERS:
            for place in sorted(glob.glob(os.path.join(glob.escape(prefix), folder))):
                yield from _libraries_in(place, names)
    for place in _ask_wrapper(mpirun) if mpirun else ():
        yield from _libraries_in(place, names)


def _libraries_in(folder: str, names: Sequence[str]) -> Iterator[str]:
    others = {*OPEN_MPIS, *MPICHS}.difference(names)
    shared = any(os.path.exists(os.path.join(folder, name)) for name in others)
    # Where two MPIs share a folder, the standard ABI's library may be of either.
    for name in names if shared else (STANDARD, *names):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            yield path


def _ask_wrapper(mpirun: str) -> list[str]:
    """Return the library folders that mpicc beside mpirun links programs with."""
    mpicc = os.path.join(os.path.dirname(mpirun), "mpicc")
    option = "--showme:link" if "OMPI_COMM_WORLD_SIZE" in os.environ else "-show"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [mpicc, option], capture_output=True, text=True, timeout=LINKER_SECONDS, check=False
        )
        return re.findall(r"-L ?(/[^\s'\"]+)", done.stdout)
    return []


def _ask_linker(own: str, names: Sequence[str]) -> str:
    """Return path and version of the library that a program of this MPI gets, unless it is ``own``."""
    found = next((name for name in names if _is_beside(own, name)), None)
    if found is None:
        return ""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LINKER_SECONDS)
        with contextlib.suppress(BaseException):
            library = ctypes.CDLL(found, ctypes.RTLD_GLOBAL)
            path = find_library()
            if not _is_beside(own, path):
                os.write(writing, os.fsencode(f"{path} ({version_of(library)})"))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = os.fsdecode(pipe.read())
    os.waitpid(child, 0)
    return told


def _is_beside(own: str, other: str) -> bool:
    folder = os.path.dirname(own)
    path = os.path.realpath(os.path.join(folder, other))
    return os.path.exists(path) and os.path.dirname(path) == os.path.dirname(os.path.realpath(own))


def find_mpirun() -> str:
    """Return the mpirun that started this rank, by its process or daemon; else the one on the PATH."""
    process = os.getppid()
    for _ in range(MAX_ANCESTORS):
        with contextlib.suppress(OSError):
            folder, name = os.path.split(os.readlink(f"/proc/{process}/exe"))
            mpirun = os.path.join(folder, "mpirun")
            if STARTERS.fullmatch(name) and os.path.exists(mpirun):
                return mpirun
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return shutil.which("mpirun") or ""


def version_of(library: ctypes.CDLL) -> str:
    """Return the library's version, in a line; empty if it reports none."""
    text, length = ctypes.create_string_buffer(VERSION_BYTES), ctypes.c_int()
    with contextlib.suppress(AttributeError):
        library.MPI_Get_library_version(text, ctypes.byref(length))
    return " ".join(text.value.decode("utf-8", "replace").split())[:120]


def find_library() -> str:
    """Return the path of the MPI library that this process has loaded."""
    return min(_mapped(r"/\S*/libmpi(?:ch|_abi)?\.so\S*"), default="")


def _mapped(pattern: str) -> set[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return set(re.findall(pattern, file.read()))


def _pointer(buffer: bytearray) -> Any:
    return (ctypes.c_char * len(buffer)).from_buffer(buffer)
