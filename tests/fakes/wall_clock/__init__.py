"""A node's wall clock that a test sets, for the programs that are started with its variables; a C compiler builds it."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import tempfile
from pathlib import Path

from fakes.nvml import compiler

SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """The clock of what runs with ``variables``.

    Args:
        path: Its file, as this test sees it.
        inside: The same file as those programs see it, where that is another path.
    """

    def __init__(self, path: Path, inside: str | None = None) -> None:
        self._path = path
        self.variables = {"LD_PRELOAD": str(build()), "WALL_CLOCK": inside or str(path)}
        path.write_bytes(struct.pack("=q", 0))

    def set(self, seconds: int) -> None:
        """Set the clock so far from the true one."""
        with self._path.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


def build() -> Path:
    """Return the built library.

    Raises:
        RuntimeError: without a C compiler.
        subprocess.CalledProcessError: if the source does not compile.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"distconsole-wall-clock-{os.getuid()}"
    library = folder / f"{digest}.so"
    if not library.exists():
        if (cc := compiler()) is None:
            raise RuntimeError("no C compiler: install gcc or clang to build the wall clock")
        folder.mkdir(mode=0o700, exist_ok=True)
        part = folder / f"{digest}.{os.getpid()}"
        words = [cc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", part, SOURCE, "-ldl"]
        subprocess.run(words, check=True, capture_output=True, text=True)
        part.rename(library)
    return library
