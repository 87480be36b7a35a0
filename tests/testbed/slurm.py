"""Real Slurm on the hosts of a bed: munged everywhere, slurmctld on one host, slurmd on the others.

::

    with Testbed(3, environment=SLURM_ENVIRONMENT) as bed, Slurm(bed, gpus=2) as slurm:
        slurm.login.exec("srun -N2 hostname")

It starts no host. What it starts lives in the hosts, and so dies with them; its files lie in the
bed's folder and in each host's own /run.
"""

import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from testbed.bed import Testbed
from testbed.host import Host
from testbed.keeper import wait_for

UP_SECONDS = 30.0
MEMORY_MB = 4000
FOLDER = "/run/slurm"
SLURM_ENVIRONMENT = {"SLURM_CONF": f"{FOLDER}/slurm.conf"}
"""What the sessions of a bed need, because nothing of the machine's own /etc is touched."""

OWN_KEY = {"AuthType": "auth/slurm", "CredType": "auth/slurm", "AuthInfo": "use_client_ids"}
"""Settings of a cluster without munge, which Slurm 23.11 and newer can be."""

CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


class Slurm:
    """A Slurm cluster on a bed; usable as a context manager.

    Args:
        bed: Up, with ``SLURM_ENVIRONMENT``. Its last host gets slurmctld and no slurmd, as a login
            host has it.
        gpus: ``Gres=gpu:N`` of every node, backed by device files that every machine has.
        cpus: CPUs of every node, as Slurm believes.
        settings: Further lines of slurm.conf.

    Attributes:
        login: The host with slurmctld.
        nodes: The hosts with slurmd.
    """

    def __init__(
        self,
        bed: Testbed,
        *,
        gpus: int = 0,
        cpus: int = 4,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.bed = bed
        self.login = bed.hosts[-1]
        self.nodes = bed.hosts[:-1]
        self._gpus = gpus
        self._cpus = cpus
        self._settings = dict(settings or {})
        self._key = secrets.token_bytes(128)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Start every daemon and return when all nodes are idle.

        Raises:
            RuntimeError: if they do not become so; the message has the logs.
        """
        for host in (self.login, *self.nodes):
            self._give_files(host)
            start_munged(host)
        _start(self.login, "slurmctld", "-i")
        for node in self.nodes:
            start_slurmd(node)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Return when all nodes are idle.

        Raises:
            RuntimeError: if they do not become so; the message has the logs.
        """
        if not wait_for(self._is_idle, UP_SECONDS):
            raise RuntimeError(f"Slurm did not come up: {self._told()}")

    def down(self) -> None:
        """Cancel what is there and end every daemon; hosts that are off have none."""
        if self.login.is_on:
            self.cancel_all()
        for host in (self.login, *self.nodes):
            if host.is_on:
                for name in ("slurmctld", "slurmd", "munged"):
                    pid = host.path(f"{FOLDER}/{name}.pid")
                    if pid.exists():
                        host.exec(["kill", pid.read_text().strip()], check=False, cwd="/")
                wait_for(lambda here=host: not daemons(here))  # type: ignore[misc]

    @contextmanager
    def allocation(self) -> Iterator[dict[str, str]]:
        """Hold all nodes; give the variables of a shell that stands in the allocation."""
        wide = f"-N{len(self.nodes)}"
        job = self.login.exec(["sbatch", "--parsable", wide, "--wrap", "sleep 600"]).stdout.strip()
        wait_for(lambda: self.show(job).get("JobState") == "RUNNING", UP_SECONDS)
        try:
            yield {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": self.show(job)["NodeList"]}
        finally:
            self.cancel_all()

    def cancel_all(self) -> None:
        """Cancel every job and return when the queue is empty."""
        for job in self.queue():
            self.login.exec(["scancel", job], check=False)
        wait_for(lambda: not self.queue(), UP_SECONDS)

    def queue(self) -> list[str]:
        """Return the jobs that are pending, running or completing."""
        return self.login.exec(["squeue", "-h", "-o", "%A"]).stdout.split()

    def show(self, job: str) -> dict[str, str]:
        """Return what ``scontrol show job`` says."""
        told = self.login.exec(["scontrol", "-o", "show", "job", job]).stdout
        return dict(pair.split("=", 1) for pair in told.split() if "=" in pair)

    def _is_idle(self) -> bool:
        told = self.login.exec(["sinfo", "-h", "-N", "-o", "%T"], check=False).stdout.split()
        return len(told) == len(self.nodes) and set(told) == {"idle"}

    def _give_files(self, host: Host) -> None:
        for folder in (FOLDER, "/run/munge"):
            host.path(folder).mkdir(exist_ok=True)
        for key in (host.path("/run/munge/key"), host.path(f"{FOLDER}/slurm.key")):
            key.write_bytes(self._key)
            key.chmod(0o600)
        self._write_configuration(host)

    def _write_configuration(self, host: Host) -> None:
        folder = host.path(FOLDER)
        (folder / "slurm.conf").write_text(self._slurm_conf())
        (folder / "cgroup.conf").write_text(CGROUP_CONF)
        devices = "\n".join(
            f"NodeName={node.name} Name=gpu File=/dev/tty{index + 1}"
            for node in self.nodes
            for index in range(self._gpus)
        )
        (folder / "gres.conf").write_text(devices + "\n")

    def _slurm_conf(self) -> str:
        login = self.login
        names = ",".join(node.name for node in self.nodes)
        gres = f" Gres=gpu:{self._gpus}" if self._gpus else ""
        settings = {
            "ClusterName": "testbed",
            "SlurmctldHost": f"{login.name}({login.address})",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU_Memory",
            "DefMemPerCPU": "200",
            "MpiDefault": "none",
            "ReturnToService": "2",
            # A machine with fewer CPUs than a node is said to have.
            "SlurmdParameters": "config_overrides",
            "KillWait": "5",
            "SlurmdTimeout": "10",
            "SchedulerParameters": "sched_interval=1,bf_interval=1",
            "StateSaveLocation": f"{FOLDER}/spool",
            "SlurmdSpoolDir": f"{FOLDER}/spool",
            "SlurmctldPidFile": f"{FOLDER}/slurmctld.pid",
            "SlurmdPidFile": f"{FOLDER}/slurmd.pid",
            "SlurmctldLogFile": f"{FOLDER}/slurmctld.log",
            "SlurmdLogFile": f"{FOLDER}/slurmd.log",
            **({"GresTypes": "gpu"} if self._gpus else {}),
            **self._settings,
        }
        nodes = [
            f"NodeName={node.name} NodeAddr={node.address} CPUs={self._cpus} "
            f"RealMemory={MEMORY_MB}{gres} State=UNKNOWN"
            for node in self.nodes
        ]
        partition = f"PartitionName=all Nodes={names} Default=YES State=UP"
        lines = [f"{name}={value}" for name, value in settings.items()]
        return "\n".join([*lines, *nodes, partition, ""])

    def _told(self) -> str:
        logs = [
            (host.name, host.path(f"{FOLDER}/{name}.log"))
            for host in (self.login, *self.nodes)
            for name in ("munged", "slurmctld", "slurmd")
        ]
        return "\n".join(
            f"{name}: {log.read_text(errors='replace')[-1500:]}"
            for name, log in logs
            if log.exists()
        )


def laboratory_slurm(bed: Testbed) -> Slurm:
    """Return a Slurm whose nodes have what it believes, and whose tasks have slurmd's own memlock.

    A node whose munge answers nobody stays up for longer than a check takes, as by default.
    """
    settings = {"PropagateResourceLimitsExcept": "MEMLOCK", "SlurmdTimeout": "300"}
    return Slurm(bed, cpus=os.cpu_count() or 1, settings=settings)


def start_munged(host: Host) -> None:
    """Start munged with the key that the host has."""
    host.exec(
        [
            "munged",
            "--force",
            "--key-file=/run/munge/key",
            "--socket=/run/munge/munge.socket.2",
            f"--pid-file={FOLDER}/munged.pid",
            "--seed-file=/run/munge/seed",
            f"--log-file={FOLDER}/munged.log",
        ],
        cwd="/",
    )


def start_slurmd(host: Host, under: Sequence[str] = ()) -> None:
    """Start slurmd, by a program such as prlimit(1) if one is given."""
    _start(host, *under, "slurmd", "-N", host.name)


def _start(host: Host, *argv: str) -> None:
    host.path(f"{FOLDER}/spool").mkdir(exist_ok=True)
    host.exec(argv, cwd="/", env=SLURM_ENVIRONMENT)


def slurm_version() -> tuple[int, ...]:
    """Return the version of the Slurm here as (year, month); its clients tell none without a configuration."""
    told = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in told.split()[-1].split(".")[:2])


def daemons(host: Host) -> list[str]:
    """Return the command lines of Slurm's daemons that run on a host."""
    names = {"munged", "slurmctld", "slurmd", "slurmstepd:", "slurmstepd"}
    return [
        " ".join(process.argv)
        for process in host.processes()
        if process.argv and os.path.basename(process.argv[0]) in names  # noqa: PTH119
    ]
