"""Chooses the files of a project's code: the manifest that ``--sync`` brings.

The project is the Git work tree that contains the script, else the script's folder. Left out are
files that ``.gitignore`` names, that are never code (``NEVER``, ``BUILT_IN``), or that
``.distconsoleignore`` names, in the same syntax; ``!name`` in it brings something back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath

from distconsole.errors import PlanError
from distconsole.launch.sync.ignore import IgnoreRules, read_rules
from distconsole.model.names import size_text
from distconsole_agent.contract.git import ask_git, is_changed

NEVER = frozenset({".git", ".hg", ".svn", ".jj"})
"""Names excluded even against ``!name``."""

BUILT_IN = read_rules(
    "__pycache__/\n*.py[cod]\n.venv/\nnode_modules/\n.mypy_cache/\n.pytest_cache/\n.ruff_cache/\n"
    ".tox/\n.nox/\n.eggs/\n.cache/\n.ipynb_checkpoints/\n.DS_Store\n*.swp\n"
    "*.pt\n*.pth\n*.ckpt\n*.safetensors\n*.distcp\nwandb/\nmlruns/\nlightning_logs/\n"
)
"""IgnoreRules before all others: byte code, tools' caches, checkpoints and trackers' output."""

CHECKPOINT_FOLDERS = frozenset({"checkpoint", "checkpoints", "ckpt", "ckpts"})
"""Left out unless they hold Python files: some projects have a package of that name."""

OWN_IGNORE = ".distconsoleignore"
MAX_FILES = 20_000
MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_BYTES = 128 * 1024 * 1024
COMMIT_VARIABLE = "DISTCONSOLE_GIT_COMMIT"
"""Gives the ranks their commit: their copy has no ``.git``."""

NAMED = 5
"""Files or folders that an error names."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file: its path in the project, permission bits, bytes, and the SHA-256 of its content."""

    path: str
    mode: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Code:
    """A project's code at one moment: its ``root`` here, files, ``links`` within it (path and target).

    ``commit`` is Git's, with ``-dirty`` if a tracked file is changed or a file of the code is not tracked, and
    ``-unknown`` where only a program of the repository could decide that, or Git is set not to compare a file; empty without Git.
    """

    root: str
    files: tuple[CodeFile, ...]
    links: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    commit: str = ""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def tree(self) -> str:
        """The digest that names this tree."""
        return hashlib.sha256(self.manifest()).hexdigest()

    def manifest(self) -> bytes:
        """Return the bytes that name this tree, as ``distconsole_agent.contract.protocol`` describes them."""
        said = {
            "files": [[file.path, file.mode, file.size, file.sha256] for file in self.files],
            "links": [list(link) for link in self.links],
            "folders": list(self.folders),
        }
        return json.dumps(said, separators=(",", ":")).encode("ascii")


def project_root(start: Path) -> Path:
    """Return the Git work tree around ``start``, else the package's folder; never a whole home or /tmp; else ``start``."""
    whole = (Path.home(), Path(tempfile.gettempdir()))
    folders = list(takewhile(lambda folder: folder not in whole, (start, *start.parents)))
    for marks in ((".git",), ("pyproject.toml", "setup.py")):
        for folder in folders:
            if any((folder / mark).exists() for mark in marks):
                return folder
    return start


def collect(root: Path, keep: Callable[[bytes], str], script: Path | None = None) -> Code:
    """Return the code below ``root``; ``keep`` takes each content, and returns its SHA-256.

    Raises PlanError if it is too large (the largest files are named), cannot be read, or leaves out ``script``.
    """
    walk = _Walk(root, script)
    walk.folder("", BUILT_IN, IgnoreRules())
    _refuse_large(walk)
    files = []
    for path, (place, mode, _size) in sorted(walk.files.items()):
        try:
            data = place.read_bytes()
        except FileNotFoundError:  # a temporary file, gone since
            continue
        except OSError as error:
            raise PlanError(
                f"--sync: {place} cannot be read: {error.strerror}",
                f"leave it out by a line in {OWN_IGNORE}",
            ) from None
        files.append(CodeFile(path, mode, len(data), keep(data)))
    links, folders = tuple(sorted(walk.links)), tuple(sorted(walk.empty))
    commit = _commit(root, [*walk.files, *(link for link, _target in links)])
    return Code(str(root), tuple(files), links, folders, commit)


