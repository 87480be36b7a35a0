"""known_hosts(5): which keys a host may have, and what to type when it has another.

Hashed names, patterns, ``[host]:port`` and ``@revoked`` are understood. ``@cert-authority`` lines are
passed over: such a host counts as unknown.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distconsole.errors import ChangedHostKeyError, UnknownHostKeyError
from distconsole.ssh.ssh_config import matches_list

MAX_FILE_BYTES = 32 * 1024 * 1024

_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""What to ask a server for so that it shows a key of this type; the type itself where not named."""


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line."""

    patterns: tuple[str, ...]
    kind: str
    blob: bytes
    file: str
    line: int
    revoked: bool

    def names(self, name: str) -> bool:
        """Whether the line speaks of ``name``."""
        if len(self.patterns) == 1 and self.patterns[0].startswith("|1|"):
            return _hash_matches(self.patterns[0], name)
        return matches_list(self.patterns, name)


@dataclass(frozen=True, slots=True)
class Lookup:
    """What known_hosts says of one host.

    Attributes:
        name: What it is called there: ``host`` or ``[host]:port``.
        keys: Lines for that name.
        portless: Lines for the bare host, which are trusted only where the key is the same.
        file: Where a new line belongs.
    """

    name: str
    keys: tuple[KnownKey, ...]
    portless: tuple[KnownKey, ...]
    file: str

    def algorithms(self, supported: Sequence[str]) -> list[str]:
        """Return ``supported`` host key algorithms, those of known keys first."""
        known = [
            name
            for key in (*self.keys, *self.portless)
            for name in _ALGORITHMS.get(key.kind, (key.kind,))
        ]
        first = [name for name in dict.fromkeys(known) if name in supported]
        return [*first, *(name for name in supported if name not in first)]

    def verify(self, kind: str, blob: bytes) -> None:
        """Return if the key is the host's.

        Raises UnknownHostKeyError if nothing is known of the host, ChangedHostKeyError if another
        key is known, or this one is revoked.
        """
        for key in (*self.keys, *self.portless):
            if key.revoked and key.blob == blob:
                raise ChangedHostKeyError(
                    f"the host key of {self.name} is revoked ({key.file}:{key.line}): "
                    f"{kind} {fingerprint(blob)}",
                    "do not connect to it; ask whoever runs it for a new key",
                )
        if any(key.blob == blob for key in (*self.keys, *self.portless) if not key.revoked):
            return
        known = [key for key in self.keys if not key.revoked]
        if not known:
            raise self._unknown(kind, blob)
        raise self._changed(kind, blob, known)

    def _unknown(self, kind: str, blob: bytes) -> UnknownHostKeyError:
        return UnknownHostKeyError(
            f"{self.name} is not in known_hosts; its {kind} key is {fingerprint(blob)}",
            f"compare that fingerprint with the host's own, then: {self._adding(kind, blob)}",
        )

    def _changed(self, kind: str, blob: bytes, known: Sequence[KnownKey]) -> ChangedHostKeyError:
        same = [key for key in known if key.kind == kind]
        old = (same or known)[0]
        removals = " && ".join(
            f"ssh-keygen -R {shlex.quote(self.name)} -f {shlex.quote(file)}"
            for file in dict.fromkeys(key.file for key in known)
        )
        return ChangedHostKeyError(
            f"the host key of {self.name} is not the one in known_hosts: it shows {kind} "
            f"{fingerprint(blob)}, {old.file}:{old.line} has {old.kind} {fingerprint(old.blob)}",
            "somebody may be listening in. If the host was set up anew: "
            f"{removals} && {self._adding(kind, blob)}",
        )

    def _adding(self, kind: str, blob: bytes) -> str:
        """Return the shell line that adds this very key, not whatever a second look would fetch."""
        line = shlex.quote(f"{self.name} {kind} {base64.b64encode(blob).decode()}")
        folder = shlex.quote(str(Path(self.file).parent))
        return f"mkdir -p -m 700 {folder} && echo {line} >> {shlex.quote(self.file)}"


class KnownHosts:
    """The lines of several files, read once."""

    def __init__(self, files: Iterable[str]) -> None:
        self._keys = [key for file in files for key in _read(file)]

    def lookup(self, host: str, port: int, *, alias: str | None, file: str) -> Lookup:
        """Return what is known of ``host``.

        Args:
            alias: HostKeyAlias: the name to look for instead, without a port.
            file: Where a new line belongs.
        """
        bare = (alias or host).lower()
        name = bare if alias or port == 22 else f"[{bare}]:{port}"
        keys = tuple(key for key in self._keys if key.names(name))
        portless = tuple(key for key in self._keys if name != bare and key.names(bare))
        return Lookup(name=name, keys=keys, portless=portless, file=file)


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint as ``ssh-keygen -l`` prints it."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _read(file: str) -> Iterable[KnownKey]:
    path = Path(file)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        # A file that is not there holds no key.
        return
    for number, line in enumerate(lines, 1):
        key = _parse(line, file, number)
        if key is not None:
            yield key


def _parse(line: str, file: str, number: int) -> KnownKey | None:
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    patterns = tuple(words[0].split(","))
    return KnownKey(patterns, words[1], blob, file, number, marker == "@revoked")


def _hash_matches(hashed: str, name: str) -> bool:
    """``|1|salt|HMAC-SHA1(salt, name)``, as ``HashKnownHosts`` writes."""
    try:
        _, _, salt, digest = hashed.split("|")
        expected = base64.b64decode(digest, validate=True)
        actual = hmac.new(base64.b64decode(salt, validate=True), name.encode(), hashlib.sha1)
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(actual.digest(), expected)
