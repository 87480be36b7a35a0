"""Proof of a host's identity, by known_hosts(5).

Hashed names, patterns, ``[host]:port`` and ``@revoked`` are understood. Of ``@cert-authority`` lines only the host
patterns are used: the system's ssh verifies such a host.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distconsole.config.paths import expand_home
from distconsole.errors import ChangedHostKeyError, ConfigError, UnknownHostKeyError
from distconsole.ssh.ssh_config import SshOptions, matches_list

AUTHORITY = "@cert-authority"
MAX_FILE_BYTES = 32 * 1024 * 1024

_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""Algorithms to ask a server for so that it shows a key of this type; else the type itself."""


@dataclass(frozen=True, slots=True)
class KnownKey:
    patterns: tuple[str, ...]
    kind: str
    blob: bytes
    file: str
    line: int
    marker: str

    @property
    def revoked(self) -> bool:
        return self.marker == "@revoked"

    def names(self, name: str) -> bool:
        if len(self.patterns) == 1 and self.patterns[0].startswith("|1|"):
            return _hash_matches(self.patterns[0], name)
        return matches_list(self.patterns, name)


@dataclass(frozen=True, slots=True)
class Lookup:
    """The lines of known_hosts on a ``name``; ``portless`` ones count for equal keys; new lines go to ``file``.

    Attributes:
        by_authority: A certificate authority is known for it, whose signature ssh alone can verify.
        no_known_hosts: As ``SshOptions`` has it.
    """

    name: str
    keys: tuple[KnownKey, ...]
    portless: tuple[KnownKey, ...]
    file: str
    by_authority: bool = False
    no_known_hosts: str = ""

    def algorithms(self, supported: Sequence[str]) -> list[str]:
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
        error = self._changed(kind, blob, known) if known else self.unknown(kind, blob)
        error.ssh_may = self.by_authority
        raise error

    def unknown(self, kind: str, blob: bytes) -> UnknownHostKeyError:
        kept = (
            f" (UserKnownHostsFile {self.no_known_hosts} in ssh_config keeps no key: {self.file} counts)"
            if self.no_known_hosts
            else ""
        )
        return UnknownHostKeyError(
            f"{self.name} is not in known_hosts{kept}; its {kind} key is {fingerprint(blob)}",
            f"compare that fingerprint with the host's own, then: {self._adding(kind, blob)}",
            shown=f"{self.name}  {kind}  {fingerprint(blob)}",
            file=self.file,
            line=self._line(kind, blob),
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
        line = shlex.quote(self._line(kind, blob))
        folder = shlex.quote(str(Path(self.file).parent))
        return f"mkdir -p -m 700 {folder} && echo {line} >> {shlex.quote(self.file)}"

    def _line(self, kind: str, blob: bytes) -> str:
        return f"{self.name} {kind} {base64.b64encode(blob).decode()}"


class KnownHosts:
    """The lines of several files, read once."""

    def __init__(self, files: Iterable[str]) -> None:
        self._keys = [key for file in files for key in _read(file)]

    def lookup(self, options: SshOptions) -> Lookup:
        """Return the keys of a host, or of its HostKeyAlias without a port."""
        alias = options.host_key_name
        bare = (alias or options.hostname).lower()
        name = bare if alias or options.port == 22 else f"[{bare}]:{options.port}"
        named = [key for key in self._keys if key.names(name)]
        portless = [key for key in self._keys if name != bare and key.names(bare)]
        return Lookup(
            name=name,
            keys=tuple(key for key in named if key.marker != AUTHORITY),
            portless=tuple(key for key in portless if key.marker != AUTHORITY),
            file=options.user_known_hosts[0],
            by_authority=any(key.marker == AUTHORITY for key in (*named, *portless)),
            no_known_hosts=options.no_known_hosts,
        )


def fingerprint(blob: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def add_line(file: str, line: str) -> None:
    """Add a line to a known_hosts file, made if need be; raises ConfigError if it cannot be written."""
    path = expand_home(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        ended = not path.is_file() or path.read_bytes()[-1:] in (b"", b"\n")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:  # in one call, so that no half of it is ever there
            os.write(descriptor, f"{'' if ended else chr(10)}{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


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
    if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked", AUTHORITY):
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    patterns = tuple(words[0].split(","))
    return KnownKey(patterns, words[1], blob, file, number, marker)


def _hash_matches(hashed: str, name: str) -> bool:
    """``|1|salt|HMAC-SHA1(salt, name)``, as ``HashKnownHosts`` writes."""
    try:
        _, _, salt, digest = hashed.split("|")
        expected = base64.b64decode(digest, validate=True)
        actual = hmac.new(base64.b64decode(salt, validate=True), name.encode(), hashlib.sha1)
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(actual.digest(), expected)
