"""Runs below a real Slurm on hosts of the testbed, while things break."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.errors import UnavailableError, UnreachableError
from distconsole.launch.slurm.submit import job_script
from distconsole.model.events import Narration
from distconsole.model.requests import Run, Where
from distconsole.model.run_events import EndState, LogLine, PlanMade
from distconsole.operations.control import StopReason
from distconsole.session import open_session
from suite.driving import Operator, write_job
from suite.lean_torch import LEAN_TORCH
from suite.programs import run_to_end
from suite.remains import nothing_left
from testbed import Testbed
from testbed.keeper import wait_for
from testbed.slurm import SLURM_ENVIRONMENT, Slurm, daemons

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]


def submitted(slurm: Slurm, path: str, *arguments: str, options: str = "-N2") -> Run:
    where = Where(ssh_config=str(slurm.bed.ssh_config))
    login = slurm.login.name
    return Run(path, arguments, where=where, slurm=options, slurm_login=login, nproc="2")


def test_slurm_runs_a_step_on_every_node_and_leaves_no_daemon_behind() -> None:
    with Testbed(3, environment=SLURM_ENVIRONMENT) as bed:
        with Slurm(bed) as slurm:
            told = slurm.login.exec("srun -N2 hostname").stdout
            assert sorted(told.split()) == [node.name for node in slurm.nodes]
        assert [daemons(host) for host in bed.hosts] == [[], [], []]


SAY_PLACE = """
e = os.environ
print(rank, e["SLURM_PROCID"], e["SLURM_LOCALID"], e["SLURM_NTASKS"], e["SLURM_JOB_ID"],
      e["SLURM_NODEID"], e["CUDA_VISIBLE_DEVICES"], oct(os.umask(0)), e["SLURM_SUBMIT_DIR"])
pid, parents = os.getpid(), []
while pid > 1:
    stat = open(f"/proc/{pid}/stat").read()
    pid = int(stat.rpartition(")")[2].split()[1])
    parents.append(open(f"/proc/{pid}/cmdline").read().replace("\\0", " "))
print(any("slurmstepd" in parent for parent in parents))
"""


def test_ranks_are_tasks_of_the_job_that_was_submitted(slurm: Slurm, tmp_path: Path) -> None:
    request = submitted(slurm, write_job(tmp_path, SAY_PLACE), options="-N2 --gres=gpu:2")
    with Operator(request, open_session) as run:
        end, job = run.ended(), run.slurm_job()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0)
    lines = [(event.rank, event.line) for event in run.of(LogLine)]
    for rank in range(4):
        told = f"{rank} {rank} {rank % 2} 4 {job} {rank // 2} 0,1 0o22 {Path.cwd()}"
        assert (rank, told) in lines
        assert (rank, "True") in lines
    assert run.of(PlanMade)[0].launcher == "slurm"
    assert nothing_left(slurm)
    assert slurm.show(job)["JobState"] == "COMPLETED"


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("sys.exit(7)", 7, "7"),
        pytest.param("os.kill(os.getpid(), 15)", 143, "SIGTERM", marks=pytest.mark.campaign),
    ],
)
def test_the_first_failure_is_the_exit_code_of_run_and_job(
    slurm: Slurm, tmp_path: Path, how: str, code: int, told: str
) -> None:
    text = f"if rank == 3:\n    time.sleep(0.3)\n    {how}\ntime.sleep(300)"
    with Operator(submitted(slurm, write_job(tmp_path, text)), open_session) as run:
        end, job = run.ended(), run.slurm_job()
    assert (end.state, end.exit_code) == (EndState.FAILED, code)
    assert end.first_failure
    assert (end.first_failure.rank, end.first_failure.host) == (3, "node2")
    assert told in end.first_failure.error
    assert nothing_left(slurm)
    assert slurm.show(job)["ExitCode"].split(":")[0] == str(code)


SAVE_ON_SIGTERM = """
import signal
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print('up', flush=True)
while not told:
    time.sleep(0.05)
