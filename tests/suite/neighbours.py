"""Heavy packages of others that the console can work with, each in a folder of the cache, never in its own environment."""

from __future__ import annotations

import fcntl
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 150


def neighbour(name: str, *packages: str) -> Path:
    """Return a folder for PYTHONPATH with ``packages``, installed once; skips the test where they cannot be had."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    cache = Path(os.environ.get("DISTCONSOLE_DEV_CACHE", home / ".cache" / "distconsole-dev"))
    folder = cache / "neighbours" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder, packages)
    return folder


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    part = folder.with_suffix(".part")
    argv = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [*argv, "--target", str(part), *packages],
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
    except (subprocess.SubprocessError, OSError):
        pytest.skip(f"{' '.join(packages)} cannot be installed in {folder}")
    part.rename(folder)
