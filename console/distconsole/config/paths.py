"""Where our files lie on the operator's machine, as platformdirs says (XDG on Linux), and how one is replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_native_id

import platformdirs

APP = "distconsole"
PROJECT_FILE = "distconsole.toml"


def config_dir() -> Path:
    return Path(platformdirs.user_config_dir(APP))


def data_dir() -> Path:
    """Return the folder of data worth keeping: the stores of runs."""
    return Path(platformdirs.user_data_dir(APP))


def runs_dir() -> Path:
    return data_dir() / "runs"


def state_dir() -> Path:
    """Return the folder of what may be lost: the prompt's history, logs."""
    return Path(platformdirs.user_state_dir(APP))


def baselines_dir() -> Path:
    """Return the folder of what hosts looked like when they last passed a check."""
    return state_dir() / "passports"


def user_config_file() -> Path:
    return config_dir() / PROJECT_FILE


def project_config_files(start: Path) -> Iterator[Path]:
    """Yield each ``distconsole.toml`` from ``start`` upwards, the nearest first.

    The last folder is the root of a Git repository or the home folder; what lies above the home is not read.
    """
    home = Path.home().resolve()
    for folder in (start, *start.parents):
        if folder != home and home.is_relative_to(folder):
            return
        candidate = folder / PROJECT_FILE
        if os.path.isfile(candidate):  # noqa: PTH113 - does not raise where a folder is closed
            yield candidate
        if folder == home or os.path.lexists(folder / ".git"):
            return


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home of ``~`` or ``~user``; an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - it raises nothing


def replace_file(
    path: Path,
    content: bytes,
    mode: int = 0o600,
    check: Callable[[Path], object] | None = None,
    *,
    sync: bool = True,
) -> None:
    """Replace a file at once: no reader sees half of it.

    Args:
        mode: Of a new file, less the umask; a present one keeps its mode.
        check: Is called with the new file beside the old one; its exception leaves the old one.
        sync: After a power cut, too, it is the old or the new one; one of many files need not be.

    Raises OSError if it cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.{get_native_id()}")
    aside.unlink(missing_ok=True)  # what waits there may be a link of somebody else's
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: PTH123
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & mode)
            file.write(content)
            if sync:
                os.fsync(file.fileno())
        if check is not None:
            check(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
