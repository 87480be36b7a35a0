"""What a run may not leave on its hosts: processes, open ports, shared memory, temporary files. It cleans nothing."""

import re
from collections.abc import Sequence
from pathlib import Path

from distconsole_agent.system.command_lines import is_ours, read_target
from testbed.host import Host
from testbed.keeper import wait_for
from testbed.slurm import Slurm

PORTS = (22, 6817, 6818)
"""Those of sshd, slurmctld and slurmd."""

GONE_SECONDS = 20.0
LISTENS = "0A"

AGENT = "pyz agent"
"""Stays beside ssh sessions: it serves whoever comes next."""

BESIDE = re.compile(
    r"(?:\S*/|: )?(?:sshd(?:-session|-auth)?|munged|slurmctld|slurmd|slurmscriptd)\b.*"
)
"""By the titles that they give themselves, too: ``sshd: root@notty``."""


def remains(host: Host) -> list[str]:
    """Return what is on a host beyond its agent."""
    found = [
        f"process: {' '.join(process.argv)}"
        for process in host.processes()
        if any(process.argv) and not _stays(process.argv)
    ]
    found += [f"port {port}" for port in listening(host) if port not in PORTS]
    found += [f"shared memory: {name}" for name in names(host.path("/dev/shm"))]
    for runs in host.path("/dev/shm").glob("distconsole-*"):
        found += [f"rings: {name}" for name in names(runs)]
    found += [f"/tmp/{name}" for name in names(host.path("/tmp")) if name.startswith("ompi.")]
    return [each for each in found if each != "shared memory: distconsole-0"]


def _stays(argv: Sequence[str]) -> bool:
    if is_ours(argv):
        return read_target(argv).arguments[:1] in (("agent",), ("bridge",))
    return tuple(argv) == ("sleep", "1000000") or BESIDE.match(argv[0]) is not None


def gone(*hosts: Host) -> list[str]:
    """Wait until nothing remains, and return what does all the same."""
    wait_for(lambda: not any(remains(host) for host in hosts), GONE_SECONDS)
    return [f"{host.name}: {each}" for host in hosts for each in remains(host)]


def listening(host: Host) -> list[int]:
    """Return the TCP ports on which anything of the host listens."""
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def nothing_left(slurm: Slurm) -> bool:
    """Wait until no job and no process of one is left."""

    def is_gone() -> bool:
        words = ("job.py", "step.sh", "pyz step", "pyz shim", "srun", "slurmstepd", "orted")
        return not any(node.processes(word) for node in slurm.bed.hosts for word in words)

    return wait_for(lambda: not slurm.queue(), GONE_SECONDS) and wait_for(is_gone, GONE_SECONDS)
