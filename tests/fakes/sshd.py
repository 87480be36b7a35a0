"""A real OpenSSH server on a loopback port, with keys and folders of its own. It isolates nothing."""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from distconsole.model.cluster import Host
from distconsole.ssh.choosing import ChosenTransport
from distconsole.ssh.transport import Channel
from suite.programs import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _read_version() -> tuple[int, int]:
    """Return the version of OpenSSH's sshd; 0.0 if there is none. Before 9.2 it names itself only in its usage."""
    if SSHD is None:
        return 0, 0
    shown = subprocess.run([SSHD, "-V"], check=False, capture_output=True, text=True, timeout=20)
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", shown.stderr + shown.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


SSHD_VERSION = _read_version()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for ``condition``; fail when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def connected(transport: ChosenTransport, host: Host) -> Iterator[Any]:
    """Yield a connection to ``host``, then close it and ``transport``."""
    with closing(transport), closing(transport.connect(host)) as connection:
        yield connection


def stdout_of(channel: Channel) -> bytes:
    return b"".join(iter(lambda: channel.recv(65536, 20), b""))


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """Make a key; return its public line without the comment."""
    short = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *short, "-N", passphrase, "-C", "", "-f", str(path)],
        check=True,
        timeout=60,
    )
    return path.with_name(path.name + ".pub").read_text().strip()


def end_processes_of(folder: Path) -> None:
    """End what was started with a path under ``folder`` on its command line: agents outlive their link."""
    for _ in range(50):
        left = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and any(str(folder) in w for w in process.cmdline()):
                    left.append(process)
        if not left:
            return
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.2)


class SshServer:
    """One sshd with keys of its own, and an ssh_config that reaches it as ``node``.

    Args:
        lines: Of its configuration; they win.
        matches: Match blocks, which stand behind all else.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host_key: str = "ed25519",
        lines: str = "",
        matches: str = "",
        program: str | None = SSHD,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.cache = folder / "cache"
        self.node_dir = folder / "node"
        self.user_key = folder / "id"
        self.public = make_key(self.user_key)
        self.host_public = make_key(folder / "host", host_key)
        (folder / "authorized").write_text(self.public + "\n")
        self.port = free_port()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_public}\n")
        self._lines, self._matches, self.program = lines, matches, program
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.ssh_config = folder / "ssh_config"
        self.write_config()

    def write_config(self, more: str = "", name: str = "node") -> str:
        """Write the ssh_config, ``more`` lines winning; return its path."""
        self.ssh_config.write_text(
            f"""Host {name}
{more}
    HostName 127.0.0.1
    Port {self.port}
    User {getpass.getuser()}
    IdentityFile {self.user_key}
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {self.known_hosts}
    GlobalKnownHostsFile /dev/null
"""
        )
        return str(self.ssh_config)

    def start(self) -> "SshServer":
        """Start it and wait until it listens, without a connection: one without a login counts (PerSourcePenalties).

        With SHLVL, bash leaves out the developer's own .bashrc; a key exchange after quantum computers takes 60 ms.
        """
        config = self.folder / "sshd_config"
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        config.write_text(
            f"""{self._lines}
ListenAddress 127.0.0.1:{self.port}
HostKey {self.folder / "host"}
AuthorizedKeysFile {self.folder / "authorized"}
PidFile {self.folder / "pid"}
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
{"" if "MaxStartups" in self._lines else "MaxStartups 100:30:200"}
SetEnv XDG_CACHE_HOME={self.cache} PATH={path} SHLVL=1
KexAlgorithms -sntrup*,mlkem*
{self._matches}
"""
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        assert self.program is not None
        log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [self.program, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env=self._environ,
        )
        log.close()
        wait_until(self._listens)
        return self

    def cut(self) -> None:
        """Kill the server and every session of it at once."""
        if self._process is None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        self._process = None

    def cut_sessions(self) -> None:
        """Kill the sessions; the server goes on, and so does what they started."""
        for child in psutil.Process(self._process.pid).children():
            with suppress(psutil.Error):
                # Since OpenSSH 9.8 root, too, has a process with privileges and one that serves the connection.
                parts = [each for each in child.children() if each.name() == child.name()]
                for part in (child, *parts):
                    part.kill()

    def sessions(self) -> int:
        """Return how many connections it has, with those that have yet to log in."""
        return len(psutil.Process(self._process.pid).children())

    def freeze_sessions(self) -> None:
        """Stop the sessions, also those that begin meanwhile: their connections stay open, and nothing answers."""
        frozen: set[psutil.Process] = set()
        while begun := {*psutil.Process(self._process.pid).children(recursive=True)} - frozen:
            for child in begun:
                with suppress(psutil.Error):
                    child.suspend()
            frozen |= begun

    def stop(self) -> None:
        """End the server and what was started through it."""
        self.cut()
        end_processes_of(self.folder)

    def _listens(self) -> bool:
        return "Server listening on" in (self.folder / "log").read_text()


def behind(hop: SshServer, last: SshServer, more: str = "") -> str:
    """Return a configuration by which ``last`` is reached through ``hop``."""
    text = Path(last.write_config(f"{more}\n    ProxyJump hop")).read_text()
    hop.write_config(name="hop")
    last.ssh_config.write_text(text + hop.ssh_config.read_text())
    return str(last.ssh_config)


@contextmanager
def port_that(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port at which something else than SSH answers."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)

        def serve() -> None:
            held = []
            while not over.is_set():
                with suppress(TimeoutError):
                    connection, _ = listener.accept()
                    held.append(connection)
                    answer(connection)
            for connection in held:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()
