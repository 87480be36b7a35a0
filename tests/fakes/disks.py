"""Small disks of a test's own, and full ones that are played."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs with these options on a folder; skip the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "small", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all that is left of a disk."""
    with path.open("wb", 0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def refuse_rows(path: Path, table: str, when: str) -> None:
    """Have SQLite itself refuse such rows of a run's file, as it does on a full disk."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN NEW.{when} "
            "BEGIN SELECT RAISE(FAIL, 'disk is full'); END"
        )
