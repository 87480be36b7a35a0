"""A cluster on this machine: SSH servers of ours on 127.0.0.1, each a node with a folder and a port of its own.

Everything else reaches them as it reaches any host.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Self

import psutil
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distconsole.config.hosts import demo_cluster
from distconsole.config.paths import replace_file
from distconsole.model.cluster import Cluster
from distconsole.ssh.lean_paramiko import paramiko
from distconsole.ssh.paramiko_transport import WRITING_ERRORS
from distconsole.ssh.sockets import WatchedStream, end_process
from distconsole.ssh.transport import start_shell

MARK = "DISTCONSOLE_EMBEDDED"
"""In the environment of everything that a node starts; by it the node's processes are found."""

ACCEPT_POLL_SECONDS = 0.2
LOGIN_SECONDS = 20.0
END_SECONDS = 3.0
LOOK_SECONDS = 0.05
CHUNK_BYTES = 65536


class EmbeddedCluster:
    """Nodes to try things on in ``folder`` (made, 0700), gone with all that they started when it is closed."""

    def __init__(self, nodes: int = 2, *, folder: Path) -> None:
        self.folder = folder
        self.hosts = tuple(f"node{number}" for number in range(1, nodes + 1))
        self.ssh_config = folder / "ssh_config"
        self.mark = secrets.token_hex(8)
        self._nodes: list[_Node] = []

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cluster(self) -> Cluster:
        """The nodes as ``Session`` takes them."""
        return demo_cluster(self.ssh_config, self.hosts)

    def open(self) -> None:
        """Start the servers and write the files to reach them; raises OSError without a folder or a port."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        user = _make_key(self.folder / "id_ed25519")
        try:
            for name in self.hosts:
                home = self.folder / name
                home.mkdir(exist_ok=True, mode=0o700)
                host_key = _make_key(home / "host_key")
                serve = partial(_Login, host_key, user, self._environment(home))
                self._nodes.append(_Node(name, host_key, serve))
            self._write_ssh_files()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the servers and kill whatever was started through them; the files stay."""
        nodes, self._nodes = self._nodes, []
        for node in nodes:
            node.close()
        _end_by_mark(self.mark)

    def power_cut(self, name: str) -> None:
        """Take one node away as a power cut would: its connections break, its processes are gone."""
        node = next(node for node in self._nodes if node.name == name)
        node.close()
        _end_by_mark(f"{self.mark}-{name}", grace_seconds=0.0)

    def _environment(self, home: Path) -> dict[str, str]:
        """A node's environment: ours, with a cache and a mark of its own, and our Python first."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {
            **{name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"},
            "PATH": path,
            "XDG_CACHE_HOME": str(home / "cache"),
            MARK: f"{self.mark}-{home.name}",
        }

    def _write_ssh_files(self) -> None:
        known_hosts = self.folder / "known_hosts"
        blocks = [f"Host {node.name}\n    Port {node.port}\n" for node in self._nodes]
        keys = [f"[127.0.0.1]:{node.port} {node.public_line}\n" for node in self._nodes]
        known_hosts.write_text("".join(keys))
        self.ssh_config.write_text(
            "".join(blocks)
            + f"""Host *
    HostName 127.0.0.1
    User {getpass.getuser()}
    IdentityFile "{self.folder / "id_ed25519"}"
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile "{known_hosts}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
"""
        )


class _Node:
    """One server: accepts connections, each served by threads of its own."""

    def __init__(
        self, name: str, host_key: paramiko.PKey, serve: Callable[[socket.socket], _Login]
    ) -> None:
        self.name = name
        self.public_line = f"{host_key.get_name()} {host_key.get_base64()}"
        self._serve = serve
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._logins: list[_Login] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(ACCEPT_POLL_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(
            target=self._accept, name=f"embedded:{name}", daemon=True
        )
        self._accepting.start()

    def close(self) -> None:
        self._closing.set()
        self._accepting.join()
        self._listener.close()
        with self._lock:
            logins, self._logins = self._logins, []
        for login in logins:
            login.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Nobody came (TimeoutError), or the peer was gone before we got to it.
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            login = self._serve(connection)
            with self._lock:
                self._logins = [one for one in self._logins if one.alive]
                self._logins.append(login)
            login.start()


class _Login(paramiko.ServerInterface):
    """One connection: publickey for one user, ``exec`` of any command, nothing else."""

    def __init__(
        self,
        host_key: paramiko.PKey,
        user_key: paramiko.PKey,
        environment: dict[str, str],
        connection: socket.socket,
    ) -> None:
        self._user_key = user_key
        self._environment = environment
        self._commands: list[_Command] = []
        self._stream = _ServedStream(connection)
        self._transport = paramiko.Transport(self._stream)  # type: ignore[arg-type]
        self._transport.auth_timeout = LOGIN_SECONDS
        self._transport.add_server_key(host_key)

    @property
    def alive(self) -> bool:
        return bool(self._transport.is_active())

    def start(self) -> None:
        with suppress(paramiko.SSHException):
            self._transport.start_server(event=threading.Event(), server=self)

    def close(self) -> None:
        self._stream.close()
        self._transport.close()
        for command in self._commands:
            end_process(command.process)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        same = secrets.compare_digest(key.asbytes(), self._user_key.asbytes())
        if not same:
            return int(paramiko.common.AUTH_FAILED)
        self._stream.calm()
        return int(paramiko.common.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        """Sessions only: no forwarding."""
        if kind == "session":
            return int(paramiko.common.OPEN_SUCCEEDED)
        return int(paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        try:
            process = start_shell(command, self._environment)
        except OSError:
            return False
        self._commands = [one for one in self._commands if one.process.poll() is None]
        answered = self._stream.answered = threading.Event()
        self._commands.append(_Command(channel, process, answered))
        return True


class _ServedStream(WatchedStream):
    """A client's stream: by the next call of ``recv`` paramiko has answered the request before, and tells nobody."""

    answered = threading.Event()

    def recv(self, size: int) -> bytes:
        self.answered.set()
        return super().recv(size)


