"""SSH by paramiko: connections with verified host keys, and the one place that converts its exceptions to ours."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from functools import cache

from distconsole.errors import AgentError, ConnectError, LinkLostError, NodeError
from distconsole.ssh.authentication import load_key, log_in
from distconsole.ssh.jumps import Hops, Jumps
from distconsole.ssh.known_hosts import KnownHosts, Lookup
from distconsole.ssh.lean_paramiko import paramiko
from distconsole.ssh.penalties import FailedLogins
from distconsole.ssh.plain import plain_lines, quote
from distconsole.ssh.sockets import WatchedStream, open_proxy_command, open_tcp
from distconsole.ssh.ssh_config import SshConfig, SshOptions, matches_list
from distconsole.ssh.transport import STDERR_TAIL_BYTES

WRITING_ERRORS = (paramiko.SSHException, EOFError, OSError)
"""Exceptions from paramiko when a connection ends during a write."""

BANNER_SECONDS = 10.0
HANDSHAKE_SECONDS = 15.0
AUTH_SECONDS = 15.0
KEEPALIVE_SECONDS = 30
JOIN_SECONDS = 2.0

ALGORITHM_KINDS = {
    "ciphers": "ciphers",
    "macs": "digests",
    "kexalgorithms": "kex",
    "hostkeyalgorithms": "key_types",
}
"""The keyword of ssh_config and paramiko's name for the same."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
"""paramiko logs what it also raises; without a handler Python would print it over the screen."""


class ParamikoTransport:
    """Connections by ssh_config(5), or by this ``ssh_config`` alone; jump hosts are shared by all."""

    def __init__(self, ssh_config: SshConfig) -> None:
        self._load_key = cache(load_key)
        self._jumps = Jumps(lambda hop, via: self.connect(ssh_config.find(hop), via))
        self._read_known_hosts = cache(KnownHosts)
        self._closed = threading.Event()

    def connect(self, options: SshOptions, via: Hops = ()) -> SshConnection:
        """Reach a host, which does not jump through itself, by ssh_config, or by way of ``via``.

        Raises ResolveError, ConnectError, UnknownHostKeyError, ChangedHostKeyError or AuthError,
        ConfigError if an ssh_config cannot be understood, LinkLostError if the transport is closed meanwhile.
        """
        hops = via or options.proxy_jump
        failed = FailedLogins(options, hops)
        failed.hold(self._closed)
        allowed = allowed_algorithms(options)
        stream = self._stream(options, hops)
        try:
            transport = self._log_in(stream, options, allowed, failed)
        except BaseException:
            stream.close()
            raise
        stream.calm()
        return SshConnection(transport, stream, options)

    def close(self) -> None:
        self._closed.set()
        self._jumps.close()

    def _log_in(
        self,
        stream: WatchedStream,
        options: SshOptions,
        allowed: dict[str, list[str]],
        failed: FailedLogins,
    ) -> paramiko.Transport:
        """Return the transport of a session; a login that fails is noted."""
        files = (*options.user_known_hosts, *options.global_known_hosts)
        lookup, tried = self._read_known_hosts(files).lookup(options), False
        try:
            transport = _hand_shake(stream, options, lookup, allowed, failed)
            try:
                key = transport.get_remote_server_key()
                lookup.verify(key.get_name(), key.asbytes())
                transport.auth_timeout, tried = AUTH_SECONDS, True
                log_in(transport, options, self._load_key)
                transport.set_keepalive(KEEPALIVE_SECONDS)
            except BaseException:
                _abandon(transport)
                raise
        except NodeError as error:
            version = stream.first_bytes.decode("utf-8", "replace")
            failed.note(version, error.message, tried=tried)
            raise
        return transport

    def _stream(self, options: SshOptions, hops: Hops) -> WatchedStream:
        if hops:
            jump = self._jumps.reach(hops)
            return WatchedStream(jump.open_tcp(options))
        if options.proxy_command is not None:
            return WatchedStream(*open_proxy_command(options))
        return WatchedStream(open_tcp(options))


