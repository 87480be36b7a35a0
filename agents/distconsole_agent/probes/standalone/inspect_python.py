"""Program: the installed packages of the Python that runs it, without importing any of them.

Every check starts it on every host, so rarely needed modules are imported late.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys

from distconsole_agent.contract.masking import mask_text, may_be_secret
from distconsole_agent.probes.standalone.reporting import (
    FACTS,
    begin,
    find_mapped,
    import_metadata,
    import_own,
    leave,
    say,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

PREFIXES = (
    *("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "CUDA_", "HIP_", "ROCR_", "HSA_", "RCCL_"),
    *("NVIDIA_", "OMP_", "MKL_", "HOROVOD_"),
    *("OMPI_", "PMIX_", "PRTE_", "FI_", "UCX_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON", "SLURM_", "PMI_", "TP_"),
)
VERSION_NAMES = ("__version__", "cuda", "hip", "git_version", "debug")
MPI_FILES = ("/etc/openmpi/openmpi-mca-params.conf", "/etc/openmpi-mca-params.conf")
USERS_MPI_FILE = "~/.openmpi/mca-params.conf"
NAMED_BY = {"gloo": b"HOROVOD_GLOO_IFACE", "mpi": b"libmpi"}
"""A variable that only Gloo's part reads, and the library that MPI's part is linked with."""

BUILT = ("mpi", "gloo", "nccl", "cuda", "rocm", "ccl", "ddl")


def python_facts() -> dict[str, object]:
    packages: dict[str, str] = {}
    shadowed: dict[str, str] = {}
    user_site = find_user_site()
    own: set[str] = set()
    alone: set[str] = set()
    for entry in sys.path:
        for name, version in distributions(entry or "."):
            # The first one on the path is the one that an import takes; all spellings are one (PEP 503).
            name = re.sub(r"[-_.]+", "-", name).lower()
            first, taken = name not in packages, packages.setdefault(name, version)
            if entry == user_site and first:
                own.add(name)
                alone.add(name)
            elif entry != user_site and name in own:
                alone.discard(name)
                if version != taken:
                    shadowed.setdefault(name, version)
    return {
        "version": sys.version.split()[0],
        "implementation": sys.implementation.name,
        "executable": sys.executable,
        "prefix": sys.prefix,
        "packages": dict(sorted(packages.items())),
        "user_site": user_site,
        "shadowed": dict(sorted(shadowed.items())),
        "user_only": sorted(alone),
    }


def find_user_site() -> str:
    """The folder of `pip install --user`; empty if this Python leaves it out."""
    site = sys.modules.get("site")
    if not getattr(site, "ENABLE_USER_SITE", False):
        return ""
    return os.path.abspath(getattr(site, "USER_SITE", None) or "")


def distributions(folder: str) -> Iterator[tuple[str, str]]:
    """Name and version of the packages in a folder, from the names of its metadata's folders.

    Reading each one's metadata, as importlib.metadata does, takes three times the processor's time.
    """
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        entries = []
        if os.path.isfile(folder):
            yield from read_distributions(folder)
    unnamed = False
    for entry in entries:
        if entry.endswith((".dist-info", ".egg-info")):
            name, _, version = entry.rpartition(".")[0].partition("-")
            version = version.partition("-")[0]
            unnamed = unnamed or not version
            if version:
                yield name, version
    if unnamed:
        yield from read_distributions(folder)


def read_distributions(folder: str) -> Iterator[tuple[str, str]]:
    metadata = import_metadata()
    for found in metadata.distributions(path=[folder]):
        # [] warns of a name that is missing, and will raise KeyError (importlib.metadata of Python 3.12).
        name = next(iter(found.metadata.get_all("Name", [])), "")
        if name:
            yield str(name), str(found.version)


def package_folder(name: str) -> str | None:
    """Where a package lies, or None; it is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None


def torch_facts(packages: dict[str, str]) -> dict[str, object]:
    folder = package_folder("torch")
    if folder is None:
        return {"present": False}
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        found = assignments(file.read(65536))
    nccl = [name for name in packages if name.startswith("nvidia-nccl")]
    return {
        "present": True,
        "version": found.get("__version__", ""),
        "cuda": none_or(found.get("cuda")),
        "hip": none_or(found.get("hip")),
        "git": found.get("git_version", ""),
        "debug": found.get("debug") == "True",
        "folder": folder,
        "nccl": packages[nccl[0]] if nccl else None,
        "plugins": nccl_plugins(),
        "nccl_library": nccl_library(folder),
        "nccl_on_path": nccl_on_path(),
    }


def assignments(text: str) -> dict[str, str]:
    """Values that a version file assigns to the names of interest, with an annotation or without."""
    found = {}
    for line in text.splitlines():
        target, equals, value = line.partition("=")
        name = target.partition(":")[0].rstrip()
        if equals and name in VERSION_NAMES:
            found[name] = value.strip().strip("'\"")
    return found


def none_or(value: str | None) -> str | None:
    return None if value in (None, "None", "") else value


def nccl_library(torch_folder: str) -> str | None:
    """The NCCL that torch's wheels bring as a package beside it."""
    path = os.path.join(os.path.dirname(torch_folder), "nvidia", "nccl", "lib", "libnccl.so.2")
    return os.path.realpath(path) if os.path.exists(path) else None