time.sleep(1.0)
print('saved after', len(told), flush=True)
"""


def test_who_cancels_the_job_is_named_and_ranks_may_save(slurm: Slurm, tmp_path: Path) -> None:
    text = f"if rank != 2: time.sleep(300)\n{SAVE_ON_SIGTERM}"
    with Operator(submitted(slurm, write_job(tmp_path, text)), open_session) as run:
        run.see(LogLine, lambda event: event.rank == 2)
        job = run.slurm_job()
        slurm.login.exec(["scancel", job])
        end = run.ended()
    assert (end.state, end.exit_code) == (EndState.FAILED, 143), end.first_failure
    assert run.lines() == ["up", "saved after 1"]
    assert end.first_failure
    assert end.first_failure.error == f"Slurm job {job} was cancelled"
    assert nothing_left(slurm)


def test_named_hosts_are_exactly_the_jobs_nodes(slurm: Slurm, tmp_path: Path) -> None:
    where = Where(hosts="node2:3", ssh_config=str(slurm.bed.ssh_config))
    path = write_job(tmp_path, "print(rank, os.uname().nodename)")
    request = Run(path, where=where, slurm="", slurm_login=slurm.login.name)
    with Operator(request, open_session) as run:
        assert run.end().exit_code == 0
        run.finish()
    assert sorted(run.lines()) == ["0 node2", "1 node2", "2 node2"]


def test_the_host_that_has_the_jobs_script_is_the_first(slurm: Slurm, tmp_path: Path) -> None:
    def give_features(*names: str) -> None:
        for node, name in zip(slurm.nodes, names, strict=True):
            features = [f"{kind}features={name}" for kind in ("available", "active")]
            slurm.login.exec(["scontrol", "update", f"nodename={node.name}", *features])

    give_features("plain", "lead")
    try:
        path = write_job(tmp_path, "print(rank, os.uname().nodename)")
        request = submitted(slurm, path, options="-N2 -C 'plain|lead' --batch=lead")
        with Operator(replace(request, nproc="1"), open_session) as run:
            assert run.end().exit_code == 0
            run.finish()
    finally:
        give_features("", "")
    assert sorted(run.lines()) == ["0 node2", "1 node1"]


def test_a_step_finds_the_configuration_where_the_session_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"SlurmctldParameters": "enable_configless"}
    with (
        Testbed(2, environment={"SLURM_CONF_SERVER": "node2"}) as bed,
        Slurm(bed, settings=settings) as slurm,
        slurm.allocation() as variables,
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        path = write_job(tmp_path, "print('in', os.environ['SLURM_JOB_ID'])")
        with Operator(Run(path, where=Where(ssh_config=str(bed.ssh_config))), open_session) as run:
            assert run.end().exit_code == 0, run.lines()
            run.finish()
    assert run.lines() == [f"in {variables['SLURM_JOB_ID']}"] * len(run.lines())
    assert run.lines()


def test_inside_an_allocation_the_run_is_a_step_of_it(slurm: Slurm, tmp_path: Path) -> None:
    text = "print('in', os.environ['SLURM_JOB_ID'])\nsys.exit(3 if rank == 2 else 0)"
    run = f"distconsole run --nproc 2 --json {write_job(tmp_path, text)}; echo $?"
    until_no_step = 'until [ -z "$(squeue -h -s)" ]; do sleep 0.05; done'
    words = ["salloc", "-N2", "--gres=gpu:1", "bash", "-c", f"{run}; {until_no_step}"]
    *lines, code = slurm.login.exec(words, timeout=90).stdout.splitlines()
    assert code == "3"
    events = [json.loads(line) for line in lines]
    plan, end = events[0], events[-1]
    assert plan["launcher"] == "slurm"
    assert end["first_failure"]["rank"] == 2
    printed = {event["line"] for event in events if event["event"] == "log"}
    assert f"in {plan['why'].rpartition(' ')[2]}" in printed
    assert nothing_left(slurm)


def test_a_step_that_slurm_kills_says_so(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = slurm.login.exec("salloc -N2 --no-shell").stderr
    job = granted.partition("Granted job allocation ")[2].split()[0]
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    path = write_job(tmp_path, "print('up', flush=True)\ntime.sleep(300)")
    request = Run(path, where=Where(ssh_config=str(slurm.bed.ssh_config)))
    with Operator(request, open_session) as run:
        run.see(LogLine, lambda event: event.rank == 1)
        slurm.login.exec(["scancel", f"{job}.0"])
        end = run.ended()
    assert end.state is EndState.FAILED
    assert end.first_failure
    lost = "Slurm ended the job's step, and its reason was lost"  # slurmstepd died too soon
    told = f"Slurm job {job}: its step was cancelled or signalled"
    assert end.first_failure.error in (told, lost)
    assert slurm.queue() == [job]
    slurm.cancel_all()
    assert nothing_left(slurm)


REDUCE = f"""{LEAN_TORCH}
import torch.distributed as dist
place = {{"rank": int(os.environ["SLURM_PROCID"]), "world_size": int(os.environ["SLURM_NTASKS"])}}
for how in ({{"init_method": f"file://{{sys.argv[1]}}", **place}}, {{"init_method": "env://"}}):
    dist.init_process_group("gloo", **how)
    summed = torch.tensor([rank + 1.0])
    dist.all_reduce(summed)
    print(how["init_method"][:7], summed.item())
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.torch_ranks
def test_ranks_meet_by_env_and_by_a_shared_file(slurm: Slurm, tmp_path: Path) -> None:
    request = submitted(slurm, write_job(tmp_path, REDUCE), str(tmp_path / "store"))
    with Operator(replace(request, nproc="1"), open_session) as run:
        assert run.end(120).exit_code == 0, run.lines()
        run.finish()
    printed = [event.line for event in run.of(LogLine) if event.stream == "out"]
    assert sorted(printed) == ["env:// 3.0"] * 2 + ["file:// 3.0"] * 2
    assert nothing_left(slurm)