class SshConnection:
    """One authenticated connection; see ``transport.Connection``."""

    def __init__(
        self, transport: paramiko.Transport, stream: WatchedStream, options: SshOptions
    ) -> None:
        self._transport = transport
        self._stream = stream
        self.reached_at = stream.reached_at
        self._environment = options.environment
        self.peer = f"{options.user}@{options.hostname}:{options.port}"

    @property
    def alive(self) -> bool:
        return bool(self._transport.is_active())

    def open(self, command: str, timeout: float) -> SshChannel:
        try:
            channel = self._transport.open_session(timeout=timeout)
            channel.settimeout(timeout)
            for name, value in self._environment.items():
                channel.set_environment_variable(name, value)
            channel.exec_command(command)
        except WRITING_ERRORS as error:
            if not self.alive:
                raise LinkLostError(f"the connection to {self.peer} ended") from None
            raise AgentError(
                f"{self.peer} refuses to run a command: {error}",
                "sshd's MaxSessions, or a command= in authorized_keys?",
            ) from None
        return SshChannel(channel, self.peer)

    def open_tcp(self, options: SshOptions) -> paramiko.Channel:
        """Return a connection from this host to another, for a ProxyJump; raises ConnectError."""
        there, seconds = (options.hostname, options.port), options.connect_seconds
        try:
            return self._transport.open_channel(
                "direct-tcpip", there, ("127.0.0.1", 0), timeout=seconds
            )
        except WRITING_ERRORS as error:
            reason = error.text if isinstance(error, paramiko.ChannelException) else str(error)
            raise ConnectError(
                f"the jump host {self.peer} cannot reach {options.hostname} port {options.port}: {reason}",
                "is the host up, and does the jump host allow forwarding (AllowTcpForwarding)?",
            ) from None

    def close(self) -> None:
        self._stream.close()
        with suppress(*WRITING_ERRORS):
            self._transport.close()
        _join(self._transport)


