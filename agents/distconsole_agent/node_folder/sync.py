"""A run's code on this node: what is missing is asked for, and the run gets a copy of its own.

The copy is made aside (``sync/<run>/``) and becomes ``runs/<run>/code`` when the run is prepared.

A manifest is one JSON object, ``{"files": [[path, mode, bytes, sha256], ...], "links": [[path,
target], ...], "folders": [path, ...]}``; its SHA-256 names the whole tree. Nothing in it is believed
before it is checked here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import posixpath
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from distconsole_agent.contract.protocol import MAX_PIECES_BYTES
from distconsole_agent.contract.refusal import Refusal, bad_request
from distconsole_agent.node_folder.folders import own_folder, remove_tree
from distconsole_agent.node_folder.proofs import Ages, boottime
from distconsole_agent.node_folder.sync_blobs import KEEP_SECONDS, BlobStore

MAX_MANIFEST_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_PATH_BYTES, MAX_NAME_BYTES = 4000, 255
MAX_FILE_BYTES = 1 << 40

_HEX = frozenset("0123456789abcdef")

STAGED_SECONDS = 3600.0
"""Code that was brought for a run that was never prepared is removed after this long."""

CODE, MANIFEST = "code", "code.json"
"""In a run's folder: its code, and which files that was."""

NOT_OUTPUT = ("__pycache__",)


class CodeFile(NamedTuple):
    """One file; ``mode`` has permission bits alone."""

    path: str
    mode: int
    size: int
    sha256: str


class Manifest(NamedTuple):
    """A tree of files, every path of it relative, plain and below no link."""

    tree: str
    files: tuple[CodeFile, ...]
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    raw: bytes


