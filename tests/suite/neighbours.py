"""Heavy packages of others that the console can work with, each in a folder of the cache, never in its own environment."""

import fcntl
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 150
BESIDE_TORCH = ("--no-deps", "--no-build-isolation")
"""Of pip, for packages that stand on the torch that is here: what else they need is named with them."""


def neighbour(name: str, *packages: str, options: tuple[str, ...] = ()) -> Path:
    """Return a folder for PYTHONPATH with ``packages``, installed once; skips the test where they cannot be had.

    Args:
        options: Further ones of pip.
    """
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    cache = Path(os.environ.get("DISTCONSOLE_DEV_CACHE", home / ".cache" / "distconsole-dev"))
    folder = cache / "neighbours" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder, (*options, *packages))
    return folder


def accelerate() -> Path:
    """Return the folder of Hugging Face's accelerate."""
    needs = ("safetensors", "huggingface_hub", "hf-xet", "tqdm", "httpx", "httpcore", "h11")
    more = ("psutil", "anyio", "certifi", "idna")
    return neighbour("accelerate", "accelerate~=1.15.0", *needs, *more, options=BESIDE_TORCH)


def _install(folder: Path, words: tuple[str, ...]) -> None:
    part = folder.with_suffix(".part")
    argv = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [*argv, "--target", str(part), *words],
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
    except (subprocess.SubprocessError, OSError):
        named = " ".join(word for word in words if not word.startswith("-"))
        pytest.skip(f"{named} cannot be installed in {folder}")
    part.rename(folder)
