"""The figures that lists need of every kept run, in one file, so that thousands of runs need not be opened.

A row counts while the run's own file is unchanged; the whole may be lost.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from distconsole.errors import ConsoleError

NAME = ".catalogue"
BUSY_SECONDS = 0.3
"""Another console writes it now: then this one does without."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS runs_1 (
    run TEXT PRIMARY KEY, stamp TEXT NOT NULL, name TEXT NOT NULL, started REAL NOT NULL,
    summary BLOB NOT NULL, whole INTEGER NOT NULL
) WITHOUT ROWID;
"""


class Listed(NamedTuple):
    """One run: the stamp of its file, and its summary as JSON; ``whole`` if its entries were read for it."""

    run: str
    stamp: str
    name: str
    started: float
    summary: bytes
    whole: bool


def stamps_in(folder: Path) -> dict[str, str]:
    """Return by run when its file was written last and its size, newest first; raises ConsoleError."""
    found: dict[str, tuple[int, str]] = {}
    logs: dict[str, str] = {}
    with _reading(folder), os.scandir(folder) as entries:
        for entry in entries:
            stem, dot, kind = entry.name.rpartition(".")
            if not dot or kind not in ("db", "db-wal"):
                continue
            with contextlib.suppress(OSError):  # it was removed just now
                stat = entry.stat()
                if kind == "db":
                    found[stem] = stat.st_mtime_ns, f"{stat.st_mtime_ns}:{stat.st_size}"
                elif stat.st_size:
                    logs[stem] = f"+{stat.st_mtime_ns}:{stat.st_size}"
    newest = sorted(found.items(), key=lambda each: -each[1][0])
    return {run: stamp + logs.get(run, "") for run, (_, stamp) in newest}


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConsoleError(
            f"the folder of runs, {folder}, cannot be read: {error.strerror}",
            "make it yours again (ls -ld says whose it is); on Linux XDG_DATA_HOME names another place",
        ) from None


class Catalogue:
    """The file in ``folder``, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> dict[str, Listed]:
        """Return the stored rows of runs, also of changed or removed ones."""
        try:
            if not self._path.exists():
                return {}
            with contextlib.closing(self._open()) as db:
                rows = db.execute("SELECT run, stamp, name, started, summary, whole FROM runs_1")
                return {
                    run: Listed(run, stamp, name, started, summary, bool(whole))
                    for run, stamp, name, started, summary, whole in rows
                }
        except (sqlite3.OperationalError, OSError):  # locked, closed, or of another version
            return {}
        except sqlite3.DatabaseError:
            with contextlib.suppress(OSError):
                self._path.unlink()  # damaged: the next ``keep`` makes another
            return {}

    def keep(self, rows: Iterable[Listed], gone: Iterable[str] = ()) -> None:
        """Keep ``rows``, and forget the runs that are ``gone``; a disk that refuses costs time alone."""
        with contextlib.suppress(sqlite3.Error, OSError):
            self._path.touch(mode=0o600)
            with contextlib.closing(self._open()) as db, db:
                db.execute(SCHEMA)
                db.executemany("INSERT OR REPLACE INTO runs_1 VALUES (?, ?, ?, ?, ?, ?)", rows)
                db.executemany("DELETE FROM runs_1 WHERE run = ?", ((run,) for run in gone))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_SECONDS)
