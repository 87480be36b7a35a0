"""Which files make up a run's code, as the console says; nothing in it is believed before it is checked here.

A manifest is one JSON object, ``{"files": [[path, mode, bytes, sha256], ...], "links": [[path,
target], ...], "folders": [path, ...]}``; its SHA-256 names the whole tree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import posixpath
import zlib
from typing import Any, NamedTuple

from distconsole_agent.contract.refusal import bad_request

MAX_MANIFEST_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_PATH_BYTES, MAX_NAME_BYTES = 4000, 255
MAX_FILE_BYTES = 1 << 40

_HEX = frozenset("0123456789abcdef")


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
