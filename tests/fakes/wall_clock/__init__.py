"""A node's wall clock that a test sets, for the programs that are started with its variables; a C compiler builds it."""

import hashlib
import os
import struct
import tempfile
from pathlib import Path

from fakes.nvml import build_library

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
    """Return the built library; raises what ``build_library`` does."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"distconsole-wall-clock-{os.getuid()}"
    library = folder / f"{digest}.so"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        build_library(SOURCE, library)
    return library
