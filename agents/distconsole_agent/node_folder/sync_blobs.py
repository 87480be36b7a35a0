"""Contents of code files on this node, each under its SHA-256, so that none is sent twice.

Contents are copied out of it, never linked: a script that writes to one of its own files would else
change what other runs get.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Iterator

from distconsole_agent.contract.refusal import bad_request
from distconsole_agent.node_folder.folders import own_folder

COPY_BYTES = 1024 * 1024
TOUCH_SECONDS = 86400.0
KEEP_SECONDS = 30 * 86400.0
"""A content that no run has used for so long is removed."""


class BlobStore:
    """The contents under one folder.

    Args:
        folder: Where; made, 0700, when something is first put.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    def has(self, sha256: str, size: int) -> bool:
        """Return whether a content of that size is here, and keep it for another while."""
        path = self._path(sha256)
        try:
            found = os.stat(path)
        except OSError:
            return False
        if found.st_size != size:
            return False
        if abs(time.time() - found.st_mtime) > TOUCH_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(path)
        return True

    def put(self, sha256: str, data: bytes) -> None:
        """Keep ``data``.

        Raises:
            Refusal: ``bad_request``, when it is not what ``sha256`` names.
            OSError: when the disk refuses.
        """
        if hashlib.sha256(data).hexdigest() != sha256:
            raise bad_request(f"a content is not the one that {sha256[:16]}… names")
        path, aside = self._path(sha256), self._aside()
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", buffering=0) as file:
                file.write(data)
            os.rename(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def adopt(self, sha256: str, path: str) -> None:
        """Move the file at ``path`` into the store.

        Raises:
            Refusal: ``bad_request``, when it is not what ``sha256`` names; the file is removed.
            OSError: when the disk refuses.
        """
        digest = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(COPY_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != sha256:
            os.unlink(path)
            raise bad_request(f"a content is not the one that {sha256[:16]}… names")
        own_folder(self._folder)
        os.makedirs(os.path.dirname(self._path(sha256)), mode=0o700, exist_ok=True)
        os.rename(path, self._path(sha256))

    def copy(self, sha256: str, path: str, mode: int) -> bool:
        """Write a content to the new file ``path``; False when it is not here, or was damaged.

        Raises:
            OSError: when the disk refuses.
        """
        try:
            source = os.open(self._path(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(path, flags, 0o600)
            try:
                digest = hashlib.sha256()
                while chunk := os.read(source, COPY_BYTES):
                    digest.update(chunk)
                    _write_all(target, chunk)
                os.fchmod(target, mode)
            finally:
                os.close(target)
        finally:
            os.close(source)
        if digest.hexdigest() == sha256:
            return True
        os.unlink(path)
        with contextlib.suppress(OSError):
            os.unlink(self._path(sha256))
        return False

    def paths(self) -> Iterator[str]:
        """Yield the files of all contents, and of those that are just being written."""
        with contextlib.suppress(OSError):
            for shelf in os.scandir(self._folder):
                entries = os.scandir(shelf) if shelf.is_dir(follow_symlinks=False) else (shelf,)
                yield from (entry.path for entry in entries)

    def _path(self, sha256: str) -> str:
        return os.path.join(self._folder, sha256[:2], sha256[2:])

    def _aside(self) -> str:
        own_folder(self._folder)
        return os.path.join(self._folder, f"new-{os.getpid()}-{next(self._numbers)}")


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])
