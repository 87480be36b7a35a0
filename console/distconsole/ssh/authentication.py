"""Proof of who is at each end of a connection: the host by known_hosts(5), and we by keys, the agent's first.

Of known_hosts hashed names, patterns, ``[host]:port`` and ``@revoked`` are understood. ``@cert-authority`` lines are
passed over: such a host counts as unknown.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distconsole.config.paths import expand_home
from distconsole.errors import (
    AuthError,
    ChangedHostKeyError,
    ConfigError,
    ConnectError,
    UnknownHostKeyError,
)
from distconsole.ssh.lean_paramiko import paramiko
from distconsole.ssh.plain import plain_text
from distconsole.ssh.ssh_config import SshOptions, matches_list

MAX_FILE_BYTES = 32 * 1024 * 1024

_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""What to ask a server for so that it shows a key of this type; the type itself where not named."""


AGENT_SECONDS = 5.0
Load = Callable[[str], paramiko.PKey | str]


@dataclass(frozen=True, slots=True)
class KnownKey:
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
    """What known_hosts says of a ``name``; ``portless`` lines count for equal keys; new lines go to ``file``."""

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

    def lookup(self, host: str, port: int, *, alias: str | None, file: str) -> Lookup:
        """Return what is known of ``host``, or of its HostKeyAlias without a port; a new line goes to ``file``."""
        bare = (alias or host).lower()
        name = bare if alias or port == 22 else f"[{bare}]:{port}"
        keys = tuple(key for key in self._keys if key.names(name))
        portless = tuple(key for key in self._keys if name != bare and key.names(bare))
        return Lookup(name=name, keys=keys, portless=portless, file=file)


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint as ``ssh-keygen -l`` prints it."""
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


class _Agent(paramiko.agent.AgentSSH):
    """The keys of the agent at a socket of our choosing; paramiko's own class reads os.environ."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(AGENT_SECONDS)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException, EOFError):
            # An agent that is gone has no keys.
            connection.close()

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Tried:
    """What was offered, for the message when nothing is accepted."""

    offered: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def log_in(transport: paramiko.Transport, options: SshOptions, load: Load) -> None:
    """Authenticate, key by key in OpenSSH's order; ``load`` is ``load_key``, or remembers what it returned.

    Raises AuthError, which says what was offered and what is locked, if no key is accepted,
    ConnectError if the server stops answering.
    """
    tried = _Tried()
    agent = _Agent(options.identity_agent) if options.identity_agent else None
    try:
        for name, key in _candidates(options, agent, load, tried):
            tried.offered.append(name)
            try:
                if not transport.auth_publickey(options.user, key):
                    return
            except paramiko.BadAuthenticationType as error:
                raise _auth_error(options, tried, [], tuple(error.allowed_types)) from None
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    raise _auth_error(options, tried, ["too many keys were offered"]) from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                if transport.is_active():
                    # A key of a kind that this server does not take.
                    continue
                if len(tried.offered) > 1:
                    raise _auth_error(options, tried, ["it hung up"]) from None
                raise ConnectError(
                    f"{options.hostname} closed the connection while we logged in: {error}",
                    "its own log (journalctl -u ssh) says why",
                ) from None
        raise _auth_error(options, tried, [], _ask_offers(transport, options))
    finally:
        if agent is not None:
            agent.close()


def _ask_offers(transport: paramiko.Transport, options: SshOptions) -> tuple[str, ...]:
    """Return the ways to log in that the server offers; none if it does not say."""
    try:
        transport.auth_none(options.user)
    except paramiko.BadAuthenticationType as error:
        return tuple(plain_text(each)[:40] for each in error.allowed_types[:10])
    except (paramiko.SSHException, EOFError, OSError):
        return ()
    return ()


