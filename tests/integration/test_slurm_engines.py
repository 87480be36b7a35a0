"""Horovod's ranks and those of mpirun as parts of a real Slurm job: where they are, how they end."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.model.events import Narration
from distconsole.model.requests import LauncherName, Run, Where
from distconsole.model.run_events import EndState, LogLine, PlanMade, RunEnded
from distconsole.session import open_session
from suite.driving import Operator
from suite.lean_torch import LEAN_TORCH
from suite.remains import nothing_left
from testbed.slurm import Slurm

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]

WORLD = 4

PLACE = """
import os, signal, sys, time
e = os.environ

def below_slurm():
    pid, parents = os.getpid(), []
    while pid > 1:
        stat = open(f"/proc/{pid}/stat").read()
        pid = int(stat.rpartition(")")[2].split()[1])
        parents.append(open(f"/proc/{pid}/cmdline").read().replace("\\0", " "))
    return any("slurmstepd" in parent for parent in parents)

def tell_place(rank):
    listen_to(signal.SIGUSR1)
    names = ("PROCID", "LOCALID", "NTASKS", "NODEID", "JOB_ID")
    told = [e[f"SLURM_{name}"] for name in names]
    print("at", rank, *told, e["CUDA_VISIBLE_DEVICES"], below_slurm(), flush=True)

told = []

def listen_to(number):
    signal.signal(number, lambda number, _frame: told.append(number))

def await_signal(number):
    while number not in told:
        time.sleep(0.02)
    time.sleep(0.5)
    print("heard", signal.Signals(number).name, told.count(number), flush=True)
