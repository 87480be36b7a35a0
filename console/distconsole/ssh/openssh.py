"""SSH by the system's ssh, for every login that it knows: passwords, codes, Kerberos, hardware keys, certificates.

A connection is a master of OpenSSH: the user's own if it runs (ControlPath), else one of ours, opened by one
login and closed at the end. Commands go over it by ``multiplexing``.
"""

from __future__ import annotations

import base64
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from distconsole.errors import (
    AgentError,
    AuthError,
    ConnectError,
    LinkLostError,
    UnknownHostKeyError,
)
from distconsole.model.cluster import Host
from distconsole.ssh.asking import PERSON, Person
from distconsole.ssh.jumps import Hops, Jumps
from distconsole.ssh.known_hosts import KnownHosts
from distconsole.ssh.multiplexing import ControlSocket, MultiplexedChannel, RefusedError
from distconsole.ssh.openssh_login import (
    Login,
    PrivateFolder,
    failure,
    first_words,
    reached_address,
)
from distconsole.ssh.penalties import FailedLogins
from distconsole.ssh.ssh_config import SshConfig, SshOptions

LINGER_SECONDS = 10
"""How long a master of ours stays when this program was killed."""
FREED_SECONDS = 2.0
"""How long the server may take to notice that a command is over, before another may begin in its place (MaxSessions)."""
RETRY_SECONDS = 0.05
QUIET_SECONDS = 300.0
"""A host with an unanswered question does not ask again for this long."""

ALWAYS = {
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "NoHostAuthenticationForLocalhost": "no",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "4",
    "ControlPersist": str(LINGER_SECONDS),
}
"""Options of every master of ours; they override ssh_config."""


@dataclass(slots=True)
class _Master:
    """One that stands, held by a connection to its control socket."""

    path: str
    control: ControlSocket
    reached_at: str = ""
    ours: bool = True

    @property
    def alive(self) -> bool:
        return not self.control.ended

    def close(self) -> None:
        if self.ours:
            self.control.terminate()
        self.control.close()


class OpensshTransport:
    """Connections by the system's ssh, by ssh_config(5) or by ``file`` alone; jump hosts are shared by all."""

    def __init__(
        self, ssh_config: SshConfig, file: str | None = None, person: Person = PERSON
    ) -> None:
        self._file, self._person = file, person
        self._jumps = Jumps(lambda hop, via: self.connect(hop, ssh_config.find(hop), via))
        self._lock = threading.Lock()
        self._folder: PrivateFolder | None = None
        self._numbers = count(1)
        self._logins: set[Login] = set()
        self._declined: dict[Host, float] = {}
        self._closed = threading.Event()

    def connect(self, host: Host, options: SshOptions, via: Hops = ()) -> OpensshConnection:
        """Reach ``host``; raises as ``ParamikoTransport.connect``, and ConnectError without an ssh."""

        def log_in() -> _Master:
            return self._open_master(host, options, via)

        master = _find_master(options) or log_in()
        return OpensshConnection(master, host, options.environment, log_in)

    def close(self) -> None:
        """Give up the logins that go on, and close the jump hosts; connections close their own resources."""
        self._closed.set()
        self._jumps.close()
        with self._lock:
            logins, folder, self._folder = list(self._logins), self._folder, None
        for login in logins:
            login.kill()
        if folder is not None:
            folder.close()

    def _open_master(self, host: Host, options: SshOptions, via: Hops) -> _Master:
        asks = self._person.can_answer()
        peer = f"{options.user}@{options.hostname}"
        since = time.monotonic() - self._declined.get(host, -QUIET_SECONDS)
        if since < QUIET_SECONDS:
            raise AuthError(
                f"{peer} asked for a password or a code, and nobody answered",
                f"it asks again in {QUIET_SECONDS - since:.0f} s",
            )
        hops = via or options.proxy_jump
        failed = FailedLogins(options, hops)
        failed.hold(self._closed)
        jump = self._jumps.reach(hops) if hops else None
        words = _master_words(options, asks=asks)
        if jump is not None:
            words += ["-o", f"ProxyCommand={self._through(jump)}"]
        login, path = self._log_in(host, words, failed)
        if login.control is None:
            if login.declined:
                self._declined[host] = time.monotonic()
            if (refusal := failed.refusal(first_words(login.said))) is not None:
                raise refusal
            error = failure(
                login.said,
                host.name,
                peer,
                by_hand=shlex.join([*self._ssh(host), host.name, "true"]),
                jump="" if jump is None else jump.host.name,
                declined=login.declined,
                asks=asks,
                let_in=login.succeeded,
            )
            if isinstance(error, UnknownHostKeyError):
                error = self._with_key(error, host, options, words)
            if not login.succeeded:
                tried = login.declined or isinstance(error, AuthError)
                failed.note(first_words(login.said), error.message, tried=tried)
            raise error
        self._declined.pop(host, None)
        return _Master(path, login.control, reached_address(login.said))

    def _with_key(
        self, error: UnknownHostKeyError, host: Host, options: SshOptions, words: list[str]
    ) -> UnknownHostKeyError:
        """Return the error with the host's key, for a person to trust; as it is before OpenSSH 8.5."""
        file = self._own_folder().path / f"{next(self._numbers)}.key"
        writer = file.with_suffix(".sh")
        writer.write_text(f'[ "$2" = NONE ] || echo "$1 $2" >{shlex.quote(str(file))}\n')
        show = f'KnownHostsCommand=/bin/sh "{str(writer).replace("%", "%%")}" %t %K'
        words = [*words, "-o", show]
        if "hostkeyalgorithms" not in options.login:  # the key, and not a certificate of it
            words += ["-o", "HostKeyAlgorithms=-*-cert-*"]
        self._try_to_log_in(host, words)
        with suppress(OSError, ValueError):
            kind, blob = file.read_text().split()
            if "-cert-" in kind:
                return error
            lookup = KnownHosts(()).lookup(options)
            return lookup.unknown(kind, base64.b64decode(blob, validate=True))
        return error

    def _log_in(self, host: Host, words: list[str], failed: FailedLogins) -> tuple[Login, str]:
        """Return a login that is over, and the path of its master.

        Where the question waited long for those of other hosts, the login begins once more when it is its turn.
        """
        with ExitStack() as turn:
            login, path = self._try_to_log_in(host, words)
            if login.waited_in_vain:
                late = f"{host.name} asked for a password or a code, after other hosts"
                failed.note(first_words(login.said), late, tried=True)
                turn.enter_context(self._person.turn())
                login, path = self._try_to_log_in(host, words)
            return login, path

    def _try_to_log_in(self, host: Host, words: list[str]) -> tuple[Login, str]:
        folder = self._own_folder()
        place = folder.path / str(next(self._numbers))  # the files of one login begin so
        ssh = [*self._ssh(host), "-S", str(place).replace("%", "%%"), *words, "--", host.name]
        try:
            login = Login(ssh, host.name, place, folder.askpass, self._person)
        except OSError as error:
            raise ConnectError(
                f"ssh cannot be started: {error.strerror}", "install OpenSSH's client"
            ) from None
        with self._lock:
            self._logins.add(login)
            if self._closed.is_set():
                login.kill()
        try:
            login.finish()
        finally:
            with self._lock:
                self._logins.discard(login)
            login.close()
        return login, str(place)

    def _ssh(self, host: Host) -> list[str]:
        words = ["ssh"]
        words += ["-F", self._file] if self._file else []
        words += ["-l", host.user] if host.user else []
        return words + (["-p", str(host.port)] if host.port else [])

    def _through(self, jump: OpensshConnection) -> str:
        master = jump.master.path.replace("%", "%%")
        words = ["ssh", *(["-F", self._file] if self._file else []), "-S", master]
        # If the master has gone, it must not become another login.
        words += ["-o", "ProxyCommand=false", "-W"]
        rest = ["--", jump.host.name]
        return f"{shlex.join(words).replace('%', '%%')} [%h]:%p {shlex.join(rest)}"

    def _own_folder(self) -> PrivateFolder:
        with self._lock:
            if self._folder is None:
                self._folder = PrivateFolder()
            return self._folder


