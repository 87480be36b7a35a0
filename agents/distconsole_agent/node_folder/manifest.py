"""The files of a run's code, as a console lists them; every field is checked.

One JSON object, ``{"files": [[path, mode, bytes, sha256], ...], "links": [[path, target], ...],
"folders": [path, ...]}``; its SHA-256 names the whole tree.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterable
from typing import Any, NamedTuple

from distconsole_agent.contract.refusal import Refusal, bad_request
from distconsole_agent.system.sha256 import sha256

CODE, MANIFEST = "code", "code.json"
"""In a run's folder: its code, and which files that was."""

MAX_MANIFEST_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_PATH_BYTES, MAX_NAME_BYTES = 4000, 255
MAX_FILE_BYTES = 1 << 40
NOT_OUTPUT = ("__pycache__",)

_HEX = frozenset("0123456789abcdef")


class TreeFile(NamedTuple):
    """One file; ``mode`` has permission bits alone."""

    path: str
    mode: int
    size: int
    sha256: str


class Manifest(NamedTuple):
    """A tree of files, every path of it relative, plain and below no link."""

    tree: str
    files: tuple[TreeFile, ...]
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    raw: bytes

    @property
    def paths(self) -> set[str]:
        return {file.path for file in self.files} | {path for path, _ in self.links}

    def all_folders(self) -> list[str]:
        """Return every folder of the tree, parents first."""
        return sorted({*self.folders, *_folders_above(self.paths), *_folders_above(self.folders)})


def read_manifest(raw: bytes) -> Manifest:
    """Return the manifest that ``raw`` is; raises Refusal (``bad_request``) naming a wrong entry."""
    try:
        said = json.loads(raw)
        files = tuple(_file(entry) for entry in said["files"])
        links = tuple((_path(path), _target(path, target)) for path, target in said["links"])
        folders = tuple(_path(path) for path in said["folders"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise bad_request(f"this is not a manifest of code: {error}") from None
    if len(files) + len(links) + len(folders) > MAX_ENTRIES:
        raise bad_request(f"more than {MAX_ENTRIES} files")
    manifest = Manifest(sha256(raw).hexdigest(), files, links, folders, raw)
    solid = manifest.paths
    if len(solid) < len(files) + len(links) or solid & set(folders):
        raise bad_request("a path is there twice")
    # Below a file or a link it could leave the tree.
    wrong = solid & {*_folders_above(solid), *_folders_above(folders)}
    if wrong:
        raise bad_request(f"something lies below {min(wrong)!r}, which is not a folder")
    return manifest


def load_manifest(folder: str) -> Manifest:
    """Return the manifest beside a run's code; raises Refusal as ``read_manifest``, or OSError."""
    with open(os.path.join(folder, MANIFEST), "rb") as file:
        return read_manifest(file.read(MAX_MANIFEST_BYTES + 1))


def is_sha256(text: object) -> bool:
    """Return whether ``text`` is a SHA-256 in lower-case hexadecimal, and so may name a file."""
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)


def _file(entry: Any) -> TreeFile:
    path, mode, size, sha256 = entry
    for number in (mode, size):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise bad_request(f"{path!r}: {number!r} is not a number from 0")
    if not is_sha256(sha256) or size > MAX_FILE_BYTES:
        raise bad_request(f"{path!r} has no content that can be named")
    return TreeFile(_path(path), mode & 0o777, size, sha256)


def _path(path: object) -> str:
    """Return ``path`` if it stays inside the tree. Raises Refusal (``bad_request``)."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise bad_request(f"{path!r} is not a path")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise bad_request(f"{path!r} is not a plain path below the project's folder")
    try:
        lengths = [len(part.encode("utf-8", "surrogateescape")) for part in parts]
    except UnicodeEncodeError:
        raise bad_request(f"{path!r} cannot name a file") from None
    if max(lengths) > MAX_NAME_BYTES or sum(lengths) + len(parts) > MAX_PATH_BYTES:
        raise bad_request(f"{path[:80]!r}… is too long a path")
    return path


def _target(path: object, target: object) -> str:
    if not isinstance(target, str) or not target or "\0" in target or target.startswith("/"):
        raise bad_request(f"the link {path!r} does not point to a relative path")
    ends = posixpath.normpath(posixpath.join(posixpath.dirname(str(path)), target))
    if ends == ".." or ends.startswith("../"):
        raise bad_request(f"the link {path!r} leaves the project's folder")
    return target


def _folders_above(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        above = posixpath.dirname(path)
        while above and above not in found:
            found.add(above)
            above = posixpath.dirname(above)
    return found


def has_outputs(folder: str) -> bool:
    """Return True if a run has written files of its own into its code's folder: maybe its only checkpoints."""
    try:
        brought = load_manifest(folder).paths
    except FileNotFoundError:
        return False
    except (OSError, Refusal):
        return os.path.isdir(os.path.join(folder, CODE))
    code = os.path.join(folder, CODE)
    for place, folders, files in os.walk(code):
        folders[:] = [name for name in folders if name not in NOT_OUTPUT]
        below = os.path.relpath(place, code)
        start = "" if below == "." else below + "/"
        if any(start + name not in brought for name in files):
            return True
    return False