class CodeSync:
    """The code that consoles bring to this node.

    Args:
        node_dir: The node folder.
        clock: Seconds since the boot.
    """

    def __init__(self, node_dir: str, clock: Callable[[], float] = boottime) -> None:
        self._blobs = BlobStore(os.path.join(node_dir, "blobs"))
        self._staging = os.path.join(node_dir, "sync")
        self._ages = Ages(os.path.join(node_dir, "code_since.json"), clock)

    def sync(self, run: str, packed: object) -> dict[str, Any]:
        """Return the contents that are missing here; without any, the run's code stands ready.

        Args:
            run: The run's id, checked.
            packed: The manifest, ``base64(zlib(JSON))``; None for the one that was sent before.

        Raises:
            Refusal: ``bad_request``, when the manifest may not be.
            OSError: when the disk refuses.
        """
        own_folder(self._staging)
        own_folder(self._staged(run))
        if packed is None:
            manifest = self._read(run)
        else:
            manifest = read_manifest(unpack(packed, MAX_MANIFEST_BYTES))
            self._write(run, manifest)
        missing = {
            file.sha256
            for file in manifest.files
            if file.size and not self._blobs.has(file.sha256, file.size)
        }
        if not missing:
            missing = self._build(os.path.join(self._staged(run), CODE), manifest)
        return {"missing": sorted(missing), "tree": manifest.tree}

    def take(self, run: str, pieces: object, packed: object) -> dict[str, Any]:
        """Keep contents, or pieces of them: ``[[sha256, bytes in all, offset, bytes], ...]``.

        Raises:
            Refusal: ``bad_request``, when they are not what they are said to be.
            OSError: when the disk refuses.
        """
        data = memoryview(unpack(packed, MAX_PIECES_BYTES))
        at = 0
        for sha256, size, offset, length in _pieces(pieces, len(data)):
            piece = bytes(data[at : at + length])
            at += length
            if offset == 0 and length == size:
                self._blobs.put(sha256, piece)
            else:
                self._join(run, sha256, (size, offset), piece)
        return {"taken": at}

    def place(self, run: str, folder: str, tree: object) -> None:
        """Move the code brought for ``run`` into its ``folder``.

        Raises:
            Refusal: ``bad_request``, when that code is not here.
        """
        staged = self._staged(run)
        try:
            if self._read(run).tree != tree:
                raise bad_request("the code that was brought is not the one to run")
            os.rename(os.path.join(staged, CODE), os.path.join(folder, CODE))
            os.rename(os.path.join(staged, MANIFEST), os.path.join(folder, MANIFEST))
        except FileNotFoundError:
            raise bad_request(f"the code of {run} was not brought to this node") from None
        remove_tree(staged)

    def housekeep(self) -> None:
        """Remove what was brought long ago and is of no use.

        Raises:
            OSError: when its age cannot be written down.
        """
        staged = []
        with contextlib.suppress(FileNotFoundError):
            staged = [entry.path for entry in os.scandir(self._staging)]
        ages = self._ages.unused([*staged, *self._blobs.paths()])
        for path, seconds in ages.items():
            if seconds > (STAGED_SECONDS if path in staged else KEEP_SECONDS):
                with contextlib.suppress(OSError):
                    remove_tree(path)

    def _staged(self, run: str) -> str:
        return os.path.join(self._staging, run)

    def _read(self, run: str) -> Manifest:
        try:
            with open(os.path.join(self._staged(run), MANIFEST), "rb") as file:
                return read_manifest(file.read(MAX_MANIFEST_BYTES + 1))
        except FileNotFoundError:
            raise bad_request(f"no manifest was sent for {run}") from None

    def _write(self, run: str, manifest: Manifest) -> None:
        path = os.path.join(self._staged(run), MANIFEST)
        with open(path, "wb") as file:
            file.write(manifest.raw)

    def _build(self, code: str, manifest: Manifest) -> set[str]:
        """Write the files; return the contents that turned out to be missing."""
        remove_tree(code)
        os.mkdir(code, 0o700)
        for folder in _folders(manifest):
            os.mkdir(os.path.join(code, folder), 0o755)
        missing = {
            file.sha256
            for file in manifest.files
            if not self._copy(file.sha256, os.path.join(code, file.path), (file.size, file.mode))
        }
        for path, target in manifest.links:
            os.symlink(target, os.path.join(code, path))
        return missing

    def _copy(self, sha256: str, path: str, kind: tuple[int, int]) -> bool:
        size, mode = kind
        if size:
            return self._blobs.copy(sha256, path, mode)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(fd, mode)
        os.close(fd)
        return True

    def _join(self, run: str, sha256: str, place: tuple[int, int], piece: bytes) -> None:
        """Append a piece to a content that is too long for one message."""
        size, offset = place
        own_folder(self._staging)
        own_folder(self._staged(run))
        path = os.path.join(self._staged(run), f"part-{sha256}")
        with open(path, "wb" if offset == 0 else "ab") as file:
            if file.tell() != offset:
                raise bad_request(f"a piece of {sha256[:16]}… is missing before {offset}")
            file.write(piece)
            joined = file.tell()
        if joined >= size:
            self._blobs.adopt(sha256, path)


def has_outputs(folder: str) -> bool:
    """Return whether a run has written files of its own into its code's folder.

    They may be the only checkpoints of a training: such a folder is not removed by itself.
    """
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            manifest = read_manifest(file.read(MAX_MANIFEST_BYTES + 1))
    except FileNotFoundError:
        return False
    except (OSError, Refusal):
        return os.path.isdir(os.path.join(folder, CODE))
    brought = {file.path for file in manifest.files} | {path for path, _ in manifest.links}
    code = os.path.join(folder, CODE)
    for place, folders, files in os.walk(code):
        folders[:] = [name for name in folders if name not in NOT_OUTPUT]
        below = os.path.relpath(place, code)
        start = "" if below == "." else below + "/"
        if any(start + name not in brought for name in files):
            return True
    return False


def _folders(manifest: Manifest) -> list[str]:
    """Return every folder of the tree, parents first."""
    found: set[str] = set(manifest.folders)
    for path in (
        *(file.path for file in manifest.files),
        *(path for path, _ in manifest.links),
        *manifest.folders,
    ):
        above = os.path.dirname(path)
        while above and above not in found:
            found.add(above)
            above = os.path.dirname(above)
    return sorted(found)