class _Walk:
    """Files found so far: path to (source, mode, bytes)."""

    def __init__(self, root: Path, script: Path | None) -> None:
        self.root = root
        self.script = script
        self.tracked: set[str] = set()
        self.real_root = os.path.realpath(root)
        self.files: dict[str, tuple[Path, int, int]] = {}
        self.links: list[tuple[str, str]] = []
        self.empty: list[str] = []

    def folder(self, path: str, rules: IgnoreRules, own: IgnoreRules) -> None:
        """Take the files in a folder and below it; in an ignored one only those that Git tracks."""
        place = self.root / path
        ignored = (rules + own).leave_out(path, folder=True)
        if (place / ".git").exists():  # the rules around a submodule do not hold in it
            rules, ignored = self._work_tree(place, path), False
        rules += read_rules("*", path) if ignored else _ignore_file(place / ".gitignore", path)
        own += _ignore_file(place / OWN_IGNORE, path)
        both = rules + own
        try:
            with os.scandir(place) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            raise PlanError(
                f"--sync: {place} cannot be read: {error.strerror}",
                f"leave it out: echo '/{path}/' >>{self.root / OWN_IGNORE}",
            ) from None
        for entry in entries:
            below = f"{path}/{entry.name}" if path else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            tracked = below in self.tracked  # left out only by our own ignore file
            left_out = (own if tracked else both).leave_out(below, folder=is_folder)
            if entry.name in NEVER or left_out or (is_folder and _is_bulk(entry)):
                self._refuse(below, left_out)
            elif is_folder:
                self.folder(below, rules, own)
            elif entry.is_symlink():
                self._link(below, entry)
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    self._file(below, Path(entry.path), entry.stat(follow_symlinks=False))
        if path and not entries:
            self.empty.append(path)

    def _work_tree(self, place: Path, path: str) -> IgnoreRules:
        """Return a work tree's own rules, and note the files that Git tracks against its ignore files (``git add -f``)."""
        exclude = ".git/info/exclude"
        if (place / ".git").is_file():  # of a further work tree, or a submodule: elsewhere
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                exclude = ask_git(str(place), "rev-parse", "--git-path", "info/exclude").strip()
        for each in _git_files(place, "--ignored", "--exclude-standard") or ():  # Git may refuse
            kept = PurePosixPath(path, each)
            self.tracked.update(map(str, (kept, *kept.parents)))
        return BUILT_IN + _ignore_file(place / exclude, path)

    def _refuse(self, path: str, by_a_rule: bool) -> None:
        """Raise PlanError if what is left out contains the script."""
        if self.script is not None and self.script.is_relative_to(self.root / path):
            cure = f"bring it: echo '!/{path}' >>{self.root / OWN_IGNORE}"
            raise PlanError(
                f"--sync leaves out {path}, and so the script {self.script}",
                cure if by_a_rule else "--no-sync, if it is on the hosts already",
            )

    @cached_property
    def own_rules(self) -> IgnoreRules | None:
        """The rules that bring files from elsewhere; None if Git tracks their file: another person may have written it."""
        if _git_files(self.root, "--", OWN_IGNORE) != frozenset():
            return None
        return _ignore_file(self.root / OWN_IGNORE, "")

    def _link(self, path: str, entry: os.DirEntry[str]) -> None:
        """Take a link that stays in the project as a link, and a file elsewhere if an own rule names the link."""
        target = os.readlink(entry.path)  # noqa: PTH115 - text that may be no path of ours
        lands = os.path.normpath(os.path.join(self.real_root, os.path.dirname(path), target))  # noqa: PTH118, PTH120 - as above
        if lands == self.real_root or lands.startswith(self.real_root + os.sep):
            above = os.path.join(self.real_root, os.path.dirname(path))  # noqa: PTH118, PTH120
            self.links.append((path, os.path.relpath(lands, above)))
            return
        place = Path(entry.path)
        is_file = place.is_file()
        if is_file and self.own_rules is not None and self.own_rules.bring_back(path):
            self._file(path, place, place.stat())
            return
        file, other = self.root / OWN_IGNORE, "and name it by its full path"
        if is_file and self.own_rules is not None:
            other = f"or bring that file: echo '!/{path}' >>{file}"
        elif is_file:
            other += f"; no rule brings it while Git tracks {OWN_IGNORE}"
        raise PlanError(
            f"--sync: the link {path} leads out of the project, to {target}",
            f"leave it out: echo '/{path}' >>{file}, {other}",
        )

    def _file(self, path: str, place: Path, found: os.stat_result) -> None:
        self.files[path] = (place, stat.S_IMODE(found.st_mode) & 0o777, found.st_size)
        if len(self.files) > MAX_FILES:
            tops = (path.partition("/")[0] + "/" if "/" in path else "." for path in self.files)
            counts = Counter(tops).most_common(NAMED)
            fullest = ", ".join(f"{top} ({count:,})" for top, count in counts)
            raise PlanError(
                f"--sync: {self.root} has more than {MAX_FILES:,} files, most of them in {fullest}",
                f"leave out what is not code: echo '/FOLDER/' >>{self.root / OWN_IGNORE}",
            )