class OpensshConnection:
    """One master; see ``transport.Connection``."""

    def __init__(
        self,
        master: _Master,
        host: Host,
        environment: Mapping[str, str],
        log_in: Callable[[], _Master],
    ) -> None:
        self.master, self.host, self._environment = master, host, environment
        self.reached_at = master.reached_at
        self._log_in = log_in
        self._channels: list[MultiplexedChannel] = []

    @property
    def alive(self) -> bool:
        return self.master.alive

    def open(self, command: str, timeout: float) -> MultiplexedChannel:
        deadline = time.monotonic() + (FREED_SECONDS if self._channels else 0.0)
        while True:
            try:
                channel = MultiplexedChannel(
                    self.master.path, command, timeout, self.host.name, self._environment
                )
            except RefusedError as error:
                if time.monotonic() < deadline:
                    time.sleep(RETRY_SECONDS)
                elif self.master.ours:
                    raise AgentError(
                        f"{self.host.name} refuses to run a command: {error}",
                        "sshd's MaxSessions, or a command= in authorized_keys?",
                    ) from None
                else:
                    self._use_own()  # the sessions of that one are the user's
            except LinkLostError:
                if self.master.ours:
                    raise LinkLostError(f"the connection to {self.host.name} ended") from None
                self._use_own()  # the user's has lost its server, and does not know it
            else:
                self._channels.append(channel)
                return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self.master.close()

    def _use_own(self) -> None:
        self.master.close()
        self.master = self._log_in()
        self.reached_at = self.master.reached_at


def has_master(options: SshOptions) -> bool:
    master = _find_master(options)
    if master is not None:
        master.close()
    return master is not None


def _find_master(options: SshOptions) -> _Master | None:
    """Return the user's master at the host's ControlPath, if one answers there."""
    for path in options.control_paths:
        # In a folder of many users any of them may put a socket there, and pose as the host.
        with suppress(OSError, LinkLostError):
            if Path(path).stat().st_uid not in (os.getuid(), 0):
                continue
            control = ControlSocket(path)
            try:
                control.check()
            except LinkLostError:
                control.close()
                raise
            return _Master(path, control, ours=False)
    return None


def _master_words(options: SshOptions, *, asks: bool) -> list[str]:
    given = {**ALWAYS, "ConnectTimeout": f"{options.connect_seconds:.0f}"}
    given |= {} if asks else {"BatchMode": "yes"}
    if options.no_known_hosts:
        files = (f'"{file}"'.replace("%", "%%") for file in options.user_known_hosts)
        given["UserKnownHostsFile"] = " ".join(files)
    words = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    return ["-M", "-N", "-v", *words]
