"""The folder of runs, one SQLite file each (``run_file``): makes them, finds them, removes them."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path

import msgspec

from distconsole.config.spelling import nearest
from distconsole.errors import ConsoleError, RunNotFoundError
from distconsole.model.names import RUN_ID_PATTERN, RunId, count_text, join_some
from distconsole.runs.store.catalogue import Catalogue, stamps_in
from distconsole.runs.store.run_file import NewerFileError, RunFile, RunRecord, lay_out

DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""SQLite's errors for a file that is no run's: cut, overwritten, or never begun (there are no tables)."""


class RunStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalogue = Catalogue(folder)

    def create(self, record: RunRecord) -> RunFile:
        """Begin a run's file (0600, in a folder of 0700), or go on with it; raises ConsoleError if the disk refuses."""
        path = self._path(record.run)
        known = True
        try:
            known = path.exists()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            lay_out(path)
            run_file = RunFile(path)
            try:
                run_file.write_record(record)
            except BaseException:
                run_file.close()
                raise
        except (OSError, sqlite3.Error) as error:
            if not known:
                with contextlib.suppress(OSError):
                    self.remove(record.run)
            raise _disk_error(self.folder, error) from None
        return run_file

    def open(self, run: RunId) -> RunFile:
        """Return the file of a run; raises RunNotFoundError if there is none, ConsoleError if it cannot be read."""
        path = self._path(run)
        try:
            if not path.exists():
                raise _not_found(run)
            return RunFile(path)
        except (sqlite3.Error, OSError) as error:
            raise _disk_error(path, error) from None

    def record(self, run: RunId) -> RunRecord:
        with self.open(run) as run_file:
            return run_file.record()

    def remove(self, run: RunId) -> None:
        """Remove a run's file; one that is not there is no error."""
        path = self._path(run)
        for beside in ("", "-wal", "-shm", "-journal", "-keeper"):
            path.with_name(f"{path.name}{beside}").unlink(missing_ok=True)

    def runs(self) -> list[RunRecord]:
        """Return every run, newest first; files that cannot be read are left out."""
        found: list[RunRecord] = []
        for path in self._files():
            with (
                contextlib.suppress(sqlite3.Error, msgspec.MsgspecError),
                RunFile(path) as run_file,
            ):
                found.append(run_file.record())
        return sorted(found, key=lambda record: record.started, reverse=True)

    def names(self) -> list[tuple[float, str, RunId]]:
        """Return start, name and id of every run that can be read; only such are opened as no list has seen."""
        known = self.catalogue.read()
        found: list[tuple[float, str, RunId]] = []
        for run, stamp in stamps_in(self.folder).items():
            kept = known.get(run)
            if kept is not None and kept.stamp == stamp:
                found.append((kept.started, kept.name, RunId(run)))
            elif RUN_ID_PATTERN.match(run):
                with (
                    contextlib.suppress(sqlite3.Error, msgspec.MsgspecError),
                    RunFile(self._path(run)) as run_file,
                ):
                    record = run_file.record()
                    found.append((record.started, record.name, record.run))
        return found

    def resolve(self, wanted: str, *, unended: bool = False) -> RunId:
        """Return the run that ``wanted`` means: an id, a unique prefix, a name (the newest of that name), or ``last``.

        With ``unended``, a name means its newest run without an end, if there is one. Raises RunNotFoundError if there is none, or a prefix fits several.
        """
        ids = [path.stem for path in self._files()]
        if wanted in ids:
            return RunId(wanted)
        known = sorted(self.names(), reverse=True)
        if wanted == "last":
            if ids and not known:
                raise RunNotFoundError(
                    f"of {count_text(len(ids), 'run')} in {self.folder} none can be read",
                    "distconsole show RUN says why",
                )
            if not known:
                raise RunNotFoundError("there are no runs yet", "distconsole run SCRIPT makes one")
            return known[0][2]
        named = [(name, run) for _, name, run in known]
        of_name = (run for name, run in named if unended and name == wanted)
        going_on = ((wanted, run) for run in of_name if not self.record(run).end)
        found = choose_run(wanted, ids, chain(going_on, named))
        if found is None:
            raise _not_found(wanted, (*ids, *(name for _, name, _ in known if name)))
        return RunId(found)

    def words(self) -> list[str]:
        return [word for _, name, run in self.names() for word in (run, name) if word]

    def _files(self) -> list[Path]:
        return [self._path(run) for run in stamps_in(self.folder) if RUN_ID_PATTERN.match(run)]

    def _path(self, run: str) -> Path:
        if not RUN_ID_PATTERN.match(run):
            raise _not_found(run)
        return self.folder / f"{run}.db"


def choose_run(wanted: str, ids: Iterable[str], named: Iterable[tuple[str, str]]) -> str | None:
    """Return the id of the first of ``named`` (name, id) called ``wanted``, else that of ``ids`` which begins with it.

    None without one; raises RunNotFoundError if it begins several.
    """
    found = list(islice((run for name, run in named if wanted and name == wanted), 1))
    found = found or sorted(run for run in ids if run.startswith(wanted))
    if len(found) > 1:
        said = f"{wanted} begins the ids of {len(found)} runs"
        raise RunNotFoundError(said, f"one of: {join_some(found, 5)}")
    return found[0] if found else None


def _not_found(wanted: str, known: Iterable[str] = ()) -> RunNotFoundError:
    shown = re.sub(r"[^ -~]", "?", wanted)[:80]
    hint = f"{meant(wanted, known)}distconsole runs lists them"
    return RunNotFoundError(f"there is no run {shown}", hint)


def meant(wanted: str, known: Iterable[str]) -> str:
    """Return which of the ``known`` runs may have been meant, as the beginning of a hint; or nothing."""
    near = nearest(wanted[:80], (word for word in (*known, "last") if word != wanted))
    return f"did you mean {near}? " if near else ""


def _disk_error(path: Path, error: Exception) -> ConsoleError:
    if isinstance(error, NewerFileError):
        return ConsoleError(
            f"{path} cannot be read: {error}",
            "use that version: pip install --upgrade distconsole",
        )
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED and path.suffix == ".db":
        return ConsoleError(
            f"{path} is damaged: {error}",
            f"move it away; while its hosts know the run, distconsole attach {path.stem} "
            "--hosts HOST1,HOST2 fetches it again",
        )
    return ConsoleError(
        f"{path} cannot be used: {error}",
        "make room there; on Linux XDG_DATA_HOME names another place",
    )
