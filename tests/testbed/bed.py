"""N hosts on one machine, each with its own namespaces and real OpenSSH; it runs no training.

::

    with Testbed(hosts=2) as bed:
        subprocess.run(["ssh", "-F", bed.ssh_config, "node1", "hostname"])
        bed.hosts[1].power_cut()
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from testbed.claims import Claim, claim
from testbed.host import Host, session_path
from testbed.lifeline import Lifeline
from testbed.machine import HOME, boot, cut_power
from testbed.sshfiles import (
    Alias,
    find_sshd,
    known_hosts_line,
    make_key,
    ssh_config,
    sshd_config,
    this_user,
    write_accounts,
)
from testbed.switch import Socket, Switch

MAX_HOSTS = 250
TMP_BYTES = 1 << 30
PROGRAMS = ("ip", "tc", "nsenter", "unshare", "mount", "hostname", "ssh", "ssh-keygen")


class Testbed:
    """A bed of hosts, usable as a context manager.

    Args:
        hosts: How many.
        prefix: What their names begin with; a number from 1 follows.
        node_ssh: Whether the hosts can ssh to one another, as mpirun by itself needs it.
        environment: Further variables of every session on the hosts.
        python: The interpreter whose folder comes first on the sessions' PATH.
        shell: The user's shell.
        tmp_bytes: Size of each host's /tmp, /dev/shm and home.

    Attributes:
        fill_cache: Writes what lies in each host's ``~/.cache`` at power-on, if there is something.
        hosts: The hosts, in order.
        ssh_config: Knows ``node1`` …, and ``node2-behind`` … : the same hosts at addresses that
            the console reaches only by ProxyJump over the first.
        known_hosts: The hosts' real keys.
        identity: The user's private key.
        console_address: The address at which hosts see the controlling process.
        uplink: The network interface of that address.
    """

    __test__ = False
    fill_cache: ClassVar[Callable[[Path], None] | None] = None

    def __init__(
        self,
        hosts: int = 2,
        *,
        prefix: str = "node",
        node_ssh: bool = False,
        environment: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
        shell: str = "/bin/bash",
        tmp_bytes: int = TMP_BYTES,
    ) -> None:
        if not 1 <= hosts <= MAX_HOSTS:
            raise ValueError(f"a testbed has 1 to {MAX_HOSTS} hosts, not {hosts}")
        self._names = [f"{prefix}{number}" for number in range(1, hosts + 1)]
        self._node_ssh = node_ssh
        self._environment = {
            "PATH": session_path(Path(python).parent),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **(environment or {}),
        }
        self._shell = shell
        self._tmp_bytes = tmp_bytes
        self._lifeline: Lifeline | None = None
        self.hosts: list[Host] = []

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def ssh_options(self) -> list[str]:
        """The words for an ``ssh`` or ``scp`` command line."""
        return ["-F", str(self.ssh_config)]

    def ssh(
        self, host: str, command: str, *, check: bool = True, timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host over real SSH."""
        return subprocess.run(
            ["ssh", *self.ssh_options, host, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout,
        )

    @property
    def host_names(self) -> list[str]:
        return [host.name for host in self.hosts]

    @property
    def names(self) -> str:
        """The hosts as ``--hosts`` takes them."""
        return ",".join(self.host_names)

    def up(self) -> None:
        """Claim the networks and switch every host on.

        Raises:
            RuntimeError: if the bed cannot run here, or a host does not come up.
        """
        if obstacle := missing():
            raise RuntimeError(f"no testbed here: {obstacle}")
        claimed = claim()
        try:
            self._lifeline = Lifeline(
                claimed.folder, prefix=["unshare", "--net"], uplink=claimed.uplink
            )
            self._lay_out(claimed, self._lifeline)
            boot(self.hosts)
        except BaseException:
            self.down()
            shutil.rmtree(claimed.folder, ignore_errors=True)
            raise

    def down(self) -> None:
        """Leave nothing; may be called several times."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            lifeline.close()
            shutil.rmtree(lifeline.folder, ignore_errors=True)
        self.hosts = []

    def reset(self, *hosts: Host) -> None:
        """Make hosts, or all, as they were at the start, by power: nothing on them survives."""
        chosen = hosts or self.hosts
        self.restore_console()
        cut_power(chosen)
        for host in chosen:
            self._configure(host)
        boot(chosen)

    def power_cut(self, *hosts: Host) -> None:
        """Cut the power of several hosts in the same instant; of all when none is named."""
        cut_power(hosts or self.hosts)

    def cut_console(self) -> None:
        """Let the console lose every host, silently; the hosts keep reaching one another."""
        self._switch.set_uplink(connected=False)

    def restore_console(self) -> None:
        self._switch.set_uplink(connected=True)

    @property
    def keeper_pid(self) -> int:
        """The process that the bed ends with.

        Raises:
            RuntimeError: if the bed is down.
        """
        if self._lifeline is None:
            raise RuntimeError("the testbed is down")
        return self._lifeline.pid

    def _lay_out(self, claimed: Claim, lifeline: Lifeline) -> None:
        self.folder = claimed.folder
        self.console_address = claimed.console_address
        self.uplink = claimed.uplink
        self.ssh_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"
        self.identity = self.folder / "id_ed25519"
        make_key(self.identity, "testbed")
        self._switch = Switch(lifeline.pid, claimed, os.getpid(), len(self._names))
        self.hosts = [
            Host(name, Socket.of(claimed, number), lifeline, self._switch, self._tmp_bytes)
            for number, name in enumerate(self._names, 1)
        ]
        (self.folder / "hosts").write_text(self._etc_hosts())
        known = []
        for host in self.hosts:
            (host.files / "etc").mkdir(parents=True)
            public = make_key(host.files / "host_key.original", host.name)
            names = (host.name, f"{host.name}-train", host.address, host.train_address)
            known.append(known_hosts_line(public, names))
        self.known_hosts.write_text("".join(known))
        self.ssh_config.write_text(self._ssh_config())
        for host in self.hosts:
            self._configure(host)

    def _configure(self, host: Host) -> None:
        """Write a host's files as they are when nothing is wrong with it."""
        shutil.copy(host.files / "host_key.original", host.files / "host_key")
        (host.files / "etc/hostname").touch()
        host.mend_etc_hosts()
        host.accept_keys()
        host.forget_environment()
        write_accounts(host.files / "etc", HOME, self._shell)
        user = this_user().pw_name
        variables = {**self._environment, "HOME": HOME, "USER": user, "LOGNAME": user}
        (host.files / "environment").write_text(
            "".join(f"{name}={value}\n" for name, value in variables.items())
        )
        (host.files / "sshd_config").write_text(
            sshd_config(
                host_key=host.files / "host_key",
                authorized_keys=host.files / "authorized_keys",
                listen="Port 22",
                pid_file=Path("/run/sshd.pid"),
                environment=self._environment,
            )
        )
        shutil.rmtree(host.files / "home", ignore_errors=True)
        if self._node_ssh:
            self._give_keys(host)
        if Testbed.fill_cache is not None:
            Testbed.fill_cache(host.files / "home/.cache")

    def _give_keys(self, host: Host) -> None:
        folder = host.files / "home/.ssh"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copy(self.identity, folder / "id_ed25519")
        shutil.copy(self.known_hosts, folder / "known_hosts")

    def _etc_hosts(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for host in self.hosts:
            lines += [f"{host.address} {host.name}", f"{host.train_address} {host.name}-train"]
        return "\n".join([*lines, f"{self.console_address} console", ""])

    def _ssh_config(self) -> str:
        first, *others = self.hosts
        aliases = [Alias(host.name, host.address) for host in self.hosts]
        aliases += [
            Alias(f"{host.name}-behind", host.train_address, jump=first.name) for host in others
        ]
        return ssh_config(
            aliases, user=this_user().pw_name, identity=self.identity, known_hosts=self.known_hosts
        )


def missing() -> str:
    """Return why a bed cannot run on this machine; empty when it can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux namespaces"
    if os.geteuid() != 0:
        return "needs root"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    lacking += [] if find_sshd() else ["sshd"]
    if lacking:
        return f"needs {', '.join(lacking)}"
    return "" if _may_unshare() else "needs the right to make namespaces"


def _may_unshare() -> bool:
    flags: Sequence[str] = ("--net", "--uts", "--pid", "--mount", "--ipc", "--fork")
    link = ["ip", "link", "add", "name", "trial0", "type", "veth", "peer", "name", "trial1"]
    done = subprocess.run(
        ["unshare", *flags, *link],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=10,
    )
    return done.returncode == 0