def _git_files(root: Path, *words: str) -> frozenset[str] | None:
    """Return those tracked files that match ``words``; None if Git cannot answer."""
    if not (root / ".git").exists():
        return frozenset()
    try:
        said = ask_git(str(root), "ls-files", "-z", "--cached", *words)
    except (OSError, subprocess.SubprocessError):
        return None
    return frozenset(said.split("\0")) - {""}


def _commit(root: Path, paths: Iterable[str]) -> str:
    head = change = ""
    if (root / ".git").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            head = ask_git(str(root), "rev-parse", "--verify", "HEAD").strip()
            change = "-unknown"
            changes = {{True: "-dirty", False: "", None: "-unknown"}[is_changed(str(root))]}
            changes |= _changes(root, map(PurePosixPath, paths))
            change = "-dirty" if "-dirty" in changes else max(changes)
    return head + change


def _changes(root: Path, paths: Iterable[PurePosixPath]) -> set[str]:
    """Return the changes in ``paths`` that Git does not report: files that it does not track, or not compare."""
    listed = ask_git(str(root), "ls-files", "-v", "-z", "--cached").split("\0")
    tags = {entry[2:]: entry[:1] for entry in listed}
    submodules = defaultdict[PurePosixPath, list[PurePosixPath]](list)
    changes = set[str]()
    for path in paths:
        known = next((each for each in (path, *path.parents) if str(each) in tags), None)
        if known is None:
            changes |= {"-dirty"} if path.name != OWN_IGNORE else set()
        elif known != path:
            submodules[known].append(path.relative_to(known))
        elif tags[str(path)] in "hsS":  # assume-unchanged, skip-worktree: Git does not compare it
            changes |= {"-unknown"}
    return changes.union(*(_changes(root / each, inside) for each, inside in submodules.items()))


def _is_bulk(folder: os.DirEntry[str]) -> bool:
    """True if a folder holds no code of the project: a Python environment, or checkpoints."""
    place = Path(folder.path)
    if (place / "pyvenv.cfg").exists() or (place / "conda-meta").is_dir():
        return True
    if folder.name not in CHECKPOINT_FOLDERS:
        return False
    return not any(name.endswith(".py") for name in os.listdir(place))  # noqa: PTH208 - names alone


def _ignore_file(file: Path, folder: str) -> IgnoreRules:
    try:
        return read_rules(file.read_text(encoding="utf-8", errors="surrogateescape"), folder)
    except OSError:
        return IgnoreRules()


def _refuse_large(walk: _Walk) -> None:
    sizes = {path: size for path, (_place, _mode, size) in walk.files.items()}
    total = sum(sizes.values())
    if total <= MAX_BYTES and max(sizes.values(), default=0) <= MAX_FILE_BYTES:
        return
    largest = sorted(sizes, key=lambda path: -sizes[path])[:NAMED]
    listed = ", ".join(f"{path} ({size_text(sizes[path])})" for path in largest)
    limit = f"files of more than {size_text(MAX_FILE_BYTES)}"
    if total > MAX_BYTES:
        limit = f"{size_text(total)} in all, more than {size_text(MAX_BYTES)}"
    raise PlanError(
        f"--sync brings code, not data, and {walk.root} has {limit}; the largest: {listed}",
        f"leave them out: echo '/{largest[0]}' >>{walk.root / OWN_IGNORE}",
    )
