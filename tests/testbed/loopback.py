"""Hosts without root: an sshd of this user on a loopback port for each; they share everything else.

A host has its own home and node folder, but no network, name, /tmp or processes of its own, so the
only faults are the loss of power and what files can do. Tests that need more are marked ``testbed``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from testbed.claims import claim_folder
from testbed.host import session_path
from testbed.keeper import marked_processes, wait_for
from testbed.lifeline import Lifeline
from testbed.machine import BOOT_SECONDS, answers
from testbed.programs import Programs, argv_of
from testbed.reached import Reached
from testbed.sshfiles import (
    Alias,
    find_sshd,
    known_hosts_line,
    make_key,
    ssh_config,
    sshd_config,
    this_user,
)

MARKER = "DISTCONSOLE_TESTBED_HOST"
PRIVILEGE_SEPARATION = Path("/run/sshd")


class LoopbackHost(Programs):
    """One sshd on 127.0.0.1. Made by ``LoopbackBed``.

    Attributes:
        home: The home of its sessions.
        node_dir: A folder for what the agent would put into /tmp, which these hosts share.
    """

    address = "127.0.0.1"

    def __init__(self, name: str, port: int, lifeline: Lifeline, environment: Mapping[str, str]):
        self.name = name
        self.port = port
        self.files = lifeline.folder / name
        self.home = str(self.files / "home")
        self.node_dir = str(self.files / "n")
        self._lifeline = lifeline
        self._mark = f"{lifeline.folder.name}/{name}"
        self._environment = {**environment, "HOME": self.home, MARKER: self._mark}
        self._on = False

    @property
    def is_on(self) -> bool:
        return self._on

    def power_on(self) -> None:
        """Start sshd with an empty home.

        Raises:
            RuntimeError: if it does not answer in ``BOOT_SECONDS``.
        """
        if self._on:
            return
        for folder in (self.home, self.node_dir):
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True, mode=0o700)
        (self.files / "sshd_config").write_text(
            sshd_config(
                host_key=self.files / "host_key",
                authorized_keys=self.files.parent / "id_ed25519.pub",
                listen=f"ListenAddress {self.address}:{self.port}",
                pid_file=self.files / "sshd.pid",
                environment=self._environment,
            )
        )
        words = [find_sshd() or "sshd", "-D", "-e", "-f", str(self.files / "sshd_config")]
        self._lifeline.start(self.name, own_run_folder(words))
        self._on = True
        if not wait_for(partial(answers, self.address, self.port), BOOT_SECONDS):
            log = (self.files.parent / f"{self.name}.log").read_text(errors="replace")
            raise RuntimeError(f"{self.name} did not come up: {log[-2000:]}")

    def power_cut(self) -> None:
        """Kill every process that was started on the host; peers are told, by the kernel."""
        self._lifeline.stop(self.name)
        self._on = False

    def popen(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program (or a line for bash) with the host's environment."""
        return subprocess.Popen(
            argv_of(command),
            env={**self._environment, **(env or {})},
            cwd=cwd or self.home,
            start_new_session=True,
            **options,
        )

    def path(self, path: str) -> Path:
        """Return ``path``: these hosts share the machine's files."""
        return Path(path)

    def bashrc(self, text: str) -> None:
        """Set ~/.bashrc, which Debian's bash reads for ``ssh host command`` too."""
        Path(self.home, ".bashrc").write_text(text)

    def processes(self, text: str = "") -> list[int]:
        """Return the processes started on the host whose command line has ``text``."""
        found = []
        for pid in marked_processes(f"{MARKER}={self._mark}\0"):
            with suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if text in argv and "[listener]" not in argv and str(self.files) not in argv:
                    found.append(pid)
        return found

    def signal(self, number: int, text: str) -> list[int]:
        """Send a signal to the host's processes whose command line has ``text``."""
        met = self.processes(text)
        for pid in met:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return met

    def freeze(self) -> None:
        for pid in marked_processes(f"{MARKER}={self._mark}\0"):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in marked_processes(f"{MARKER}={self._mark}\0"):
            os.kill(pid, signal.SIGCONT)


class LoopbackBed(Reached):
    """The interface of ``Testbed`` as far as loopback goes; usable as a context manager.

    Args:
        hosts: How many.
        prefix: What their names begin with.
        environment: Further variables of every session.
        python: The interpreter whose folder comes first on the sessions' PATH.
    """

    __test__ = False

    def __init__(
        self,
        hosts: int = 2,
        *,
        prefix: str = "node",
        environment: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
    ) -> None:
        self._names = [f"{prefix}{number}" for number in range(1, hosts + 1)]
        self._environment = {"PATH": session_path(Path(python).parent), **(environment or {})}
        self._lifeline: Lifeline | None = None
        self.hosts: list[LoopbackHost] = []

    def up(self) -> None:
        """Start every host.

        Raises:
            RuntimeError: if there is no sshd, or one does not start.
        """
        if obstacle := missing_on_loopback():
            raise RuntimeError(f"no loopback bed here: {obstacle}")
        self.folder = claim_folder()
        try:
            marker = f"{MARKER}={self.folder.name}/"
            self._lifeline = Lifeline(self.folder, marker=marker)
            self._lay_out(self._lifeline)
            for host in self.hosts:
                host.power_on()
        except BaseException:
            self.down()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def down(self) -> None:
        """Leave nothing; may be called several times."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            lifeline.close()
            shutil.rmtree(lifeline.folder, ignore_errors=True)
        self.hosts = []

    def reset(self) -> None:
        """Make every host as it was at the start."""
        for host in self.hosts:
            host.power_cut()
            host.power_on()

    def _lay_out(self, lifeline: Lifeline) -> None:
        self.ssh_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"
        self.identity = self.folder / "id_ed25519"
        make_key(self.identity, "testbed")
        ports = free_ports(len(self._names))
        self.hosts = [
            LoopbackHost(name, port, lifeline, self._environment)
            for name, port in zip(self._names, ports, strict=True)
        ]
        known = []
        for host in self.hosts:
            host.files.mkdir()
            public = make_key(host.files / "host_key", host.name)
            known.append(known_hosts_line(public, (host.address,), host.port))
        self.known_hosts.write_text("".join(known))
        self.ssh_config.write_text(
            ssh_config(
                [Alias(host.name, host.address, host.port) for host in self.hosts],
                user=this_user().pw_name,
                identity=self.identity,
                known_hosts=self.known_hosts,
            )
        )


def own_run_folder(words: Sequence[str]) -> list[str]:
    """Give root's sshd the folder that it insists on, in a mount namespace of its own."""
    if os.geteuid() != 0 or PRIVILEGE_SEPARATION.exists():
        return list(words)
    prepare = f"mount -t tmpfs host-run /run && mkdir {PRIVILEGE_SEPARATION} && exec "
    return ["unshare", "--mount", "sh", "-c", prepare + shlex.join(words)]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def missing_on_loopback() -> str:
    """Return why loopback hosts cannot run on this machine; empty when they can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux (/proc)"
    if find_sshd() is None or shutil.which("ssh") is None:
        return "needs OpenSSH's ssh and sshd"
    return ""
