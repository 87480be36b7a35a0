"""The stand-in NVML library: how to build it, put it in front of a program, and steer it.

It replaces only ``libnvidia-ml.so.1``; pynvml and everything above stay the real ones.
"""

import ctypes
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("fake_nvml.c")
CONTROL_VARIABLE = "FAKE_NVML_CONTROL"

NOT_SUPPORTED = 3
PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)

_TEXT = SOURCE.read_text(encoding="utf-8")
FUNCTIONS = tuple(re.findall(r"^    X\((\w+)\)", _TEXT, re.MULTILINE))
_AT = {name: int(number) for name, number in re.findall(r"^#define (\w+) (\d+)", _TEXT, re.M)}
_WORDS = _AT["GPUS_AT"] + _AT["MAX_GPUS"] * _AT["GPU_WORDS"]


def compiler() -> str | None:
    """Return the C compiler of this machine, or None: then the library cannot be built."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


def build() -> Path:
    """Return the folder that holds the built library, building it if this source was not yet.

    Raises:
        RuntimeError: without a C compiler.
        subprocess.CalledProcessError: if the source does not compile.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"distconsole-fake-nvml-{os.getuid()}-{digest}"
    if (folder / LIBRARY).exists():
        return folder
    folder.mkdir(mode=0o700, exist_ok=True)
    build_library(SOURCE, folder / LIBRARY)
    return folder


def build_library(source: Path, library: Path) -> None:
    """Build a shared library; what it does not mark as visible is hidden.

    Raises:
        RuntimeError: without a C compiler.
        subprocess.CalledProcessError: if the source does not compile.
    """
    if (cc := compiler()) is None:
        raise RuntimeError(f"no C compiler: install gcc or clang to build {library.name}")
    # Built aside and renamed: another test process may load it at this moment.
    aside = library.with_name(f"{library.name}.{os.getpid()}")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    command = [
        cc,
        *flags,
        f"-Wl,-soname,{library.name}",
        "-o",
        str(aside),
        str(source),
        "-lm",
        "-ldl",
    ]
    subprocess.run(command, check=True)
    aside.rename(library)


