"""``why --hosts`` on real hosts: a job of torchrun and one of mpirun that nobody prepared."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.console import Console
from suite.obstacles import mpirun_is
from suite.remains import gone
from testbed import Testbed
from testbed.keeper import wait_for

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles")]

SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
AS_ROOT = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"


@pytest.fixture
def jobs(standing_bed: Testbed, tmp_path: Path) -> Iterator[Testbed]:
    """Four ranks by torchrun on both hosts, and two by mpirun on the second."""
    bed = standing_bed
    (tmp_path / "elastic.py").write_text(SLEEPS)
    (tmp_path / "mpi.py").write_text(SLEEPS)
    first = bed.hosts[0].train_address
    lines = [
        f"torchrun --nnodes 2 --nproc-per-node 2 --node-rank {at} --master-addr {first} "
        f"--master-port 29511 {tmp_path}/elastic.py"
        for at in range(2)
    ]
    at_once = [*zip(bed.host_names, lines, strict=True)]
    at_once.append((bed.host_names[1], f"{AS_ROOT} mpirun -np 2 python3 {tmp_path}/mpi.py"))
    for at, (name, line) in enumerate(at_once):
        bed.ssh(name, f"({line}) >{tmp_path}/{at}.log 2>&1 </dev/null &")
    assert wait_for(
        lambda: [log.read_text().split().count("up") for log in tmp_path.glob("*.log")] == [2] * 3,
        60,
    )
    yield bed
    end_all(bed, str(tmp_path))
    assert not gone(*bed.hosts)


def end_all(bed: Testbed, text: str) -> None:
    for host in bed.hosts:
        host.signal(signal.SIGCONT, text)
        host.signal(signal.SIGTERM, text)


def why(bed: Testbed, folder: Path, *words: str, hosts: str | None = None) -> dict[str, Any]:
    with Console(bed, folder, "why", "--json", *words, hosts=hosts) as console:
        assert console.wait() == 0, console.stderr
        (told,) = console.events
    return json.loads(json.dumps(told))


def test_the_ranks_of_both_launchers_are_mapped_and_the_stopped_one_is_named(
    jobs: Testbed, tmp_path: Path
) -> None:
    first, second = jobs.host_names
    told = why(jobs, tmp_path)
    found = {job["launcher"]: job for job in told["jobs"]}
    mpirun = "mpirun" if mpirun_is("Open MPI") else "mpiexec"  # as its own process calls itself
    assert {name: job["world"] for name, job in found.items()} == {"torchrun": 4, mpirun: 2}
    assert {host: sorted(ranks) for host, ranks in found["torchrun"]["ranks"].items()} == {
        first: ["0", "1"],
        second: ["2", "3"],
    }
    assert {host: sorted(ranks) for host, ranks in found[mpirun]["ranks"].items()} == {
        second: ["0", "1"]
    }
    assert told["job"] == found["torchrun"]["number"]

    stopped = found["torchrun"]["ranks"][second]["3"]
    jobs.ssh(second, f"kill -STOP {stopped}")
    culprit = why(jobs, tmp_path)["diagnosis"]
    assert (culprit["kind"], culprit["ranks"], culprit["hosts"]) == ("stopped", [3], [second])

    other = why(jobs, tmp_path, "--job", str(found[mpirun]["number"]))
    assert other["run"] == f"{mpirun} mpi.py"

    with Console(jobs, tmp_path, "watch", "--json", "--pid", str(stopped)) as console:
        for rank in range(4):
            console.see(event="rank", rank=rank, state="running")
        for name in jobs.host_names:
            console.see(event="log", host=name, line="up")
            console.see(event="node", host=name)

    half = why(jobs, tmp_path, hosts=first)
    assert half["jobs"][0]["missing"] == [2, 3]
    assert "add the host that runs" in half["diagnosis"]["hint"]

    number = str(found[mpirun]["number"])
    with Console(jobs, tmp_path, "watch", "--json", "--job", number) as console:
        console.see(event="rank", rank=1, state="running")
        end_all(jobs, f"{tmp_path}/mpi.py")
        assert console.see(event="end")["exit_code"] == 0
        assert console.wait() == 0


def test_hosts_without_training_have_none(standing_bed: Testbed, tmp_path: Path) -> None:
    # A session whose start-up file exports a rank has it in our programs, too.
    for host in standing_bed.hosts:
        host.bashrc("export RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500\n")
    for _ in range(2):  # the first bridge may start its agent, the second joins it
        with Console(standing_bed, tmp_path, "why") as console:
            assert console.wait() == 2
        said = "".join(console.stderr)
        assert f"no training processes of root were found on {standing_bed.hosts[0].name}" in said
        assert "Traceback" not in said
    for host in standing_bed.hosts:
        host.heal()
