"""The file that this program runs from, as it is now: a running agent reads parts of it only later. It mends nothing."""

from __future__ import annotations

import os


class OwnFile:
    """Tells the digest of a file, and reads it again only when it was changed.

    Args:
        path: None where the program does not run from one file.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._digest: str | None = None

    def sha256(self) -> str | None:
        """Return the SHA-256 of its content in hexadecimal; None if there is none, or it is gone."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
            now = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if now != self._seen:
                self._digest, self._seen = _digest(self._path), now
        except OSError:
            return None
        return self._digest


def _digest(path: str) -> str:
    import hashlib

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