class FakeNvml:
    """The switches and counters of one control file.

    Time is in milliseconds (``set_time``); until it is set, values follow the monotonic clock.
    """

    def __init__(self, control: Path) -> None:
        self.control = control
        control.write_bytes(bytes(8 * _WORDS))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * _WORDS)
        self._words = memoryview(self._map).cast("Q")

    def environment(self) -> dict[str, str]:
        """Return the variables that put this library in front of a program to be started."""
        return {"LD_LIBRARY_PATH": str(build()), CONTROL_VARIABLE: str(self.control)}

    def release(self) -> None:
        """Let every hanging call go on."""
        for function in FUNCTIONS:
            self.hang(function, False)
            self.hang_gpu(function, 0, False)

    def close(self) -> None:
        """Let every hanging call go on, and unmap."""
        self.release()
        self._words.release()
        self._map.close()

    def set_time(self, milliseconds: int) -> None:
        self._words[_AT["WORD_TIME_MS"]] = milliseconds

    def set_gpu_count(self, count: int) -> None:
        self._words[_AT["WORD_GPU_COUNT"]] = count

    def reload_driver(self) -> None:
        """Every handle is dead (``NVML_ERROR_UNINITIALIZED``) until NVML is initialised again."""
        self._words[_AT["WORD_GENERATION"]] += 1

    def calls(self, function: str) -> int:
        return self._words[self._function(function) + _AT["FUNCTION_CALLS"]]

    def all_calls(self) -> dict[str, int]:
        """Return how often each function was called, without those that were not."""
        counts = {function: self.calls(function) for function in FUNCTIONS}
        return {function: count for function, count in counts.items() if count}

    def fail(self, function: str, error: int, gpu: int | None = None) -> None:
        """Let ``function`` return ``error`` (0: succeed again), for one GPU or for all."""
        at = _AT["FUNCTION_ERROR"] if gpu is None else _AT["FUNCTION_GPU_ERROR"] + gpu
        self._words[self._function(function) + at] = error

    def hang(self, function: str, hanging: bool = True) -> None:
        self._words[self._function(function) + _AT["FUNCTION_HANG"]] = hanging

    def hang_gpu(self, function: str, gpu: int, hanging: bool = True) -> None:
        """Let ``function`` hang for this GPU alone; False lets all GPUs go on."""
        self._words[self._function(function) + _AT["FUNCTION_GPU_HANG"]] = (
            1 << gpu if hanging else 0
        )

    def lose(self, gpu: int, lost: bool = True) -> None:
        self._gpu(gpu, "GPU_LOST", lost)

    def set_throttle(self, gpu: int, reasons: int, *, once: bool = False) -> None:
        """Hold clocks back for these reasons; ``once``: for the first who asks in a process."""
        self._gpu(gpu, "GPU_THROTTLE", reasons | (0x80000000 if once else 0))

    def set_ecc(self, gpu: int, uncorrected: int) -> None:
        self._gpu(gpu, "GPU_ECC", uncorrected)

    def set_util(self, gpu: int, percent: int) -> None:
        self._gpu(gpu, "GPU_UTIL", percent + 1)

    def set(self, gpu: int, word: str, value: int) -> None:
        """Set a word of the layout in ``fake_nvml.c`` that has no method of its own."""
        self._gpu(gpu, word, value)

    def set_narrow_pcie_counters(self, gpu: int) -> None:
        """Let the PCIe counters be 32 bits wide, as on some drivers."""
        self._gpu(gpu, "GPU_NARROW_PCIE", 1)

    def touch_spare_field(self, gpu: int) -> None:
        """Let ``nvmlDeviceGetFieldValues`` write one element past the count."""
        self._gpu(gpu, "GPU_SPARE_TOUCHED", 1)

    def set_unsupported_fields(self, gpu: int, fields: list[int]) -> None:
        for at in range(_AT["MAX_UNSUPPORTED_FIELDS"]):
            self._gpu_word(
                gpu, _AT["GPU_UNSUPPORTED_FIELDS_AT"] + at, (fields[at : at + 1] or [0])[0]
            )

    def set_processes(self, gpu: int, processes: list[tuple[int, int, int, int]]) -> None:
        """Set the compute processes: ``(pid, bytes, GPU instance, compute instance)`` each."""
        for at, process in enumerate(processes):
            for word, value in enumerate(process):
                self._gpu_word(
                    gpu, _AT["GPU_PROCESSES_AT"] + at * _AT["PROCESS_WORDS"] + word, value
                )
        self._gpu(gpu, "GPU_PROCESS_COUNT", len(processes))

    def set_mig(self, gpu: int, instances: list[tuple[int, int, int, int, int, int]]) -> None:
        """Turn MIG on: ``(gi, ci, GPU slices, compute slices, MiB, bytes used)`` for each."""
        for at, instance in enumerate(instances):
            for word, value in enumerate(instance):
                self._gpu_word(gpu, _AT["GPU_MIGS_AT"] + at * _AT["MIG_WORDS"] + word, value)
        self._gpu(gpu, "GPU_MIG_COUNT", len(instances))
        self._gpu(gpu, "GPU_MIG_MODE", 1)

    def _function(self, name: str) -> int:
        return _AT["FUNCTIONS_AT"] + FUNCTIONS.index(name) * _AT["FUNCTION_WORDS"]

    def _gpu(self, gpu: int, name: str, value: int) -> None:
        self._gpu_word(gpu, _AT[name], value)

    def _gpu_word(self, gpu: int, at: int, value: int) -> None:
        self._words[_AT["GPUS_AT"] + gpu * _AT["GPU_WORDS"] + at] = value


@contextmanager
def installed(folder: Path) -> Iterator[FakeNvml]:
    """Put the library into this process, steered by a new control file in ``folder``.

    The library is loaded by its path; its soname then answers pynvml's own
    ``dlopen("libnvidia-ml.so.1")``, so that nothing of pynvml is replaced.
    """
    ctypes.CDLL(str(build() / LIBRARY))
    descriptor, control = tempfile.mkstemp(prefix="control-", dir=folder)
    os.close(descriptor)
    fake = FakeNvml(Path(control))
    before = os.environ.get(CONTROL_VARIABLE)
    os.environ[CONTROL_VARIABLE] = str(fake.control)
    try:
        yield fake
    finally:
        fake.close()
        if before is None:
            os.environ.pop(CONTROL_VARIABLE, None)
        else:
            os.environ[CONTROL_VARIABLE] = before


def main() -> int:
    """Print the folder to put on LD_LIBRARY_PATH."""
    sys.stdout.write(f"{build()}\n")
    return 0
