"""A run's code on this node: asks for missing contents, and gives the run a copy of its own.

The copy is made aside (``sync/<run>/``) and becomes ``runs/<run>/code`` when the run is prepared.
Contents of files lie each under its SHA-256, so that none is sent twice, and are copied from there,
never linked: a script that writes to one of its own files would else change other runs' code.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import time
import zlib
from collections.abc import Callable

from distconsole_agent.contract.protocol import MAX_PIECES_BYTES, Values
from distconsole_agent.contract.refusal import bad_request
from distconsole_agent.node_folder.folders import own_folder, remove_tree
from distconsole_agent.node_folder.manifest import (
    CODE,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    TreeFile,
    is_sha256,
    load_manifest,
    read_manifest,
)
from distconsole_agent.node_folder.proofs import Ages
from distconsole_agent.system.kernel_files import boottime

STAGED_SECONDS = 3600.0
"""Code that was brought for a run that was never prepared is removed after this long."""

KEEP_SECONDS = 30 * 86400.0
"""Seconds after which a content without a run is removed."""

COPY_BYTES = 1024 * 1024
TOUCH_SECONDS = 86400.0
"""Age of a content's time stamp after which a use renews it."""


class CodeSync:
    """The code that consoles bring to this node; ``clock`` gives seconds since the boot."""

    def __init__(self, node_dir: str, clock: Callable[[], float] = boottime) -> None:
        self._blobs = os.path.join(node_dir, "blobs")
        self._staging = os.path.join(node_dir, "sync")
        self._ages = Ages(os.path.join(node_dir, "code_since.json"), clock)

    def sync(self, run: str, packed: object) -> Values:
        """Return the contents that are missing here; without any, the run's code stands ready.

        ``packed`` is the manifest, ``base64(zlib(JSON))``; None for the one that was sent before.
        Raises Refusal (``bad_request``) when it may not be, and OSError when the disk refuses.
        """
        staged = self._open_staged(run)
        if packed is None:
            manifest = self._load(run)
        else:
            manifest = read_manifest(unpack(packed, MAX_MANIFEST_BYTES))
            with open(os.path.join(staged, MANIFEST), "wb") as file:
                file.write(manifest.raw)
        missing = {each.sha256 for each in manifest.files if each.size and not self._has(each)}
        if not missing:
            missing = self._build(os.path.join(staged, CODE), manifest)
        return {"missing": sorted(missing), "tree": manifest.tree}

    def take(self, run: str, pieces: object, packed: object) -> Values:
        """Store contents, or pieces of them: ``[[sha256, bytes in all, offset, bytes], ...]``.

        Raises Refusal (``bad_request``) when they are not that, and OSError when the disk refuses.
        """
        data = memoryview(unpack(packed, MAX_PIECES_BYTES))
        staged, at = self._open_staged(run), 0
        for sha256, size, offset, length in _pieces(pieces, len(data)):
            path = os.path.join(staged, f"part-{sha256}")
            with open(path, "wb" if offset == 0 else "ab") as file:
                if file.tell() != offset:
                    raise bad_request(f"a piece of {sha256[:16]}… is missing before {offset}")
                file.write(data[at : at + length])
            at += length
            if offset + length == size:
                self._adopt(sha256, path)
        return {"taken": at}

    def place(self, run: str, folder: str, tree: object) -> None:
        """Move the code brought for ``run`` into its ``folder``; raises Refusal (``bad_request``) without it."""
        staged = self._staged(run)
        try:
            if self._load(run).tree != tree:
                raise bad_request("the code that was brought is not the one to run")
            os.rename(os.path.join(staged, CODE), os.path.join(folder, CODE))
            os.rename(os.path.join(staged, MANIFEST), os.path.join(folder, MANIFEST))
        except FileNotFoundError:
            raise bad_request(f"the code of {run} was not brought to this node") from None
        remove_tree(staged)

    def housekeep(self) -> None:
        """Remove old unused contents; raises OSError if that cannot be noted."""
        staged = []
        with contextlib.suppress(FileNotFoundError):
            staged = [entry.path for entry in os.scandir(self._staging)]
        # Besides contents, unfinished files of another version lie here.
        contents = []
        with contextlib.suppress(OSError):
            for shelf in os.scandir(self._blobs):
                entries = os.scandir(shelf) if shelf.is_dir(follow_symlinks=False) else (shelf,)
                contents += [entry.path for entry in entries]
        ages = self._ages.unused([*staged, *contents])
        for path, seconds in ages.items():
            if seconds > (STAGED_SECONDS if path in staged else KEEP_SECONDS):
                with contextlib.suppress(OSError):
                    remove_tree(path)

    def _staged(self, run: str) -> str:
        return os.path.join(self._staging, run)

    def _open_staged(self, run: str) -> str:
        own_folder(self._staging)
        own_folder(self._staged(run))
        return self._staged(run)

    def _load(self, run: str) -> Manifest:
        try:
            return load_manifest(self._staged(run))
        except FileNotFoundError:
            raise bad_request(f"no manifest was sent for {run}") from None

    def _build(self, code: str, manifest: Manifest) -> set[str]:
        """Write the files; return the contents that turned out to be missing."""
        remove_tree(code)
        os.mkdir(code, 0o700)
        for folder in manifest.all_folders():
            os.mkdir(os.path.join(code, folder), 0o755)
        missing = {
            file.sha256
            for file in manifest.files
            if not self._copy(file, os.path.join(code, file.path))
        }
        for path, target in manifest.links:
            os.symlink(target, os.path.join(code, path))
        return missing

    def _has(self, file: TreeFile) -> bool:
        path = self._content(file.sha256)
        try:
            found = os.stat(path)
        except OSError:
            return False
        if abs(time.time() - found.st_mtime) > TOUCH_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(path)
        return found.st_size == file.size

    def _copy(self, file: TreeFile, path: str) -> bool:
        """Write a content to the new file ``path``; return False when it is missing or damaged."""
        import hashlib  # by OpenSSL, five times as fast as ``system.sha256``

        content, digest = self._content(file.sha256), hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            where = content if file.size else os.devnull
            source = os.open(where, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        with open(source, "rb") as reader, open(os.open(path, flags, 0o600), "wb") as writer:
            while chunk := reader.read(COPY_BYTES):
                digest.update(chunk)
                writer.write(chunk)
            os.fchmod(writer.fileno(), file.mode)
        if not file.size or digest.hexdigest() == file.sha256:
            return True
        os.unlink(path)
        with contextlib.suppress(OSError):
            os.unlink(content)
        return False

    def _adopt(self, sha256: str, path: str) -> None:
        """Move ``path`` among the contents, or remove it and raise Refusal if its hash is not ``sha256``."""
        import hashlib

        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(COPY_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != sha256:
            os.unlink(path)
            raise bad_request(f"a content is not the one that {sha256[:16]}… names")
        own_folder(self._blobs)
        os.makedirs(os.path.dirname(self._content(sha256)), mode=0o700, exist_ok=True)
        os.rename(path, self._content(sha256))

    def _content(self, sha256: str) -> str:
        return os.path.join(self._blobs, sha256[:2], sha256[2:])


def _pieces(pieces: object, total: int) -> list[tuple[str, int, int, int]]:
    """Return the pieces, which make up ``total`` bytes; raises Refusal (``bad_request``)."""
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
    """Return ``base64(zlib(data))`` unpacked, at most ``limit`` bytes; raises Refusal (``bad_request``)."""
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
