"""The code of past runs on this machine, so that ``rerun`` runs exactly what ran."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from distconsole.config.paths import replace_file
from distconsole.errors import ConsoleError, RunNotFoundError
from distconsole.launch.sync.code import Code, CodeFile
from distconsole.model.names import RunId

KEEP_SECONDS = 90 * 86400.0
"""Contents and manifests unused for this long are removed."""

TOUCH_SECONDS = 86400.0


class KeptCode:
    """Contents by SHA-256 in ``folder`` (made 0700 when first needed), and which of them each run had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, data: bytes) -> str:
        """Keep a content, and return its SHA-256; raises ConsoleError if the disk refuses."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path(sha256)
        try:
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if found.st_size == len(data):
                    if time.time() - found.st_mtime > TOUCH_SECONDS:
                        os.utime(path)
                    return sha256
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.mkdir(exist_ok=True, mode=0o700)
            replace_file(path, data, sync=False)
        except OSError as error:
            raise ConsoleError(
                f"the code cannot be kept in {self.folder}: {error.strerror}",
                "make room there, or set XDG_DATA_HOME to another folder",
            ) from None
        return sha256

    def note(self, run: RunId, code: Code) -> None:
        """Record the code of ``run``; raises ConsoleError if the disk refuses."""
        path = self._manifest(run)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            said = {"root": code.root, "commit": code.commit, "code": json.loads(code.manifest())}
            path.write_text(json.dumps(said))
        except OSError as error:
            raise ConsoleError(f"{path}: {error.strerror}", "make room there") from None
        self._prune()

    def of_run(self, run: RunId) -> Code:
        """Return the code of ``run``; raises RunNotFoundError if it is gone."""
        path = self._manifest(run)
        gone = RunNotFoundError(
            f"the code that {run} ran is gone from this machine ({self.folder})",
            "distconsole run --sync SCRIPT runs the code as it is now",
        )
        try:
            said = json.loads(path.read_text())
            kept = said["code"]
            code = Code(
                str(said["root"]),
                tuple(CodeFile(*entry) for entry in kept["files"]),
                tuple((str(link), str(target)) for link, target in kept["links"]),
                tuple(kept["folders"]),
                str(said.get("commit", "")),
            )
        except (OSError, ValueError, KeyError, TypeError):
            raise gone from None
        if not all(self._path(file.sha256).is_file() for file in code.files if file.size):
            raise gone
        with contextlib.suppress(OSError):
            os.utime(path)
        return code

    def read(self, sha256: str) -> bytes:
        """Return a content; raises ConsoleError if it is gone or damaged."""
        try:
            data = self._path(sha256).read_bytes()
        except OSError as error:
            raise ConsoleError(f"{self._path(sha256)}: {error.strerror}", "try again") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            self._path(sha256).unlink(missing_ok=True)
            raise ConsoleError(f"{self._path(sha256)} was damaged", "it was removed; try again")
        return data

    def _prune(self) -> None:
        oldest, mark = time.time() - KEEP_SECONDS, self.folder / "pruned"
        with contextlib.suppress(OSError):
            if mark.exists() and time.time() - mark.stat().st_mtime < TOUCH_SECONDS:
                return
            mark.touch()
            for path in self.folder.glob("*/*"):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256[2:]

    def _manifest(self, run: RunId) -> Path:
        return self.folder / "runs" / f"{run}.json"
