"""One host of the bed: switching it on and off, running programs on it, looking into it.

It injects no fault but the loss of power; ``testbed.host`` has the others.
"""

import os
import signal
import socket as sockets
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from testbed.claims import FOLDERS, PREFIX
from testbed.keeper import wait_for
from testbed.lifeline import Lifeline
from testbed.sshfiles import find_sshd
from testbed.switch import Socket, Switch

HOME = "/run/home"
"""The user's home on every host; each host has its own, empty at power-on."""

BOOT_SECONDS = 20.0
BOOT = Path(__file__).with_name("boot.sh")
NAMESPACES = ("--net", "--uts", "--pid", "--mount", "--ipc", "--fork", "--kill-child")
PRIVATE_TMP_PREFIXES = (PREFIX, "distconsole-", "ompi.", "tmux-", "ssh-", "torchelastic_", ".")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a host; ``pid`` is the number seen from outside, ``host_pid`` from inside."""

    pid: int
    host_pid: int
    argv: tuple[str, ...]


class Machine:
    """A host, on or off. Made by ``Testbed``.

    Attributes:
        name: Its hostname and its ssh_config alias.
        address: Where its sshd answers (network ``mgmt``, eth0).
        train_address: Its address on the network that only hosts are on (``train``, eth1).
        files: Its configuration on the machine outside.
    """

    home = HOME

    def __init__(
        self, name: str, socket: Socket, lifeline: Lifeline, switch: Switch, tmp_bytes: int
    ) -> None:
        self.name = name
        self.address = socket.address
        self.train_address = socket.train_address
        self.files = lifeline.folder / name
        self.tmp_bytes = tmp_bytes
        self._socket = socket
        self._lifeline = lifeline
        self._switch = switch
        self._pid = 0

    @property
    def is_on(self) -> bool:
        return self._pid > 0

    @property
    def pid(self) -> int:
        """The host's first process, as seen from outside.

        Raises:
            RuntimeError: if the host is off.
        """
        if not self._pid:
            raise RuntimeError(f"{self.name} is off")
        return self._pid

    def power_cut(self) -> None:
        """Take the power: silence on the network first, so that no peer gets a FIN or RST."""
        cut_power([self])

    def power_on(self) -> None:
        """Boot with empty folders and every fault of the host itself forgotten."""
        boot([self])

    def popen(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program (or a line for bash) on the host; ``options`` are those of Popen."""
        argv = ["bash", "-c", command] if isinstance(command, str) else command
        enter = ["nsenter", "--target", str(self.pid), *NAMESPACES[:5], "--"]
        go = ["sh", "-c", 'cd "$0" && exec "$@"', cwd or HOME]
        return subprocess.Popen(
            [*enter, *go, *argv],
            env={**self.environment(), **(env or {})},
            start_new_session=True,
            **options,
        )

    def exec(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        timeout: float = 30.0,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program (or a line for bash) on the host, not over SSH.

        Raises:
            subprocess.CalledProcessError: if it fails and ``check`` is set.
            subprocess.TimeoutExpired: after ``timeout`` seconds; the program is killed.
        """
        process = self.popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def environment(self) -> dict[str, str]:
        """Return the variables that a program on the host starts with."""
        pairs = (self.files / "environment").read_text().splitlines()
        return dict(pair.split("=", 1) for pair in pairs)

    def path(self, path: str) -> Path:
        """Return where a path of the host is seen from outside, while the host is on."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def processes(self, text: str = "") -> list[Process]:
        """Return the host's processes whose command line has ``text``.

        Its own are left out: the first process, and sshd's listener; sessions are not.
        """
        return [
            process
            for process in self._all_processes()
            if text in " ".join(process.argv) and not is_part_of_host(process)
        ]

    def signal(self, number: int, text: str) -> list[Process]:
        """Send a signal to every process whose command line has ``text``; return those."""
        met = self.processes(text)
        _signal_each(met, number)
        return met

    def freeze(self) -> None:
        """Stop every process at once, sshd included: the host answers pings, nothing else."""
        _signal_each(self._all_processes(), signal.SIGSTOP)

    def thaw(self) -> None:
        _signal_each(self._all_processes(), signal.SIGCONT)

    def _all_processes(self) -> Iterator[Process]:
        home = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if (entry / "ns/pid").readlink() == home:
                        yield describe(entry)

    def _boot_argv(self) -> list[str]:
        return [
            "unshare",
            *NAMESPACES,
            "--mount-proc",
            "sh",
            str(BOOT),
            self.name,
            str(self.files),
            HOME,
            str(self.tmp_bytes),
            find_sshd() or "sshd",
            "\n".join(shared_folders(self.files.parent)),
        ]


def boot(machines: Sequence[Machine]) -> None:
    """Switch machines on together and return when each one's sshd answers.

    Raises:
        RuntimeError: if one is not up in ``BOOT_SECONDS``; the message has its log.
    """
    machines = [machine for machine in machines if not machine.is_on]
    for machine in machines:
        machine._pid = machine._lifeline.start(machine.name, machine._boot_argv())
    if not machines:
        return
    machines[0]._switch.plug_in([(machine._socket, machine.pid) for machine in machines])
    for machine in machines:
        if not wait_for(partial(has_booted_or_died, machine), BOOT_SECONDS) or has_died(machine):
            raise RuntimeError(f"{machine.name} did not come up: {logs_of(machine)}")


def has_booted_or_died(machine: Machine) -> bool:
    return answers(machine.address) or has_died(machine)


def has_died(machine: Machine) -> bool:
    return not Path(f"/proc/{machine.pid}/root/proc").exists()


def cut_power(machines: Sequence[Machine]) -> None:
    """Take the power of several machines in the same instant."""
    machines = [machine for machine in machines if machine.is_on]
    if machines:
        machines[0]._switch.unplug(machine._socket for machine in machines)
        machines[0]._lifeline.stop(*(machine.name for machine in machines))
    for machine in machines:
        machine._pid = 0


def shared_folders(bed_folder: Path) -> list[str]:
    """Return the folders of /tmp that every host sees, as on a network filesystem, as fstab(5) has names.

    They are those that are there when the host is switched on, because a clone, a virtual
    environment or a test's folder may lie there; what hosts make in /tmp is their own.
    """
    return [
        entry.name.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
        for entry in FOLDERS.iterdir()
        if entry.is_dir() and not entry.is_symlink()
        if entry == bed_folder or not entry.name.startswith(PRIVATE_TMP_PREFIXES)
    ]


def answers(address: str, port: int = 22) -> bool:
    """Tell whether an SSH server greets at this address."""
    try:
        with sockets.create_connection((address, port), timeout=0.5) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _signal_each(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def is_part_of_host(process: Process) -> bool:
    return (
        process.host_pid == 1
        or process.argv == ("sleep", "1000000")
        or any("sshd" in word and "[listener]" in word for word in process.argv)
    )


def describe(entry: Path) -> Process:
    status = (entry / "status").read_text()
    pids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return Process(int(entry.name), int(pids.split()[-1]), tuple(argv))


def logs_of(machine: Machine) -> str:
    logs = (machine.files.parent / f"{machine.name}.log", machine.files / "sshd.log")
    return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())