def _candidates(
    options: SshOptions, agent: paramiko.agent.AgentSSH | None, load: Load, tried: _Tried
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Keys of the agent that ssh_config names, then its others, then files (ssh_config(5), IdentitiesOnly)."""
    held = {key.asbytes(): key for key in agent.get_keys()} if agent is not None else {}
    publics = {path: _public(path) for path in options.identity_files}
    by_agent = [path for path, blob in publics.items() if blob in held]
    for path in by_agent:
        yield f"{path} (by the agent)", held.pop(publics[path] or b"")
    if not options.identities_only:
        for key in held.values():
            yield f"{getattr(key, 'comment', '') or key.get_name()} (by the agent)", key
    rest = [path for path in options.identity_files if path not in by_agent]
    yield from _from_files(rest, options, load, tried)


def _from_files(
    paths: list[str], options: SshOptions, load: Load, tried: _Tried
) -> Iterator[tuple[str, paramiko.PKey]]:
    for path in paths:
        found = load(path)
        if isinstance(found, paramiko.PKey):
            for certificate in options.certificate_files:
                certified = _add_certificate(path, certificate)
                if certified is not None:
                    yield f"{path} with {certificate}", certified
            yield path, found
        elif found == "locked":
            tried.locked.append(path)
        elif found == "unreadable" or options.identities_given:
            tried.unreadable.append(path)


def load_key(path: str) -> paramiko.PKey | str:
    """Return the private key in a file, or why there is none: ``absent``, ``locked`` or ``unreadable``."""
    if not Path(path).is_file():
        return "absent"
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        # cryptography raises TypeError where a passphrase is missing.
        return "locked"
    except (paramiko.SSHException, ValueError, OSError, paramiko.pkey.UnknownKeyType):
        return "unreadable"


def _add_certificate(path: str, certificate: str) -> paramiko.PKey | None:
    """Return a fresh copy of the key with its certificate; None where they do not belong together."""
    try:
        key = paramiko.PKey.from_path(path)
        key.load_certificate(certificate)
    except (paramiko.SSHException, ValueError, TypeError, OSError, paramiko.pkey.UnknownKeyType):
        return None
    return key


def describe_keys(hosts: Sequence[SshOptions]) -> tuple[list[str] | None, dict[str, str]]:
    """Return the kinds of keys that the first host's agent holds, and by file that of its key, or why it has none.

    The agent's are None where there is no agent; files that are not there are left out.
    """
    held = None
    if hosts[0].identity_agent:
        agent = _Agent(hosts[0].identity_agent)
        held = [key.get_name() for key in agent.get_keys()]
        agent.close()
    files = {path: load_key(path) for options in hosts for path in options.identity_files}
    return held, {
        path: found if isinstance(found, str) else found.get_name()
        for path, found in files.items()
        if found != "absent"
    }


def _public(path: str) -> bytes | None:
    """Return the public half beside a private key, which tells whether the agent holds it."""
    file = Path(path if path.endswith(".pub") else f"{path}.pub")
    try:
        words = file.read_text(encoding="utf-8", errors="replace").split()
        return base64.b64decode(words[1], validate=True)
    except (OSError, IndexError, binascii.Error, ValueError):
        return None


def _auth_error(
    options: SshOptions, tried: _Tried, server_says: list[str], offers: tuple[str, ...] = ()
) -> AuthError:
    where = f"{options.user}@{options.hostname}" + (
        "" if options.port == 22 else f" port {options.port}"
    )
    offered = ", ".join(tried.offered) or "none: there is no key to offer"
    parts = [f"{where} accepts none of our keys (offered: {offered})"]
    if tried.locked:
        parts.append(f"{', '.join(tried.locked)} needs a passphrase and no agent holds it")
    if tried.unreadable:
        parts.append(f"{', '.join(tried.unreadable)} cannot be read")
    if server_says:
        parts.append(f"the server says: {', '.join(server_says)}")
    if offers:
        parts.append(f"the server offers: {', '.join(offers)}")
    port = "" if options.port == 22 else f"-p {options.port} "
    hint = f"ssh-copy-id {port}{shlex.quote(f'{options.user}@{options.hostname}')}"
    if tried.locked:
        hint = f"ssh-add {shlex.quote(tried.locked[0])}"
    return AuthError("; ".join(parts), hint, offers)
