"""From the command to the first all-reduce on two hosts, by engines that have a launcher of their own:
distconsole against horovodrun, and against mpirun, Open MPI's and MPICH's, typed on the first host. It trains nothing.
"""

from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.cluster import on_hosts, over_ssh
from benchmarks.measure import Compared
from benchmarks.start import Starts, Times
from suite.obstacles import MPICH, obstacle
from testbed import Testbed

NEEDS = {"horovodrun": "horovod", "mpirun": "horovod", "open_mpi": "mpi", "mpich": "mpich"}
LINES = (
    Compared("start, --launcher horovod", "ours_horovod", "horovodrun", "horovodrun", ratio=0.6),
    Compared("start, --launcher mpi", "ours_mpi", "mpirun", "mpirun", ratio=1.1),
    Compared("start, --launcher mpi, MPI alone", "ours_open_mpi", "open_mpi", "mpirun", ratio=1.1),
    Compared("start, --launcher mpi, MPICH", "ours_mpich", "mpich", "MPICH's mpirun", ratio=1.1),
)
"""Each of ours, and the tool that people use by hand."""

MPI_SCRIPT = """\
import time

began_ns = time.time_ns()
import torch
from distconsole_agent.probes.collectives.by_mpi import Mpi

mpi = Mpi(60.0)
greatest = mpi.greatest(float(mpi.rank))
print(f"began at {began_ns}, first all-reduce at {time.time_ns()}", flush=True)
assert greatest == mpi.world - 1
mpi.close()
"""


class EngineStarts(Starts):
    """One rank on each host; a tool and ours have the same script: the first all-reduce of Horovod, or of MPI."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        super().__init__(bed, folder)
        self._mpi = self._write("first_mpi.py", MPI_SCRIPT)

    def ours_horovod(self) -> Times:
        return self._warm("--launcher", "horovod", script=self._horovod)

    def ours_mpi(self) -> Times:
        return self._warm("--launcher", "mpi", script=self._horovod)

    def ours_open_mpi(self) -> Times:
        return self._warm("--launcher", "mpi", script=self._mpi)

    def ours_mpich(self) -> Times:
        setup = f"export PATH={MPICH}/bin:$PATH"
        return self._warm("--launcher", "mpi", "--setup", setup, script=self._mpi)

    def mpich(self) -> Times:
        names = [host.name for host in self._bed.hosts]
        words = [f"{MPICH}/bin/mpirun", "-np", str(len(names)), "-hosts", ",".join(names)]
        words += ["-ppn", "1", "-iface", "eth0", "python3", self._mpi]
        return self._until_all([over_ssh(self._bed, names[0], *words)])

    def open_mpi(self) -> Times:
        return self.mpirun(self._mpi)

    def mpirun(self, script: str = "") -> Times:
        """As Horovod's documentation has people type it, without what these hosts do not need."""
        names = [host.name for host in self._bed.hosts]
        words = ["mpirun", "-np", str(len(names)), "-H", ",".join(f"{name}:1" for name in names)]
        words += ["-bind-to", "none", "-map-by", "slot", "-x", "PATH"]
        words += ["-mca", "btl_tcp_if_include", "eth0", "-mca", "oob_tcp_if_include", "eth0"]
        words += ["python3", script or self._horovod]
        return self._until_all([over_ssh(self._bed, names[0], *words)])


@on_hosts(2, node_ssh=True)
def measure(bed: Testbed, folder: Path, rounds: int = 7) -> dict[str, Any]:
    """Start each kind once a round and return seconds, and ratios within the same round."""
    skipped = {
        tool: why for tool, need in NEEDS.items() if (why := obstacle(need) or obstacle("mpi"))
    }
    lines = [line for line in LINES if line.peer not in skipped]
    kinds = [kind for line in lines for kind in (line.kind, line.peer)]
    return {**EngineStarts(bed, folder).compare(kinds, rounds, lines), "skipped": skipped}


rows = rows_of_turns
