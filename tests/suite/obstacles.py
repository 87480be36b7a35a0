"""Why a marked test cannot run on this machine; it looks, and installs nothing."""

import importlib.util
import shutil
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import testbed

MPICH = Path(__file__).resolve().parents[2] / ".make/mpich"
"""Where make installs MPICH, beside the system's MPI."""


@cache
def obstacle(marker: str) -> str:
    """Return the reason why tests with this marker cannot run here; empty when they can."""
    match marker:
        case "testbed":
            return testbed.missing()
        case "torch_ranks":
            return needs_module("torch", "make test installs it")
        case "horovod":
            return (
                needs_module("torch", "make test installs it")
                or needs_horovod()
                or needs_own_name()
            )
        case "mpi":
            return "" if shutil.which("mpirun") else "needs mpirun (Debian: openmpi-bin)"
        case "mpich":
            return (
                "" if (MPICH / "bin/mpirun").exists() else "needs a second MPI (make test gets it)"
            )
        case "gpu":
            return needs_gpu()
        case "tmux":
            return "" if shutil.which("tmux") else "needs tmux"
        case "browser":
            browser = all(map(shutil.which, ("chromium", "chromedriver")))
            hint = "needs chromium and chromedriver (Debian: chromium, chromium-driver)"
            return needs_module("selenium", "make test installs it") if browser else hint
        case "slurm":
            programs = ("slurmctld", "slurmd", "srun", "munged")
            lacking = [name for name in programs if shutil.which(name) is None]
            return f"needs {', '.join(lacking)} (Debian: slurm-wlm)" if lacking else ""
        case _:
            return ""


def needs_module(name: str, hint: str) -> str:
    return "" if importlib.util.find_spec(name) else f"needs {name} ({hint})"


def needs_horovod() -> str:
    """Look for Horovod's extension for torch, without importing torch."""
    spec = importlib.util.find_spec("horovod")
    folders = spec.submodule_search_locations if spec else None
    built = any(next(Path(folder).glob("torch/mpi_lib*.so"), None) for folder in folders or ())
    return "" if built else "needs Horovod built for torch (make test builds it)"


def needs_own_name() -> str:
    """Look for an address of this machine's own name: Horovod's Gloo crashes without one."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return "needs this machine's own name in /etc/hosts (make test writes it there)"
    return ""


def needs_gpu() -> str:
    if shutil.which("nvidia-smi") is None:
        return "needs an NVIDIA GPU"
    listing = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60
    )
    return "" if "GPU 0" in listing.stdout else "needs an NVIDIA GPU"


@cache
def mpirun_is(words: str) -> bool:
    """Return whether the mpirun that is first on the PATH calls itself so, as ``Open MPI`` or ``4.1``."""
    program = shutil.which("mpirun") or "false"
    told = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    return words in told.stdout


def by_reason(skipped: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group skipped tests, given as (test, reason), by reason; the largest group first."""
    groups = defaultdict(list)
    for test, reason in skipped:
        groups[reason].append(test)
    return dict(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])))
