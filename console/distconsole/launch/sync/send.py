"""``--sync``: brings a project's code to every node before a run is prepared there.

Contents travel by their SHA-256 over the existing connection; those that a node has from any run are
not sent again. Each run gets a copy of its own, ``runs/<run>/code`` on the node. They are kept here, so that
``rerun`` runs exactly what ran.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import posixpath
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distconsole.config.paths import data_dir, expand_home, replace_file
from distconsole.errors import AgentError, ConsoleError, PlanError, RunNotFoundError
from distconsole.launch.plan import RUN_DIR, Plan
from distconsole.launch.script import module_files, traits_of
from distconsole.launch.sync.code import COMMIT_VARIABLE, Code, CodeFile, collect, project_root
from distconsole.model.events import Narration
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName, RunId, count_text, size_text
from distconsole.model.requests import Run
from distconsole.rpc.frames import Synced
from distconsole.rpc.link import NodeLink
from distconsole.rpc.wire import MAX_PIECES_BYTES, decode_as
from distconsole.session import Session, on_every, require_all

SYNC_SECONDS = 120.0
"""A node's time limit for one request."""

PIECE_BYTES = MAX_PIECES_BYTES // 2
"""Bytes of content in one request: compressed and in base64 they fit into a line even if incompressible."""

TRIES = 3
"""How often a node may report missing contents before it is given up."""

KEEP_SECONDS = 90 * 86400.0
"""Contents and manifests unused for this long are removed from this machine."""

TOUCH_SECONDS = 86400.0

NODE_CODE = f"{RUN_DIR}/code"


class KeptCode:
    """Contents by SHA-256 in ``folder`` (made 0700 when first needed), and which each run had: for ``rerun``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, data: bytes) -> str:
        """Keep a content, and return its SHA-256; raises ConsoleError if the disk refuses."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path(sha256)
        try:
            with suppress(FileNotFoundError):
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
        with suppress(OSError):
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
        with suppress(OSError):
            if mark.exists() and time.time() - mark.stat().st_mtime < TOUCH_SECONDS:
                return
            mark.touch()
            for path in self.folder.glob("*/*"):
                with suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256[2:]

    def _manifest(self, run: RunId) -> Path:
        return self.folder / "runs" / f"{run}.json"


@dataclass(frozen=True, slots=True)
class Project:
    """The code to bring, script and ``folder`` of the ranks as on the nodes, and a ``note`` for the user."""

    code: Code
    kept: KeptCode
    script: str
    folder: str
    note: str

    @property
    def description(self) -> str:
        files = count_text(len(self.code.files), "file")
        return f"{files} ({size_text(self.code.size)}) of {self.code.root}"

    def find_traits(self, request: Run) -> ScriptTraits:
        """Return the traits of the script as it is in this code; none if it is not there."""
        path = script_path(request, Path.cwd())
        paths = module_files(request) if path is None else [path]
        for file in self.code.files:
            if Path(self.code.root, file.path) in [each.absolute() for each in paths]:
                source = self.kept.read(file.sha256).decode("utf-8", "replace")
                return traits_of(source, Path(self.code.root, file.path), request)
        return ScriptTraits()


def collect_project(request: Run, again: RunId | None = None) -> Project:
    """Return the code that ``--sync`` brings, as it is now or as the run ``again`` had it.

    Raises PlanError if it cannot be read, or is too large; RunNotFoundError if that run's code is gone.
    """
    kept, here = KeptCode(data_dir() / "code"), Path.cwd()
    code = gather(request, here, kept) if again is None else kept.of_run(again)
    return Project(code, kept, *locate(request, here, Path(code.root)))


def gather(request: Run, folder: Path, kept: KeptCode) -> Code:
    """Return the present code of the script's project, kept here for a later ``rerun``.

    Raises PlanError if there is no such script, or the project is too large or cannot be read.
    """
    script = script_path(request, folder)
    if script is not None and not (script.is_file() or (script / "__main__.py").is_file()):
        what = "is a folder without __main__.py" if script.is_dir() else "does not exist"
        raise PlanError(
            f"the script {script} {what} on this machine, from where --sync brings it",
            "give its path, or --no-sync if it is on the hosts already",
        )
    root = project_root(script.parent if script is not None else _workdir(request, folder))
    if root in (Path.home(), Path("/")):
        raise PlanError(
            f"--sync would bring all of {root}",
            "put the script into a folder of its own, or run 'git init' in the project's folder",
        )
    return collect(root, kept.keep, script)