class SshChannel:
    """One running command; see ``transport.Channel``."""

    def __init__(self, channel: paramiko.Channel, peer: str) -> None:
        self._channel = channel
        self._peer = peer
        self.stderr = bytearray()

    @property
    def waits_on(self) -> tuple[int, ...]:
        return () if self._channel.closed else (self._channel.fileno(),)

    def read_now(self, max_bytes: int) -> bytes | None:
        try:
            return self.recv(max_bytes, 0.0)
        except TimeoutError:
            return None

    def recv(self, max_bytes: int, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        try:
            data = self._channel.recv(max_bytes)
        except TimeoutError:
            raise
        except WRITING_ERRORS:  # reading sends a window adjustment to the server
            raise LinkLostError(f"the connection to {self._peer} ended") from None
        finally:
            self._drain_stderr()
        said = self._channel.status_event.is_set() and self._channel.exit_status != -1
        if not (data or self._channel.eof_received or said):  # the server did not end the stream
            raise LinkLostError(f"the connection to {self._peer} ended")
        return data

    def send(self, data: bytes, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._channel.send(bytes(rest[: 1 << 20])) :]
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
            except WRITING_ERRORS:
                raise LinkLostError(f"the connection to {self._peer} takes nothing") from None

    def end_input(self) -> None:
        with suppress(*WRITING_ERRORS):
            self._channel.shutdown_write()

    def stderr_tail(self) -> str:
        self._drain_stderr()
        return plain_lines(bytes(self.stderr).decode("utf-8", "replace")).strip()

    def exit_code(self, timeout: float) -> int | None:
        if not self._channel.status_event.wait(timeout):
            return None
        code = self._channel.exit_status
        return None if code < 0 else code

    def close(self) -> None:
        with suppress(*WRITING_ERRORS):
            self._channel.close()

    def _drain_stderr(self) -> None:
        """Take stderr out of the channel: both streams share one window."""
        while self._channel.recv_stderr_ready():
            data = b""
            with suppress(*WRITING_ERRORS):
                data = self._channel.recv_stderr(65536)
            if not data:
                return
            self.stderr += data
            del self.stderr[:-STDERR_TAIL_BYTES]


def _hand_shake(
    stream: WatchedStream,
    options: SshOptions,
    lookup: Lookup,
    allowed: dict[str, list[str]],
    failed: FailedLogins,
) -> paramiko.Transport:
    """Exchange banners and keys, of a type in known_hosts; raises ConnectError."""
    try:
        transport = paramiko.Transport(stream)  # type: ignore[arg-type]
    except (paramiko.SSHException, OSError) as error:
        raise _hand_shake_error(stream, options, failed, error) from None
    transport.banner_timeout = BANNER_SECONDS
    transport.handshake_timeout = HANDSHAKE_SECONDS
    security = transport.get_security_options()
    security.key_types = lookup.algorithms(tuple(security.key_types))
    try:
        for name, kept in allowed.items():
            left = [each for each in getattr(security, name) if each in kept]
            if not left:  # of the kinds of a key that are known for the host
                raise paramiko.ssh_exception.IncompatiblePeer(f"{name} in ssh_config")
            setattr(security, name, left)
        transport.start_client(timeout=BANNER_SECONDS + HANDSHAKE_SECONDS)
    except WRITING_ERRORS as error:
        _abandon(transport)
        raise _hand_shake_error(stream, options, failed, error) from None
    if not transport.initial_kex_done:
        _abandon(transport)
        slow = TimeoutError("no key was agreed in time")
        raise _hand_shake_error(stream, options, failed, slow)
    return transport


def allowed_algorithms(options: SshOptions) -> dict[str, list[str]]:
    """Return paramiko's algorithms that ssh_config allows, by kind; kinds that it does not limit are left out.

    Raises ConnectError if it allows none of a kind; it needs no connection.
    """
    usual, kept = paramiko.transport.SecurityOptions(paramiko.Transport), {}  # type: ignore[arg-type]
    for keyword, name in ALGORITHM_KINDS.items():
        said = options.login.get(keyword, "+")
        if said.startswith(("+", "^")):
            continue  # which only add
        listed, away = said.removeprefix("-").split(","), said.startswith("-")
        kept[name] = [
            each
            for each in getattr(usual, name)
            if any(matches_list(listed, n) for n in (each, each.removesuffix("@libssh.org")))
            is not away
        ]
        if not kept[name]:
            nothing = f"{keyword} in ssh_config leaves no algorithm that paramiko has"
            error = ConnectError(f"{options.hostname}: {nothing}", "transport: openssh has more")
            error.ssh_may = True
            raise error
    return kept


def _abandon(transport: paramiko.Transport) -> None:
    """Close a transport that never came to be, with the timer that paramiko would leave running."""
    transport.close()
    transport.packetizer.complete_handshake()
    _join(transport)


def _join(transport: paramiko.Transport) -> None:
    """See paramiko's thread end, which gives the socket back."""
    if transport.is_alive() and transport is not threading.current_thread():
        transport.join(JOIN_SECONDS)


def _hand_shake_error(
    stream: WatchedStream, options: SshOptions, failed: FailedLogins, error: Exception
) -> ConnectError:
    where = f"{options.hostname} port {options.port}"
    said = stream.first_bytes
    overloaded = "sshd may be overloaded (MaxStartups), or a firewall may be in between"
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        nothing = ConnectError(
            f"{where} and we have no SSH algorithm in common: {error}", "update its sshd"
        )
        nothing.ssh_may = True
        return nothing
    if said.startswith(b"SSH-"):
        reason = (
            "it hung up" if isinstance(error, EOFError) else str(error) or type(error).__name__
        )
        return ConnectError(
            f"{where} is an SSH server that broke off the key exchange: {reason}", overloaded
        )
    if (refusal := failed.refusal(said.decode("utf-8", "replace"))) is not None:
        return refusal
    if said:
        return ConnectError(
            f"what answers at {where} is not an SSH server; it says {quote(said)}",
            "is the port right?",
        )
    if options.proxy_command is not None and stream.ended:
        words = f" ({quote(stream.complaint, 300)})" if stream.complaint else " without a word"
        return ConnectError(
            f"{where}: the ProxyCommand ended{words}: {options.proxy_command}",
            "run it by hand to see why",
        )
    if stream.ended:
        return ConnectError(f"{where} hangs up before it says a word", overloaded)
    return ConnectError(
        f"{where} accepts the connection and then says nothing for {BANNER_SECONDS:g} s",
        f"not an SSH server? {overloaded}",
    )
