"""Real mpirun (Open MPI here) on two hosts of the testbed that cannot ssh to each other: what is its alone.

What every launcher does is in ``test_every_launcher``.
"""

import signal
import subprocess
from pathlib import Path

import pytest

from distconsole.errors import PlanError
from distconsole.model.events import Narration
from distconsole.model.requests import LauncherName, Run, Where
from distconsole.model.run_events import EndState, LogLine, PlanMade, RankChanged, RankState
from distconsole.operations.control import StopReason
from distconsole.session import open_session
from suite.blame import ENDED, assert_rank_2_is_blamed
from suite.console import Console
from suite.driving import Operator, write_script
from suite.lean_torch import LEAN_TORCH
from suite.obstacles import mpirun_is
from suite.remains import gone
from testbed import Host, Testbed
from testbed.keeper import wait_for

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles"), pytest.mark.mpi]

WORLD = 3


def request(bed: Testbed, folder: Path, text: str, hosts: str = "node1:2,node2:1") -> Run:
    where = Where(ssh_config=str(bed.ssh_config), hosts=hosts)
    return Run(write_script(folder, text), where=where, launcher=LauncherName.MPI, grace_seconds=4)


TORCH = f"""{LEAN_TORCH}
import os
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.tensor([10 ** rank])
dist.all_reduce(total)
e = os.environ
place = [e[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME", "GROUP_RANK")]
print(total.item(), rank, *place, flush=True)
dist.barrier()  # a rank that leaves first can abort the others
dist.destroy_process_group()
"""


@pytest.mark.torch_ranks
def test_torch_ranks_find_each_other(standing_bed: Testbed, tmp_path: Path) -> None:
    with Operator(request(standing_bed, tmp_path, TORCH), open_session) as run:
        end = run.ended()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    assert {(e.rank, e.host, e.line) for e in run.of(LogLine) if e.stream == "out"} == {
        (0, "node1", "111 0 0 2 eth0 0"),
        (1, "node1", "111 1 1 2 eth0 0"),
        (2, "node2", "111 2 0 1 eth0 1"),
    }
    ended = {(e.rank, e.state, e.exit_code) for e in run.of(RankChanged) if e.state in ENDED}
    assert ended == {(rank, RankState.EXITED, 0) for rank in range(WORLD)}
    allowed = any("OMPI_ALLOW_RUN_AS_ROOT=1" in said.text for said in run.of(Narration))
    assert allowed == mpirun_is("Open MPI")
    assert not gone(*standing_bed.hosts)


HOROVOD = f"""{LEAN_TORCH}
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([10 ** hvd.rank()]), op=hvd.Sum).item()
print(int(total), hvd.size(), hvd.local_rank(), hvd.mpi_enabled(), hvd.gloo_enabled())
"""


# test_every_launcher trains by it, and test_slurm_engines is told to.
@pytest.mark.campaign
@pytest.mark.horovod
def test_horovod_goes_by_mpi_when_it_is_told_to(standing_bed: Testbed, tmp_path: Path) -> None:
    asked = request(standing_bed, tmp_path, HOROVOD)
    by_controller = Run(asked.script, where=asked.where, env=(("HOROVOD_CONTROLLER", "mpi"),))
    with Operator(by_controller, open_session) as run:
        end = run.ended()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    assert run.of(PlanMade)[0].launcher == "mpi"
    assert {(e.rank, e.line) for e in run.of(LogLine) if e.stream == "out"} == {
        (0, "111 3 0 True False"),
        (1, "111 3 1 True False"),
        (2, "111 3 0 True False"),
    }
    assert not gone(*standing_bed.hosts)


BREAK = """
import os, signal, subprocess, sys, threading, time
rank = int(os.environ["RANK"])
print("up", flush=True)

def wait_for_ever():
    # As MPI_Finalize does at exit while other ranks do not come to it.
    threading.Thread(target=time.sleep, args=(300,)).start()

subprocess.Popen(["setsid", "sleep", "4321"])
if rank == 2:
    time.sleep(0.3)
    {how}
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("how", "exit_code", "error"),
    [
        ("wait_for_ever(); raise ValueError('at the end')", 1, "ValueError: at the end"),
        ("sys.exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "killed by SIGTERM, perhaps by mpirun"),
    ],
)
def test_the_rank_that_failed_is_blamed_and_everything_ends(
    standing_bed: Testbed, tmp_path: Path, how: str, exit_code: int, error: str
) -> None:
    breaking = request(standing_bed, tmp_path, BREAK.format(how=how))
    with Operator(breaking, open_session) as run:
        end = run.ended()
    assert_rank_2_is_blamed(run, end, how, exit_code, error)
    assert not gone(*standing_bed.hosts)


SAVE = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def save(number, frame):
    print("told", flush=True)
    time.sleep(1.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(300)
"""