def locate(request: Run, folder: Path, root: Path) -> tuple[str, str, str]:
    """Return script (or module) and folder of the ranks as on the nodes, and a note for the user.

    The ranks start in the same folder of the project as here. From outside the project they start
    in its top folder, unless ``--workdir`` names a folder that the nodes have.
    """
    script = script_path(request, folder)
    where = _workdir(request, folder)
    note = ""
    if where.is_relative_to(root):
        inside = where.relative_to(root).as_posix()
        workdir = posixpath.normpath(posixpath.join(NODE_CODE, inside))
    elif request.workdir:
        workdir = str(where)
    else:
        workdir = NODE_CODE
        note = (
            f"{where} is outside the project {root}: the ranks start in the project's top folder"
        )
    if script is None:
        return request.script, workdir, note
    return posixpath.join(NODE_CODE, script.relative_to(root).as_posix()), workdir, note


def bring(
    code: Code,
    kept: KeptCode,
    run: str,
    session: Session,
    hosts: Sequence[HostName],
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[int, int]:
    """Bring ``code`` to every host, each in parallel, so that ``run`` can be prepared with it.

    Returns how many contents were sent to all nodes, and their bytes; ends early once ``is_stopped``.

    Raises UnreachableError, naming the nodes that could not take it, and why; ConsoleError if a
    content cannot be read here.
    """
    manifest = _pack(code.manifest())
    parcels = _Parcels(code, kept)

    def bring_to(link: NodeLink) -> tuple[int, int]:
        contents, size = 0, 0
        for tried in range(TRIES + 1):
            arguments = {"run": run, "manifest": None if tried else manifest}
            missing = decode_as(link.request("sync", SYNC_SECONDS, **arguments), Synced).missing
            if not missing:
                return contents, size
            for pieces, data in parcels.of(missing) if tried < TRIES else ():
                if is_stopped():
                    return contents, size
                link.request("sync_take", SYNC_SECONDS, run=run, pieces=pieces, data=data)
                size += sum(int(piece[3]) for piece in pieces)
            contents += len(missing)
        raise AgentError(
            f"{link.name} says that files are missing which it was sent",
            f"look at the disk of {link.name}",
        )

    sent = require_all(on_every(session, hosts, bring_to), "the code cannot be brought")
    return sum(contents for contents, _ in sent), sum(size for _, size in sent)


def bring_code(
    plan: Plan, project: Project, session: Session, is_stopped: Callable[[], bool]
) -> Iterator[Narration]:
    """Bring the code to the plan's hosts and report it, unless stopped; raises UnreachableError."""
    began = time.monotonic()
    contents, size = bring(project.code, project.kept, plan.run, session, plan.hosts, is_stopped)
    if is_stopped():
        return
    project.kept.note(plan.run, project.code)
    new = f"{contents:,} new ({size_text(size)})"
    git = f"; it has no .git: the commit is in {COMMIT_VARIABLE}" if project.code.commit else ""
    yield Narration(
        text=f"code: {project.description} to {count_text(len(plan.nodes), 'host')} in "
        f"{time.monotonic() - began:.2f} s, {new if contents else 'none of them new'}; "
        f"each has its own copy in runs/{plan.run}/code of its node folder{git}"
    )


def script_path(request: Run, folder: Path) -> Path | None:
    """Return the script's path on this machine; None for a module."""
    if request.module:
        return None
    return Path(posixpath.normpath(_workdir(request, folder) / expand_home(request.script)))


Piece = list[str | int]


class _Parcels:
    """The messages that carry contents. Nodes mostly lack the same: the last messages are kept."""

    def __init__(self, code: Code, kept: KeptCode) -> None:
        self._sizes = {file.sha256: file.size for file in code.files}
        self._read: Callable[[str], bytes] = kept.read
        self._lock = threading.Lock()
        self._last: tuple[tuple[str, ...], list[tuple[list[Piece], str]]] = ((), [])

    def of(self, missing: tuple[str, ...]) -> Iterator[tuple[list[Piece], str]]:
        unknown = next((sha256 for sha256 in missing if sha256 not in self._sizes), None)
        if unknown is not None:
            raise AgentError(f"the node asks for {unknown[:16]}…, which is not part of the code")
        if sum(self._sizes[sha256] for sha256 in missing) > 4 * PIECE_BYTES:
            return self._pack_all(missing)
        with self._lock:
            if self._last[0] != missing:
                self._last = (missing, list(self._pack_all(missing)))
            return iter(self._last[1])

    def _pack_all(self, missing: tuple[str, ...]) -> Iterator[tuple[list[Piece], str]]:
        pieces: list[Piece] = []
        data = bytearray()
        for sha256 in missing:
            content = self._read(sha256)
            for offset in range(0, len(content), PIECE_BYTES):
                part = content[offset : offset + PIECE_BYTES]
                if len(data) + len(part) > PIECE_BYTES:
                    yield pieces, _pack(bytes(data))
                    pieces, data = [], bytearray()
                pieces.append([sha256, len(content), offset, len(part)])
                data += part
        yield pieces, _pack(bytes(data))


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 1)).decode("ascii")


def _workdir(request: Run, folder: Path) -> Path:
    return Path(posixpath.normpath((folder / expand_home(request.workdir or ".")).absolute()))
