"""From the command to the first all-reduce on two hosts, by engines that have a launcher of their own:
distconsole against horovodrun, and against mpirun, Open MPI's and MPICH's, typed on the first host. It trains nothing.

``python -m benchmarks.start_engines [--json FILE] [--rounds N]``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.cluster import bed_and_folder, over_ssh, warm
from benchmarks.measure import alternate, ratios, spreads
from benchmarks.start import Starts, Times
from suite.obstacles import MPICH, obstacle
from testbed import Testbed

AGAINST = {
    "ours_horovod": "horovodrun",
    "ours_mpi": "mpirun",
    "ours_open_mpi": "open_mpi",
    "ours_mpich": "mpich",
}
"""Each of ours, and the tool that people use by hand."""

TARGETS = {"ours_horovod": 0.6, **dict.fromkeys([*AGAINST][1:], 1.1)}
NEEDS = {"horovodrun": "horovod", "mpirun": "horovod", "open_mpi": "mpi", "mpich": "mpich"}

LABELS = {
    "horovodrun": "horovodrun, Gloo",
    "ours_horovod": "distconsole --launcher horovod",
    "mpirun": "mpirun over ssh, Horovod's MPI",
    "ours_mpi": "distconsole --launcher mpi",
    "open_mpi": "mpirun over ssh, MPI alone",
    "ours_open_mpi": "distconsole --launcher mpi, MPI alone",
    "mpich": "MPICH's mpirun over ssh",
    "ours_mpich": "distconsole --launcher mpi, MPICH",
}

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
        warm(self._bed, self._folder)
        return self._ours("--launcher", "horovod", script=self._horovod)

    def ours_mpi(self) -> Times:
        warm(self._bed, self._folder)
        return self._ours("--launcher", "mpi", script=self._horovod)

    def ours_open_mpi(self) -> Times:
        warm(self._bed, self._folder)
        return self._ours("--launcher", "mpi", script=self._mpi)

    def ours_mpich(self) -> Times:
        warm(self._bed, self._folder)
        setup = f"export PATH={MPICH}/bin:$PATH"
        return self._ours("--launcher", "mpi", "--setup", setup, script=self._mpi)

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


def measure(rounds: int) -> dict[str, Any]:
    """Start each kind once a round and return seconds, and ratios within the same round."""
    skipped = {
        tool: why for tool, need in NEEDS.items() if (why := obstacle(need) or obstacle("mpi"))
    }
    pairs = {ours: theirs for ours, theirs in AGAINST.items() if theirs not in skipped}
    with bed_and_folder(hosts=2, node_ssh=True) as (bed, folder):
        starts = EngineStarts(bed, folder)
        contestants: Mapping[str, Callable[[], float]] = {
            kind: partial(starts.seconds, kind) for pair in pairs.items() for kind in pair
        }
        found = alternate(contestants, rounds, warmed=starts.script_seconds.clear)
    return {
        "rounds": rounds,
        "seconds": spreads(found),
        "script_seconds": spreads(starts.script_seconds),
        "ratios": {ours: ratios(found[ours], found[theirs]) for ours, theirs in pairs.items()},
        "skipped": skipped,
        "targets": TARGETS,
    }


def rows(figures: Figures) -> list[Row]:
    """Return what the summary of all benchmarks takes."""
    return [
        Row(
            f"start, {LABELS[ours].removeprefix('distconsole ')}",
            f"{text(figures['seconds'][ours])} s",
            f"{text(over)} of {AGAINST[ours]}, {text(figures['seconds'][AGAINST[ours]])} s",
            f"≤ {figures['targets'][ours]} of {AGAINST[ours]}",
            over["median"] <= figures["targets"][ours],
        )
        for ours, over in figures["ratios"].items()
    ]


if __name__ == "__main__":
    run_alone("start_engines", __doc__, measure, rows, rounds=7)