def test_a_killed_srun_is_named_if_slurm_kills_the_shims(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm may kill the shims before the first one hears that its srun is gone."""
    text = "print('up', flush=True)\ntime.sleep(300)"
    with Operator(submitted(slurm, write_job(tmp_path, text)), open_session) as run:
        run.see(LogLine, lambda event: event.rank == 3)
        assert slurm.nodes[0].signal(signal.SIGKILL, "srun --jobid")
        for node in slurm.nodes:
            node.signal(signal.SIGKILL, "pyz shim")
        end = run.end(10)
        run.finish()
    assert end.state is EndState.FAILED
    assert end.first_failure
    told = (end.exit_code, end.first_failure.error)
    assert told == (137, "srun was killed by SIGKILL")
    assert nothing_left(slurm)


def test_a_job_whose_nodes_cannot_be_used_is_given_back(slurm: Slurm, tmp_path: Path) -> None:
    slurm.nodes[1].stop_sshd()
    try:
        with Operator(submitted(slurm, write_job(tmp_path, "")), open_session) as run:
            with pytest.raises(UnreachableError, match="node2"):
                run.finish()
            job = run.slurm_job()
    finally:
        slurm.nodes[1].start_sshd()
    assert nothing_left(slurm)
    assert slurm.show(job)["JobState"] == "CANCELLED"


def test_a_job_that_is_never_told_what_to_start_ends_by_itself(slurm: Slurm) -> None:
    holder = job_script(unused_seconds=1)
    submit = ["sbatch", "--parsable", "--output=/dev/null", "--wrap", holder]
    job = slurm.login.exec(submit).stdout.strip()
    assert nothing_left(slurm)
    assert slurm.show(job)["ExitCode"] == "75:0"


@pytest.fixture
def busy(slurm: Slurm) -> Iterator[str]:
    """A job of somebody else that has both nodes."""
    submit = "sbatch --parsable -N2 --exclusive --output=/dev/null --wrap 'sleep 300'"
    job = slurm.login.exec(submit).stdout.strip()
    wait_for(lambda: slurm.show(job)["JobState"] == "RUNNING")
    yield job
    slurm.cancel_all()


def test_a_job_that_waits_says_why_and_is_cancelled_by_ctrl_c(
    slurm: Slurm, busy: str, tmp_path: Path
) -> None:
    with Operator(submitted(slurm, write_job(tmp_path, "")), open_session) as run:
        run.see(Narration, lambda event: "PENDING (Resources)" in event.text)
        run.control.stop(StopReason.INTERRUPT)
        end = run.end(10)
        run.finish()
    assert (end.state, end.exit_code) == (EndState.STOPPED, 130)
    assert slurm.queue() == [busy]


def test_a_waiting_job_that_somebody_cancels_is_one_error(
    slurm: Slurm, busy: str, tmp_path: Path
) -> None:
    with Operator(submitted(slurm, write_job(tmp_path, "")), open_session) as run:
        run.see(Narration, lambda event: "PENDING" in event.text)
        job = run.slurm_job()
        slurm.login.exec(["scancel", job])
        with pytest.raises(UnavailableError, match=f"{job} ended before .*: CANCELLED"):
            run.finish()


def test_a_job_that_slurm_refuses_is_one_error(slurm: Slurm, tmp_path: Path) -> None:
    request = submitted(slurm, write_job(tmp_path, ""), options="-N2 --gres=gpu:99")
    with Operator(request, open_session) as run, pytest.raises(UnavailableError, match="sbatch"):
        run.finish()
    assert slurm.queue() == []


JOB_FILE = """#!/bin/bash
#SBATCH --job-name=multi
#SBATCH --nodes=2
#SBATCH --ntasks=2   # one each
ip=$(srun --nodes=1 --ntasks=1 hostname --ip-address)
srun torchrun --nnodes 2 --nproc_per_node 1 --rdzv_id $RANDOM --rdzv_backend c10d \\
    --rdzv_endpoint $ip:29503 train.py
"""


@pytest.mark.torch_ranks
@pytest.mark.parametrize("submits", [pytest.param(False, marks=pytest.mark.campaign), True])
def test_the_line_that_answers_a_job_file_of_slurm_starts_its_ranks(
    slurm: Slurm, tmp_path: Path, submits: bool, lean: dict[str, str]
) -> None:
    (tmp_path / "job.slurm").write_text(JOB_FILE)
    (tmp_path / "train.py").write_text(
        "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])"
    )
    login = ["--slurm-login", slurm.login.name]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "distconsole",
            "run",
            "--ssh-config",
            str(slurm.bed.ssh_config),
        ]
        return run_to_end([*command, *words], cwd=tmp_path)

    options = (
        ["--slurm", "-N2", *login]
        if submits
        else ["--hosts", ",".join(n.name for n in slurm.nodes)]
    )
    refused = run(*options, "job.slurm")
    assert refused.returncode == 2, refused.stderr
    assert "submitted" not in refused.stderr
    line = shlex.split(refused.stderr.rpartition("distconsole run ")[2])
    done = run(*login, "--env", f"PYTHONPATH={lean['PYTHONPATH']}", *line)
    assert done.returncode == 0, done.stderr
    assert sorted(each[-3:] for each in done.stdout.splitlines()) == ["0 2", "1 2"]