def nccl_on_path() -> list[str]:
    """The copies that the loader finds before that one."""
    preloaded = os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    found = [path for path in preloaded if os.path.basename(path).startswith("libnccl.so")]
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    found += [os.path.join(folder, "libnccl.so.2") for folder in folders]
    there = [os.path.realpath(path) for path in found if os.path.exists(path)]
    return list(dict.fromkeys(there))[:8]


def nccl_plugins() -> list[str]:
    """Network plugins that NCCL would load: some nodes with and some without make it hang."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/usr/lib", "/usr/local/lib"]
    found: list[str] = []
    for folder in filter(None, folders):
        found += libraries(folder, "libnccl-net")
    return sorted(set(found))[:16]


def libraries(folder: str, start: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = sorted(
        name for name in names if name.startswith(start) and ".so" in name[len(start) :]
    )
    return [os.path.join(folder, name) for name in found]


def horovod_facts(packages: dict[str, str], load: bool, controllers: bool) -> dict[str, object]:
    """The torch that Horovod was built against; with ``load``, or by its names, its features."""
    folder = package_folder("horovod")
    if folder is None:
        return {"present": False}
    facts: dict[str, object] = {
        "present": True,
        "version": packages.get("horovod", ""),
        "folder": folder,
    }
    facts["against"] = {}
    try:
        with open(os.path.join(folder, "metadata.json"), encoding="utf-8") as file:
            against = json.loads(file.read(65536))
        facts["against"] = {str(k): str(v) for k, v in against.items() if k != "dummy"}
    except (OSError, ValueError, AttributeError) as error:
        facts["against_error"] = str(error)
    built = [
        path
        for path in libraries(os.path.join(folder, "torch"), "mpi_lib_v2")
        if path.endswith(".so")
    ]
    facts["torch_library"] = built[0] if built else None
    if load and built:
        facts.update(load_facts(built[0]))
    if controllers and built:
        facts["controllers"] = list_controllers(built[0])
    return facts


def list_controllers(path: str) -> list[str]:
    """Which of ``NAMED_BY`` the library at ``path`` has: loading it would bring in all of torch."""
    mmap = import_own("mmap")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as library:
        return [name for name, mark in NAMED_BY.items() if library.find(mark) >= 0]


def load_torch_libraries() -> None:
    """Load the libraries that an import of torch would have loaded before Horovod's.

    A wheel that was built in another environment carries no path to this one's torch. If torch
    itself cannot be loaded, Horovod's own loading raises the reason.
    """
    ctypes = import_own("ctypes")
    folder = package_folder("torch")
    if folder is None:
        return
    with import_own("contextlib").suppress(OSError):
        ctypes.CDLL(os.path.join(folder, "lib", "libtorch_python.so"), mode=os.RTLD_GLOBAL)


def load_facts(path: str) -> dict[str, object]:
    """Ask the library itself, all symbols resolved: a build for another torch fails right here."""
    ctypes = import_own("ctypes")
    load_torch_libraries()
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return {"built": None, "load_error": str(error)[:1000]}
    built = {}
    for name in BUILT:
        function = getattr(library, "horovod_" + name + "_built", None)
        if function is not None:
            built[name] = bool(function())
    return {"built": built, "load_error": "", "mapped": find_mapped(r"/lib(mpi|nccl|cudart)[-.]")}


def env_facts() -> dict[str, object]:
    """Variables that steer the engines, without anything that looks like a secret."""
    variables = {}
    for name, value in os.environ.items():
        if name.startswith(PREFIXES) and not may_be_secret(name):
            variables[name] = mask_text(value[:2048])
    # Which of them NCCL reads: initEnv in its param.cc.
    nccl = ("/etc/nccl.conf", os.environ.get("NCCL_CONF_FILE") or "~/.nccl.conf")
    return {
        "variables": dict(sorted(variables.items())),
        "files": configuration(nccl),
        "parameters": configuration(mpi_files()),
    }


def configuration(paths: tuple[str, ...]) -> dict[str, list[str]]:
    """By file its lines that are no comments; files that are not there are left out."""
    found = {}
    for path in paths:
        try:
            with open(os.path.expanduser(path), "rb") as file:
                lines = file.read(65536).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        told = [mask_text(line.strip()) for line in lines]
        found[path] = [line[:1024] for line in told if line and line[0] != "#"][:200]
    return found


def mpi_files() -> tuple[str, ...]:
    """Open MPI's parameter files, the last one winning; its own lies in PREFIX/etc or the system's."""
    folders = os.environ.get("PATH", os.defpath).split(":")
    paths = (os.path.join(folder, "mpirun") for folder in folders)
    mpirun = next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)
    own: tuple[str, ...] = ()
    if mpirun is not None:
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(mpirun)))
        own = (os.path.join(prefix, "etc", "openmpi-mca-params.conf"),)
    return (*MPI_FILES, *own, USERS_MPI_FILE)


def main(seconds: float, load: bool, controllers: bool) -> None:
    """Inspect; ``load`` Horovod's library, or find its ``controllers`` by names in it."""
    begin(seconds)
    python = python_facts()
    packages = python["packages"]
    facts = {
        "python": python,
        "torch": guard(torch_facts, packages),
        "horovod": guard(horovod_facts, packages, load, controllers),
        "env": env_facts(),
    }
    say(FACTS, facts)
    leave()


def guard(look: Callable[..., dict[str, object]], *args: Any) -> dict[str, object]:
    """A package that lies broken on the disk is a fact too."""
    try:
        return look(*args)
    except (OSError, ValueError, UnicodeError) as error:
        return {"present": True, "error": type(error).__name__ + ": " + str(error)[:500]}