@dataclass(slots=True)
class _Command:
    """A process; threads copy its streams to and from a channel, and close it once its request is ``answered``."""

    channel: paramiko.Channel
    process: subprocess.Popen[bytes]
    answered: threading.Event

    def __post_init__(self) -> None:
        threading.Thread(target=self._feed, name="embedded:stdin", daemon=True).start()
        threading.Thread(target=self._serve, name="embedded:stdout", daemon=True).start()

    def _feed(self) -> None:
        assert self.process.stdin is not None
        with suppress(*WRITING_ERRORS):
            while data := self.channel.recv(CHUNK_BYTES):
                rest = memoryview(data)
                while rest:
                    rest = rest[self.process.stdin.write(rest) or 0 :]
        with suppress(OSError):
            self.process.stdin.close()

    def _serve(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        errors = threading.Thread(
            target=self._copy,
            args=(self.process.stderr, self.channel.sendall_stderr),
            name="embedded:stderr",
            daemon=True,
        )
        errors.start()
        self._copy(self.process.stdout, self.channel.sendall)
        errors.join()
        code = self.process.wait()
        self.answered.wait(LOGIN_SECONDS)  # a client takes an end before it for a refusal
        with suppress(*WRITING_ERRORS):
            self.channel.send_exit_status(code if code >= 0 else 128 - code)
            self.channel.close()

    @staticmethod
    def _copy(source: IO[bytes], send: Callable[[bytes], object]) -> None:
        # A channel that is gone takes nothing more; the process then gets EPIPE.
        with source, suppress(*WRITING_ERRORS):
            while data := source.read(CHUNK_BYTES):
                send(data)


def _make_key(path: Path) -> paramiko.PKey:
    """Write a fresh ed25519 key, readable by us alone, and return it."""
    text = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    replace_file(path, text)
    return paramiko.Ed25519Key.from_private_key_file(str(path))


def _end_by_mark(mark: str, grace_seconds: float = END_SECONDS) -> None:
    """End every process with ``mark`` in its environment: first asked, then killed."""
    if grace_seconds > 0:
        for process in _find_by_mark(mark):
            with suppress(psutil.Error):
                process.terminate()
    kill_at = time.monotonic() + grace_seconds
    # Again and again: a process may start another while we look.
    while (left := _find_by_mark(mark)) and time.monotonic() < kill_at + END_SECONDS:
        for process in left if time.monotonic() >= kill_at else []:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(LOOK_SECONDS)


def _find_by_mark(mark: str) -> list[psutil.Process]:
    """Return the processes with the mark in their environment, which a zombie has lost."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            value = process.environ().get(MARK, "")
            if value == mark or value.startswith(f"{mark}-"):
                found.append(process)
    return found
