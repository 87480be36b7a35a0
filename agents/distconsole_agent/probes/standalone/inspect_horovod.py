"""Script: says which Horovod the Python that runs it has, without importing Horovod or torch.

It prints one line: a mark and a JSON object. Which controllers were built in is told from the
library's own names: loading it would bring in all of torch.
"""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import json
import mmap
import os
import signal
import sys
from typing import Any

MARK = "distconsole-horovod "
SECONDS = 30
NAMED_BY = {"gloo": b"HOROVOD_GLOO_IFACE", "mpi": b"libmpi"}
"""A variable that only Gloo's part reads, and the library that MPI's part is linked with."""


def folder_of(name: str) -> str | None:
    """Where a package lies, or None; it is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    return next(iter(folders)) if folders else None


def version_of(name: str) -> str:
    """The installed version, or nothing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def look() -> dict[str, Any]:
    """Version, the torch that it was built for, and its controllers; null where unknown."""
    folder = folder_of("horovod")
    if folder is None:
        return {"present": False}
    facts: dict[str, Any] = {
        "present": True,
        "version": version_of("horovod"),
        "torch": version_of("torch"),
        "against": None,
        "controllers": None,
    }
    try:
        with open(os.path.join(folder, "metadata.json"), encoding="utf-8") as file:
            facts["against"] = json.load(file).get("pytorch")
    except (OSError, ValueError, AttributeError):
        pass
    libraries = sorted(glob.glob(os.path.join(glob.escape(folder), "torch", "mpi_lib*.so")))
    facts["library"] = bool(libraries)
    if libraries:
        facts["controllers"] = controllers(libraries[-1])
    return facts


def controllers(path: str) -> list[str]:
    """Which of ``NAMED_BY`` the library at ``path`` has."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as library:
        return [name for name, mark in NAMED_BY.items() if library.find(mark) >= 0]


if __name__ == "__main__":
    # Whatever becomes of the agent, this process ends.
    signal.alarm(SECONDS)
    # A rank's first entry is its script's folder; ours must not shadow anything.
    sys.path[:] = [entry for entry in sys.path if entry and not entry.startswith("/dev/fd")]
    sys.stdout.write("\n" + MARK + json.dumps(look()) + "\n")