def test_ranks_that_are_stopped_have_the_grace_of_the_run(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    """mpirun by itself would give its ranks one second, and a second SIGTERM."""
    with Operator(request(standing_bed, tmp_path, SAVE), open_session) as run:
        for rank in range(WORLD):
            run.see(LogLine, lambda e, rank=rank: (e.rank, e.line) == (rank, "up"))
        run.control.stop(StopReason.INTERRUPT)
        end = run.end(30)
        run.finish()
    assert (end.state, end.exit_code) == (EndState.STOPPED, 128 + signal.SIGINT)
    for rank in range(WORLD):
        said = [e.line for e in run.of(LogLine) if e.rank == rank]
        assert said == ["up", "told", "saved"]
    assert not gone(*standing_bed.hosts)


def test_what_is_missing_is_named_before_anything_starts(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    node2 = standing_bed.hosts[1]
    folder = node2.path("/run/home/bin")
    folder.mkdir()
    programs = ("python3", "sh", "env", "cat")
    node2.exec(
        ["sh", "-c", "for p in $0; do ln -s $(command -v $p) ~/bin; done", " ".join(programs)]
    )
    asked = request(standing_bed, tmp_path, "")
    where = Where(
        ssh_config=asked.where.ssh_config,
        hosts=asked.where.hosts,
        setup="if [ -d ~/bin ]; then PATH=~/bin; fi",
    )
    with (
        Operator(Run(asked.script, where=where, launcher=LauncherName.MPI), open_session) as run,
        pytest.raises(PlanError, match="mpirun is missing on node2") as caught,
    ):
        run.finish()
    assert "apt install openmpi-bin" in caught.value.hint
    assert not run.of(PlanMade)


LOST_AS_RANKS_MEET = f"""{LEAN_TORCH}
import ctypes, os, time
import horovod.torch as hvd
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int()))
print("ready", flush=True)
while not os.path.exists({{go!r}}):
    time.sleep(0.01)
hvd.init()
print("sums to", int(hvd.allreduce(torch.tensor([10 ** hvd.rank()]), op=hvd.Sum).item()), flush=True)
hvd.shutdown()
mpi.MPI_Finalize()
"""

SLEEPY_YIELD = "#include <unistd.h>\nint sched_yield(void) { return usleep(2000); }\n"
"""In place of the C library's: a rank that waits in Open MPI spins, and these wait for 20 s."""


def connects(host: Host) -> bool:
    """Return whether a process of the host waits for an answer to its SYN."""
    table = host.exec("cat /proc/net/tcp").stdout.splitlines()[1:]
    return any(line.split()[3] == "02" for line in table)


@pytest.mark.horovod
@pytest.mark.skipif(not mpirun_is("(Open MPI) 4"), reason="Open MPI 5 ends such ranks itself")
def test_hosts_that_lose_each_other_as_the_ranks_meet_are_told_and_ranks_start_anew(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    """Open MPI 4.1.4 gives a connection up once ARP has, after 3 s, and waits for ever."""
    go, hosts = tmp_path / "go", standing_bed.hosts[:2]
    script = tmp_path / "train.py"
    script.write_text(LOST_AS_RANKS_MEET.format(go=str(go)))
    library = tmp_path / "yield.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(compiler, input=SLEEPY_YIELD, text=True, check=True)
    words = ("run", "--json", "--launcher", "mpi", "--max-restarts", "1")
    words += ("--env", "OMPI_MCA_mpi_yield_when_idle=1", "--env", f"LD_PRELOAD={library}")
    words += (str(script),)
    with Console(standing_bed, tmp_path, *words, hosts="node1:1,node2:1") as console:
        for rank in (0, 1):
            console.see(event="log", rank=rank, line="ready")
        for host in hosts:
            host.link_down("mgmt")
        go.touch()
        wait_for(lambda: connects(hosts[1]), 30)
        gave_up = wait_for(lambda: not connects(hosts[1]), 30)
        for host in hosts:
            host.link_up("mgmt")
        assert gave_up
        found = console.see(event="finding", check="run.connection_lost")
        assert found["summary"].startswith("node2 was not heard of for ")
        assert "while the ranks met, and Open MPI failed to connect ranks" in found["summary"]
        assert "they are started again" in found["hint"]
        assert console.wait() == 0
    assert len(console.of("restart")) == 1
    (restart,) = (each for each in console.of("finding") if each["check"] == "run.restart")
    blamed = (
        "rank 1 on node2 failed first: Open MPI failed to connect ranks as node2 was not heard"
    )
    assert restart["summary"].startswith(blamed)
    assert {rank: console.lines(rank)[-1] for rank in (0, 1)} == dict.fromkeys(
        (0, 1), "sums to 11"
    )
    assert not gone(*standing_bed.hosts)