def _pieces(pieces: object, total: int) -> list[tuple[str, int, int, int]]:
    """Return the pieces, checked: they make up exactly ``total`` bytes.

    Raises:
        Refusal: ``bad_request``.
    """
    if not isinstance(pieces, list):
        raise bad_request("pieces is a list")
    checked = []
    for piece in pieces:
        if not isinstance(piece, list) or len(piece) != 4 or not is_sha256(piece[0]):
            raise bad_request("a piece is a SHA-256 and three numbers")
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in piece[1:]):
            raise bad_request("a piece is a SHA-256 and three numbers")
        sha256, size, offset, length = piece
        if offset + length > size:
            raise bad_request(f"a piece of {sha256[:16]}… is longer than the whole")
        checked.append((sha256, size, offset, length))
    if sum(length for *_, length in checked) != total:
        raise bad_request("the pieces do not make up the data")
    return checked


def unpack(packed: object, limit: int) -> bytes:
    """Return what ``base64(zlib(data))`` holds.

    Raises:
        Refusal: ``bad_request``, when it is something else or longer than ``limit`` bytes.
    """
    if not isinstance(packed, str):
        raise bad_request("the data is base64")
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(packed, validate=True), limit + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise bad_request(f"the data cannot be unpacked: {error}") from None
    if len(data) > limit or not inflate.eof:
        raise bad_request(f"the data is cut off, or longer than {limit} bytes")
    return data


def read_manifest(raw: bytes) -> Manifest:
    """Return the manifest that ``raw`` is.

    Raises:
        Refusal: ``bad_request``, naming the entry that may not be.
    """
    try:
        said = json.loads(raw)
        files = tuple(_file(entry) for entry in said["files"])
        links = tuple((_path(path), _target(path, target)) for path, target in said["links"])
        folders = tuple(_path(path) for path in said["folders"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise bad_request(f"this is not a manifest of code: {error}") from None
    if len(files) + len(links) + len(folders) > MAX_ENTRIES:
        raise bad_request(f"more than {MAX_ENTRIES} files")
    solid = {file.path for file in files} | {path for path, _ in links}
    if len(solid) < len(files) + len(links):
        raise bad_request("a path is there twice")
    _check_tree(solid, folders)
    return Manifest(hashlib.sha256(raw).hexdigest(), files, links, folders, raw)


def is_sha256(text: object) -> bool:
    """Return whether ``text`` is a SHA-256 in lower-case hexadecimal, and so may name a file."""
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)


def _file(entry: Any) -> CodeFile:
    path, mode, size, sha256 = entry
    for number in (mode, size):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise bad_request(f"{path!r}: {number!r} is not a number from 0")
    if not is_sha256(sha256) or size > MAX_FILE_BYTES:
        raise bad_request(f"{path!r} has no content that can be named")
    return CodeFile(_path(path), mode & 0o777, size, sha256)


def _path(path: object) -> str:
    """Return ``path`` if it stays where it is put.

    Raises:
        Refusal: ``bad_request``.
    """
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
    """Return a link's target if it is relative and stays in the tree."""
    if not isinstance(target, str) or not target or "\0" in target or target.startswith("/"):
        raise bad_request(f"the link {path!r} does not point to a relative path")
    ends = posixpath.normpath(posixpath.join(posixpath.dirname(str(path)), target))
    if ends == ".." or ends.startswith("../"):
        raise bad_request(f"the link {path!r} leaves the project's folder")
    return target


def _check_tree(solid: set[str], folders: tuple[str, ...]) -> None:
    """Refuse a path below a file or a link: writing there could leave the tree.

    Raises:
        Refusal: ``bad_request``.
    """
    known: set[str] = set()
    for path in (*solid, *folders):
        above = posixpath.dirname(path)
        while above and above not in known:
            if above in solid:
                raise bad_request(f"{path!r} lies below {above!r}, which is not a folder")
            known.add(above)
            above = posixpath.dirname(above)
    for folder in folders:
        if folder in solid:
            raise bad_request(f"{folder!r} is there twice")
