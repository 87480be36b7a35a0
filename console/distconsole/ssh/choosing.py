"""Chooses the SSH of a connection: paramiko, or the system's ssh for logins that paramiko cannot do.

paramiko has keys alone, and costs a tenth of ssh's time. So it goes first, unless the user, or ssh_config, shows that
it cannot be enough.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from distconsole.config.spelling import nearest
from distconsole.errors import AuthError, NodeError, ResolveError
from distconsole.model.cluster import Host, TransportName
from distconsole.ssh.asking import PERSON, Person
from distconsole.ssh.jumps import way_to
from distconsole.ssh.openssh import OpensshTransport, has_master
from distconsole.ssh.ssh_config import UNKNOWN_CRITERION, SshConfig, SshOptions
from distconsole.ssh.transport import Connection

if TYPE_CHECKING:
    from distconsole.ssh.paramiko_transport import ParamikoTransport

ASKED_FOR = frozenset({"password", "keyboard-interactive"})
"""Ways to log in that need a person."""
ASK_IN_TERMINAL = "started in a terminal, distconsole asks for the password or the code"
YES = ("yes", "true")
KERBEROS = "gssapi-with-mic"
ALGORITHMS = {"pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes"}
"""Keywords of ssh_config that allow algorithms for a key, such as SHA-1 for old servers."""
READ_BY_PARAMIKO = re.compile(rb"-----BEGIN (?:OPENSSH|RSA|EC) PRIVATE KEY-----")


class ChosenTransport:
    """Connections by ssh_config(5), or by this ``ssh_config`` alone; see ``transport.Transport``."""

    def __init__(self, ssh_config: str | None = None, person: Person = PERSON) -> None:
        self._config = SshConfig(ssh_config)
        self._person = person
        self._openssh = OpensshTransport(self._config, ssh_config, person)
        self._paramiko: ParamikoTransport | None = None
        self._loading = threading.Lock()
        self._refused: set[str] = set()
        """Hosts, and those on the way to them, where ssh could log in and paramiko could not."""

    def connect(self, host: Host) -> Connection:
        """Reach ``host`` by ssh_config; its own user and port win over that.

        Raises ResolveError, ConnectError, UnknownHostKeyError, ChangedHostKeyError or AuthError,
        ConfigError if an ssh_config cannot be understood.
        """
        way = way_to(host, self._config)
        try:
            if self._wants_openssh(host, way):
                return self._openssh.connect(host, way[0])
            return self._connect_by_keys(host, way)
        except ResolveError as error:
            plain = (each for each in self._config.names if not set(each) & set("*?!"))
            near = nearest(host.name, (each for each in plain if each != host.name))
            hint = f"did you mean {near}, which ssh_config has?" if near else error.hint
            raise ResolveError(error.message, hint) from None

    def who_may_ask(self, hosts: Sequence[Host]) -> list[Host]:
        """Return the hosts that start with the system's ssh, so that a person may be asked."""
        found = [host for host in hosts if host.transport == TransportName.OPENSSH]
        if found or (hosts and self._config.says_how_to_log_in(hosts[0])):
            found = [
                host for host in hosts if self._wants_openssh(host, way_to(host, self._config))
            ]
        return found

    def prepare(self, hosts: Iterable[Host]) -> None:
        """Load the modules that ``hosts`` need, here and now: several threads would only take turns at it."""
        if any(host.transport != TransportName.OPENSSH for host in hosts):
            self._load_paramiko()

    def close(self) -> None:
        self._openssh.close()
        if self._paramiko is not None:
            self._paramiko.close()

    def _wants_openssh(self, host: Host, way: list[SshOptions]) -> bool:
        if host.transport == TransportName.PARAMIKO:
            return False
        if host.transport == TransportName.OPENSSH:
            return True
        if not self._refused.isdisjoint(each.alias for each in way):
            return True
        return any(is_beyond_paramiko(each) or has_master(each) for each in way)

    def _load_paramiko(self) -> ParamikoTransport:
        # The import takes a tenth of a second, which a host that asks for ssh does not need.
        from distconsole.ssh.paramiko_transport import ParamikoTransport  # noqa: PLC0415

        with self._loading:
            if self._paramiko is None:
                self._paramiko = ParamikoTransport(self._config)
            return self._paramiko

    def _connect_by_keys(self, host: Host, way: list[SshOptions]) -> Connection:
        try:
            return self._load_paramiko().connect(way[0])
        except NodeError as error:
            if host.transport == TransportName.PARAMIKO or shutil.which("ssh") is None:
                raise
            if not isinstance(error, AuthError):
                if not error.ssh_may:
                    raise
                return self._connect_by_ssh(host, way)
            by_key = error
        asks = bool(ASKED_FOR & set(by_key.offers))
        algorithms = any(ALGORITHMS & each.login.keys() for each in way)
        kerberos = any(each.login.get("gssapiauthentication") in YES for each in way)
        by_ticket = kerberos and KERBEROS in by_key.offers
        if not (by_key.ssh_may or algorithms or by_ticket or (asks and self._person.can_answer())):
            more = f"\n{ASK_IN_TERMINAL}" if asks else ""
            raise AuthError(by_key.message, f"{by_key.hint}{more}", by_key.offers)
        try:
            return self._connect_by_ssh(host, way)
        except AuthError as error:
            hint = f"{error.hint}\nto be let in by key: {by_key.hint}"
            raise AuthError(error.message, hint, error.offers) from None

    def _connect_by_ssh(self, host: Host, way: list[SshOptions]) -> Connection:
        connection = self._openssh.connect(host, way[0])
        self._refused.update(each.alias for each in way)
        return connection


def is_beyond_paramiko(options: SshOptions) -> bool:
    """Return True if ssh_config asks for another login than by a key in a file or an agent, or for one that only ssh can judge."""
    said = options.login
    methods = said.get("preferredauthentications", "publickey")
    return (
        said.get("pkcs11provider", "none") != "none"
        or said.get("securitykeyprovider", "internal") != "internal"
        or said.get("hostbasedauthentication") in YES
        or said.get("pubkeyauthentication", "yes") not in (*YES, "unbound", "host-bound")
        or "publickey" not in methods
        or said.get("canonicalizehostname", "no") not in ("no", "none")
        or said.get("knownhostscommand", "none") != "none"
        or said.get("bindinterface", "none") != "none"
        or said.get("verifyhostkeydns") in YES
        or said.get("proxyusefdpass") in YES
        or said.get("revokedhostkeys", "none") != "none"
        or said.get("checkhostip") in YES
        or UNKNOWN_CRITERION in said
        or (options.identities_given and options.identity_files[0].endswith("_sk"))
        or (options.identity_agent is None and has_foreign_keys_alone(options))
    )


def has_foreign_keys_alone(options: SshOptions) -> bool:
    """Whether no private key here is of a form that paramiko reads (PKCS #8 is none), and there is one."""
    read = []
    for path in options.identity_files:
        with suppress(OSError), Path(path).open("rb") as file:
            read.append(READ_BY_PARAMIKO.match(file.read(64)) is not None)
    return bool(read) and not any(read)
