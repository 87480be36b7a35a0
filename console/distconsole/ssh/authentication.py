"""Logins by key, the agent's first, as paramiko does them."""

from __future__ import annotations

import base64
import binascii
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm

from distconsole.errors import AuthError, ConnectError
from distconsole.ssh.lean_paramiko import paramiko
from distconsole.ssh.plain import plain_text
from distconsole.ssh.ssh_config import ONE_KEY, SshOptions

AGENT_SECONDS = 5.0
TOO_MANY = "too many keys were offered"
UNREADABLE = (
    paramiko.SSHException,
    paramiko.pkey.UnknownKeyType,
    UnsupportedAlgorithm,
    ValueError,
    OSError,
)
"""Exceptions from a key, or a certificate, of a form that paramiko does not read."""
Load = Callable[[str], paramiko.PKey | str]


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
    """Offered and unusable keys, for the message when nothing is accepted."""

    offered: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    ssh_may: bool = False
    """ssh has more to offer: a key of a form that paramiko does not read, a certificate and the key alone."""


def log_in(transport: paramiko.Transport, options: SshOptions, load: Load) -> None:
    """Authenticate, key by key in OpenSSH's order; ``load`` is ``load_key``, or a cache of it.

    Raises AuthError, with the offered and the locked keys, if no key is accepted,
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
                    raise _auth_error(options, tried, [TOO_MANY]) from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                if transport.is_active():
                    # A key of a kind that this server does not take.
                    continue
                if len(tried.offered) > 1:
                    raise _auth_error(options, tried, [TOO_MANY]) from None
                raise ConnectError(
                    f"{options.hostname} closed the connection while we logged in: {error}",
                    "its own log (journalctl -u ssh) says why",
                ) from None
        raise _auth_error(options, tried, [], _ask_offers(transport, options))
    finally:
        if agent is not None:
            agent.close()


def _ask_offers(transport: paramiko.Transport, options: SshOptions) -> tuple[str, ...]:
    """Return the server's ways to log in; none if it does not list them."""
    with suppress(paramiko.SSHException, EOFError, OSError):
        try:
            transport.auth_none(options.user)
        except paramiko.BadAuthenticationType as error:
            return tuple(plain_text(each)[:40] for each in error.allowed_types[:10])
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
    beside = (Path(f"{path}-cert.pub").is_file() for path in options.identity_files)
    tried.ssh_may = bool(options.certificate_files) or any(beside)
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
            tried.ssh_may |= found == "unreadable"


def load_key(path: str) -> paramiko.PKey | str:
    """Return the private key in a file, or why there is none: ``absent``, ``locked`` or ``unreadable``."""
    if not Path(path).is_file():
        return "absent"
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        # cryptography raises TypeError for a missing passphrase.
        return "locked"
    except UNREADABLE as error:
        return "locked" if "Unsupported cipher" in str(error) else "unreadable"


def _add_certificate(path: str, certificate: str) -> paramiko.PKey | None:
    """Return a fresh copy of the key with its certificate; None if they do not belong together."""
    try:
        key = paramiko.PKey.from_path(path)
        key.load_certificate(certificate)
    except (TypeError, *UNREADABLE):
        return None
    return key


def describe_keys(hosts: Sequence[SshOptions]) -> tuple[list[str] | None, dict[str, str]]:
    """Return the kinds of keys that the first host's agent holds, and by file that of its key, or why it has none.

    The agent's are None without an agent; missing files are left out.
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
    """Return the public half beside a private key, by which the agent's keys are compared."""
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
    if TOO_MANY in server_says:
        hint = ONE_KEY
    elif tried.locked:
        hint = f"ssh-add {shlex.quote(tried.locked[0])}"
    elif tried.unreadable and Path(tried.unreadable[0]).is_file():
        hint = (
            f"ssh-keygen -p -f {shlex.quote(tried.unreadable[0])} writes it in OpenSSH's own form"
        )
    error = AuthError("; ".join(parts), hint, offers)
    error.ssh_may = tried.ssh_may
    return error
