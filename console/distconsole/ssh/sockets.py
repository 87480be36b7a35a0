"""The way to a server's port: TCP, a ProxyCommand, or a channel of a jump host."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Protocol

from distconsole.errors import ConnectError, ResolveError
from distconsole.ssh.ssh_config import SshOptions, users_shell

THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})

FIRST_BYTES = 512
"""Bytes kept of a server's first words, to recognise it."""

POLL_SECONDS = 0.1
"""How often paramiko's thread looks up during the hand-shake; it would do so for ever."""
IDLE_POLL_SECONDS = 5.0
"""How often it does once everything stands; ``close`` does not wait for it."""

DEAD_PEER_MS = 20_000
"""After this long without an acknowledgement of sent bytes the kernel gives the peer up."""


class Stream(Protocol):
    """The part of a socket that paramiko uses; a ``Channel`` of a jump host is one too."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def close(self) -> None: ...


class WatchedStream:
    """A stream that remembers its first bytes, polls calmly, and closes at once.

    paramiko polls its socket ten times a second for the life of the connection; with many nodes an
    idle console would spend its time on that.
    """

    def __init__(self, stream: Stream, process: subprocess.Popen[bytes] | None = None) -> None:
        self._stream = stream
        self._process = process
        self.reached_at = _peer_address(stream)
        self._closing = threading.Lock()
        self.first_bytes = b""
        self.complaint = b""  # of a ProxyCommand, once it has ended
        self.ended = False
        self._closed = False
        self._reader: int | None = None
        stream.settimeout(POLL_SECONDS)

    def recv(self, size: int) -> bytes:
        self._reader = threading.get_ident()
        try:
            data = self._stream.recv(size)
        except OSError as error:
            self.ended |= not isinstance(error, TimeoutError)
            raise
        self._keep_first(data)
        if not data:
            self.ended = True
        return data

    def send(self, data: bytes) -> int:
        try:
            return self._stream.send(data)
        except OSError as error:
            self.ended |= not isinstance(error, TimeoutError)
            if self.ended and not self.first_bytes:  # its last words before it hung up
                with suppress(OSError):
                    self._keep_first(self._stream.recv(FIRST_BYTES))
            raise

    def _keep_first(self, data: bytes) -> None:
        if len(self.first_bytes) < FIRST_BYTES:
            self.first_bytes += data[: FIRST_BYTES - len(self.first_bytes)]

    def settimeout(self, seconds: float | None) -> None:
        """Is ignored: paramiko asks for its own polling."""

    def calm(self) -> None:
        self._stream.settimeout(IDLE_POLL_SECONDS)

    def close(self) -> None:
        """End the stream, waking a reader in ``recv``; the command behind a ProxyCommand ends too.

        A socket is shut down at once and its descriptor given back by the thread that reads it:
        given back under its feet, the number may be another connection's by the time it reads.
        """
        with self._closing:
            first, self._closed = not self._closed, True
            give_back = self._reader in (None, threading.get_ident())
        if isinstance(self._stream, socket.socket):
            with suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            if give_back:
                self._stream.close()
        elif first:
            with suppress(OSError, EOFError):
                self._stream.close()
        if first and self._process is not None:
            end_process(self._process)
            if (errors := self._process.stderr) is not None:
                self.complaint = os.pread(errors.fileno(), FIRST_BYTES, 0).strip()
                errors.close()


def _peer_address(stream: Stream) -> str:
    """Return the address at the other end; empty for a jump host's channel or a ProxyCommand."""
    if not isinstance(stream, socket.socket) or stream.family == socket.AF_UNIX:
        return ""
    try:
        name: tuple[str, int] = stream.getpeername()
    except OSError:
        return ""
    # An IPv4 address may be mapped into IPv6; the host's own name for it is the plain one.
    return name[0].removeprefix("::ffff:")


def open_tcp(options: SshOptions) -> socket.socket:
    """Return a connected socket with TCP_NODELAY.

    Raises ResolveError if the name has no address, ConnectError, with the failure of each, if
    none answers.
    """
    try:
        found = socket.getaddrinfo(
            options.hostname, options.port, options.address_family, socket.SOCK_STREAM
        )
    except (socket.gaierror, UnicodeError) as error:
        same = options.alias.lower() == options.hostname
        alias = "" if same else f" ({options.alias} in ssh_config)"
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        only = " (AddressFamily)" if options.address_family else ""
        raise ResolveError(
            f"{options.hostname}{alias} has no address: {reason}",
            f"check the spelling, ssh_config{only} and /etc/hosts",
        ) from None
    failures: list[str] = []
    foreign: list[bool] = []
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(options.connect_seconds)
            if options.bind_address:
                connection.bind((options.bind_address, 0))
            connection.connect(address)
        except OSError as error:
            connection.close()
            failures.append(f"{address[0]}: {_words_for(error, options.connect_seconds)}")
            foreign.append(error.errno == errno.EADDRNOTAVAIL)
            continue
        # Send at once, and notice a peer that is gone.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        return connection
    if options.bind_address and all(foreign):
        hint = f"BindAddress {options.bind_address} in ssh_config is no address of this machine"
    elif options.hostname in THIS_MACHINE:
        hint = "for this machine alone leave the hosts out: it needs no ssh"
    else:
        hint = "is the host up, is sshd running there, is the port right?"
    raise ConnectError(
        f"nothing answers at {options.hostname} port {options.port} "
        f"({'; '.join(dict.fromkeys(failures))})",
        hint,
    )


def open_proxy_command(options: SshOptions) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return our end of a ProxyCommand's stdin and stdout, and its process.

    A socket pair instead of two pipes, so that paramiko gets a true socket.

    Raises ConnectError if the command cannot be started.
    """
    assert options.proxy_command is not None
    ours, theirs = socket.socketpair()
    errors = None
    with suppress(OSError):  # a full disk costs its words; a pipe that is full would hold it up
        errors = TemporaryFile()  # noqa: SIM115 - closed with the stream
    try:
        process = subprocess.Popen(
            [users_shell(os.environ), "-c", f"exec {options.proxy_command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors or subprocess.DEVNULL,
            start_new_session=True,
        )
        process.stderr = errors
    except OSError as error:
        if errors is not None:
            errors.close()
        ours.close()
        raise ConnectError(
            f"{options.alias}: ProxyCommand cannot be started: {error.strerror}"
        ) from None
    finally:
        theirs.close()
    return ours, process


def _words_for(error: OSError, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {seconds:g} s"
    match error.errno:
        case errno.ECONNREFUSED:
            return "refused"
        case errno.EHOSTUNREACH | errno.ENETUNREACH:
            return "no route"
        case _:
            return error.strerror or str(error)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command after the end of its stdin; kill one that stays."""
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