"""

HOROVOD = f"""{PLACE}{LEAN_TORCH}
import horovod.torch as hvd
hvd.init()
rank = hvd.rank()
total = int(hvd.allreduce(torch.tensor([10 ** rank]), op=hvd.Sum).item())
tell_place(rank)
print("sum", total, hvd.size(), hvd.local_rank(), hvd.mpi_enabled(), flush=True)
"""

RANKS_OF_MPI = f"""{PLACE}
rank = int(e["OMPI_COMM_WORLD_RANK"])
tell_place(rank)
"""


def submitted(slurm: Slurm, folder: Path, text: str, launcher: LauncherName) -> Run:
    path = folder / "job.py"
    path.write_text(text)
    where = Where(ssh_config=str(slurm.bed.ssh_config))
    options, login = "-N2 --gres=gpu:2", slurm.login.name
    return Run(str(path), where=where, slurm=options, slurm_login=login, launcher=launcher)


def see_line(run: Operator, rank: int, line: str) -> None:
    run.see(LogLine, lambda event: (event.rank, event.line) == (rank, line))


def see_all(run: Operator, line: str, world: int = WORLD) -> None:
    for rank in range(world):
        see_line(run, rank, line)


def place(rank: int, world: int, job: str) -> str:
    """Return what a rank on one of two equal nodes says where a task of srun would be."""
    node, local = divmod(rank, world // 2)
    return f"at {rank} {rank} {local} {world} {node} {job} 0,1 True"


@pytest.mark.horovod
def test_horovods_ranks_are_the_jobs_and_the_first_failure_is_its_exit_code(
    slurm: Slurm, tmp_path: Path
) -> None:
    then = "if rank == 1:\n    time.sleep(0.5)\n    sys.exit(7)\ntime.sleep(300)"
    text = f"{HOROVOD}\nawait_signal(signal.SIGUSR1)\n{then}"
    request = replace(submitted(slurm, tmp_path, text, LauncherName.AUTO), nproc="1")
    with Operator(request, open_session) as run:
        job = run.slurm_job()
        for rank in range(2):
            see_line(run, rank, place(rank, 2, job))
            see_line(run, rank, "sum 11 2 0 False")
        slurm.login.exec(["scancel", "--signal=USR1", job])
        see_all(run, "heard SIGUSR1 1", 2)
        end = run.ended()
    plan = run.of(PlanMade)[0]
    assert (plan.launcher, plan.why) == (
        "horovod",
        f"the script imports Horovod; by srun, in Slurm job {job}",
    )
    assert (end.state, end.exit_code) == (EndState.FAILED, 7), end
    assert end.first_failure
    assert (end.first_failure.rank, end.first_failure.host) == (1, "node2")
    assert nothing_left(slurm)
    assert slurm.show(job)["ExitCode"] == "7:0"


@pytest.mark.mpi
def test_ranks_of_mpirun_hear_of_slurm_once_and_may_save(slurm: Slurm, tmp_path: Path) -> None:
    """mpirun by itself would hand USR1 on once more, and kill its ranks a second after SIGTERM."""
    saved = 'time.sleep(2.0)\nprint("saved", told.count(signal.SIGTERM), flush=True)'
    waits = "await_signal(signal.SIGUSR1)\nawait_signal(signal.SIGTERM)"
    text = f"{RANKS_OF_MPI}\nlisten_to(signal.SIGTERM)\n{waits}\n{saved}"
    request = submitted(slurm, tmp_path, text, LauncherName.MPI)
    with Operator(request, open_session) as run:
        job = run.slurm_job()
        for rank in range(WORLD):
            see_line(run, rank, place(rank, WORLD, job))
        slurm.login.exec(["scancel", "--signal=USR1", job])
        see_all(run, "heard SIGUSR1 1")
        slurm.login.exec(["scancel", job])
        end = run.ended()
    see_all(run, "saved 1")
    assert (end.state, end.exit_code) == (EndState.FAILED, 143), end
    assert end.first_failure
    assert end.first_failure.error == f"Slurm job {job} was cancelled"
    assert nothing_left(slurm)


# Horovod by MPI trains in test_every_launcher; both of Slurm's ways are in test_run_slurm.
@pytest.mark.campaign
@pytest.mark.mpi
@pytest.mark.horovod
def test_inside_an_allocation_horovod_may_go_by_mpi(slurm: Slurm, tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(f"{HOROVOD}\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(300)")
    run = f"distconsole run --env HOROVOD_CONTROLLER=mpi --nproc 1 --json {path}; echo $?"
    words = ["salloc", "-N2", "--gres=gpu:2", "bash", "-c", run]
    done = slurm.login.exec(words, timeout=90)
    *lines, code = done.stdout.splitlines()
    assert code == str(128 + signal.SIGKILL), done
    events = [json.loads(line) for line in lines]
    plan, end = events[0], events[-1]
    assert plan["launcher"] == "mpi"
    job = plan["why"].rpartition(" ")[2]
    assert plan["why"] == (
        f"the script imports Horovod; HOROVOD_CONTROLLER=mpi; by srun, in Slurm job {job}"
    )
    assert end["first_failure"]["rank"] == 1
    printed = {(event.get("rank"), event["line"]) for event in events if event["event"] == "log"}
    for rank in range(2):
        assert (rank, place(rank, 2, job)) in printed
        assert (rank, "sum 11 2 0 True") in printed
    assert nothing_left(slurm)


GO_ON = """
import os, pathlib, sys, time
e = os.environ
rank = int(e["RANK"])
if "DISTCONSOLE_RESTART" not in e:
    if rank == 0:
        pathlib.Path(sys.argv[1]).write_text("weights")
        (pathlib.Path(e["DISTCONSOLE_RUN_DIR"]) / "checkpoint").write_text(sys.argv[1])
    print("begun", flush=True)
    time.sleep(300)
print("goes on", e["DISTCONSOLE_RESTART"], e["DISTCONSOLE_CHECKPOINT"], e["SLURM_JOB_ID"], flush=True)
sys.exit(7 if rank == 3 else 0)
"""


def test_a_job_that_is_requeued_goes_on_from_its_checkpoint(slurm: Slurm, tmp_path: Path) -> None:
    asked, path = (
        submitted(slurm, tmp_path, GO_ON, LauncherName.TORCH),
        str(tmp_path / "step-3.pt"),
    )
    asked = replace(asked, slurm="-N2 --requeue", nproc="2", arguments=(path,))
    with Operator(asked, open_session) as run:
        job = run.slurm_job()
        see_all(run, "begun")
        slurm.login.exec(["scontrol", "requeue", job])
        run.see(Narration, lambda event: "PENDING (BeginTime)" in event.text)
        slurm.login.exec(["scontrol", "update", f"JobId={job}", "StartTime=now"])
        see_line(run, 3, f"goes on 1 {path} {job}")
        run.finish()
    first, last = run.of(RunEnded)
    assert first.run != last.run
    assert first.first_failure
    assert (first.exit_code, first.first_failure.error) == (143, f"Slurm job {job} was requeued")
    assert (last.state, last.exit_code) == (EndState.FAILED, 7)
    assert nothing_left(slurm)
    assert slurm.show(job)["ExitCode"] == "7:0"
