"""Why Slurm ended a step, as srun prints it, and what srun inherits."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from distconsole.model.run_summary import FirstFailure
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.engines import slurm
from distconsole_agent.engines.slurm import step_script
from distconsole_agent.engines.slurm_words import (
    STEP_ENDED,
    STEP_LOG,
    ask_slurm,
    has_srun,
    read_complaint,
    read_reason,
    read_srun_death,
)
from fakes.shims import wait_until
from suite.programs import run_to_end

HERE = socket.gethostname().partition(".")[0]
AT = "2026-11-21T19:31:02"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"*** STEP 3.1 ON node1 CANCELLED AT {AT} ***", "Slurm job 3 was cancelled"),
        (
            f"*** STEP 3.0 ON n1 CANCELLED AT {AT} DUE TO TIME LIMIT ***",
            "Slurm ended job 3: its time limit was reached",
        ),
        (f"*** JOB 40 ON n1 CANCELLED AT {AT} DUE TO PREEMPTION ***", "Slurm preempted job 40"),
        (
            f"*** STEP 3.0 ON n1 CANCELLED AT {AT} DUE to SIGNAL Killed ***",
            "Slurm job 3 was cancelled: signal killed",
        ),
        # As from 25.05 on; before, no signal was named.
        (
            f"*** STEP 3.0 ON n1 CANCELLED AT {AT} DUE to SIGNAL Terminated ***",
            "Slurm job 3 was cancelled",
        ),
        (
            f"*** STEP 3.0 ON n1 CANCELLED AT {AT} DUE TO TASK FAILURE ***",
            "Slurm job 3 was cancelled: task failure",
        ),
        (
            "*** STEP 3.0 ON n1 FAILED (non-zero exit code or other failure mode) ***",
            "Slurm ended job 3: it failed",
        ),
        (
            f"*** STEP 3.0 ON n1 CANCELLED AT {AT} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR "
            "DETAILS ***\nsrun: error: Node failure on n2",
            "Slurm ended job 3: n2 failed",
        ),
        (
            "StepId=3.0 exceeded memory limit (1959522304 > 1572864000), being killed\n"
            f"slurmstepd-n2: error: *** STEP 3.0 ON n2 CANCELLED AT {AT} ***",
            "Slurm job 3: its step exceeded its memory limit on node1",
        ),
        ("srun: error: node2: task 1: Exited with exit code 7", ""),
        (
            "x\nsrun: error: Node failure on n2\nsrun: Job step aborted",
            "Slurm ended the job: n2 failed",
        ),
        (
            f"x\nsrun: error: Node failure on {HERE}\nsrun: Job step aborted",
            f"Slurm ended the job: it counted {HERE} as failed, though {HERE} answers",
        ),
    ],
)
# As 22.05 and 24.11 begin the line, and as 26.05 does.
@pytest.mark.parametrize("begins", ["slurmstepd-node1:", "[2026-11-28T20:56:11.011]"])
def test_sruns_words_say_why(tmp_path: Path, line: str, reason: str, begins: str) -> None:
    (tmp_path / "step.log").write_text(f"noise\n{begins} error: {line}\nmore\n")
    nowhere = begins.startswith("[")
    assert read_reason(str(tmp_path)) == reason.removesuffix(" on node1" if nowhere else "")
    assert not reason or not FirstFailure(rank=0, host="n1", exit_code=143, error=reason).of_rank


def test_a_step_that_said_nothing_has_no_reason(tmp_path: Path) -> None:
    assert read_reason(str(tmp_path)) == read_complaint(str(tmp_path)) == ""


ABORTED = "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.\n"


@pytest.mark.parametrize(
    ("before", "by_slurm"),
    [
        ("srun: cluster configuration lacks support for cpu binding\n", True),
        ("srun: error: node1: task 0: Killed\n", False),
        ("srun: forcing job termination\n", False),
    ],
)
def test_a_step_that_srun_aborts_was_slurms(tmp_path: Path, before: str, by_slurm: bool) -> None:
    (tmp_path / "step.log").write_text(before)
    assert not read_reason(str(tmp_path), final=True)
    (tmp_path / "step.log").write_text(f"{before}{ABORTED}srun: error: node2: task 1: Killed\n")
    assert not read_reason(str(tmp_path))
    reason = read_reason(str(tmp_path), final=True)
    assert bool(reason) is by_slurm
    assert not reason or not FirstFailure(rank=0, host="n1", exit_code=143, error=reason).of_rank


PYXIS = "srun: got SIGCONT\n{} error: pyxis: child 42 failed\nsrun: error: n1: task 0\n"
MISSING = "/tmp/r/step.sh: line 9: srun: command not found"


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        (
            "srun: cluster configuration lacks support for cpu binding\nsrun: error: Unable to "
            "create step for job 3: Invalid\nsrun: error: and so on\n",
            "Unable to create step for job 3: Invalid",
        ),
        (PYXIS.format("slurmstepd:"), "pyxis: child 42 failed"),
        (PYXIS.format("slurmstepd-node1:"), "pyxis: child 42 failed"),
        (PYXIS.format(f"[{AT}.011]"), "pyxis: child 42 failed"),
        (f"{MISSING}\n", MISSING),
    ],
)
def test_the_first_complaint_has_no_prefix(tmp_path: Path, log: str, complaint: str) -> None:
    (tmp_path / "step.log").write_text(log)
    assert read_complaint(str(tmp_path)) == complaint


def test_srun_does_not_take_the_jobs_options_for_its_own(tmp_path: Path) -> None:
    words = ["env"], ["echo", "it's over"]
    script = tmp_path / "step.sh"
    script.write_text(step_script(str(tmp_path), "3", *words))
    where = {
        "SLURM_CONF": "/c",
        "SLURM_CONF_SERVER": "ctl",
        "SLURM_SACK_SOCKET": "/s",
        "PATH": "/bin",
    }
    options = {"SLURM_NTASKS": "8", "SBATCH_GPUS": "1", "SLURM_CPUS_PER_TASK": "4"}
    done = run_to_end(["/bin/bash", str(script), "--held"], env={**where, **options}, check=True)
    assert done.stdout == "it's over --code 0 --held\n"
    variables = (tmp_path / "step.log").read_text().split()
    assert {
        line for line in variables if line.startswith(("S", "PATH")) and "SHLVL" not in line
    } == {f"{name}={value}" for name, value in where.items()}


@pytest.mark.parametrize(
    ("how", "exit_code", "death"),
    [
        ("kill -KILL $$", 137, ("srun was killed by SIGKILL", 137)),
        ("kill -SEGV $$", 139, ("srun was killed by SIGSEGV", 139)),
        ("echo 'srun: error: node1: task 0: Killed' >&2; exit 137", 137, None),
        ("exit 7", 7, None),
    ],
)
def test_a_srun_that_a_signal_ended_is_told_from_one_that_says_so_of_a_task(
    tmp_path: Path, how: str, exit_code: int, death: tuple[str, int] | None
) -> None:
    srun, script = tmp_path / "bin" / "srun", tmp_path / "step.sh"
    srun.parent.mkdir()
    srun.write_text(f"#!/bin/sh\n{how}\n")
    srun.chmod(0o700)
    words = ["srun", "--jobid", "3"], ["true"]
    script.write_text(step_script(str(tmp_path), "3", *words))
    assert has_srun(str(tmp_path))
    env = {"PATH": f"{srun.parent}:/bin:/usr/bin"}
    subprocess.run(["/bin/bash", str(script)], env=env, check=True)
    assert json.loads((tmp_path / "step.ended").read_text()) == {"exit_code": exit_code}
    assert not has_srun(str(tmp_path))
    assert read_srun_death(str(tmp_path)) == death
    complaint = "node1: task 0: Killed" if "echo" in how else ""
    assert read_complaint(str(tmp_path)) == complaint


@pytest.mark.parametrize(
    ("time", "state", "reason"),
    [
        (AT, "COMPLETING", "Slurm preempted job 3"),
        ("None", "COMPLETING", "Slurm job 3 was cancelled"),
        ("None", "RUNNING", "Slurm job 3: its step was cancelled or signalled"),
    ],
)
def test_sruns_parent_asks_slurm_and_ends_a_srun_that_waits_for_a_lost_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: str, state: str, reason: str
) -> None:
    monkeypatch.setattr(slurm, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(slurm, "OVER_SECONDS", 0.2)
    script = tmp_path / "step.sh"
    script.write_text(step_script(str(tmp_path), "3", ["sleep", "1000"], ["echo", "ended"]))
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho JobId=$4 JobName=x JobState=$STATE PreemptTime=$TIME\n")
    scontrol.chmod(0o755)
    (tmp_path / "step.log").write_text(
        f"slurmstepd: error: *** STEP 3.0 ON n1 CANCELLED AT {AT} ***\n"
    )
    said = read_reason(str(tmp_path), final=True)
    assert said == "Slurm job 3: its step was cancelled or signalled"
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "TIME": time, "STATE": state}
    script_words = ["/bin/bash", str(script)]
    step = subprocess.Popen(script_words, stdout=subprocess.PIPE, text=True, env=env)
    with step:
        assert step.stdout is not None
        wait_until("its pipe", lambda: ask_slurm(str(tmp_path)))
        wait_until("an answer", lambda: read_reason(str(tmp_path), asked=True))
        assert read_reason(str(tmp_path)) == reason
        with pytest.raises(subprocess.TimeoutExpired):
            step.wait(1)
        (tmp_path / "verdict.json").write_text("{}")
        assert step.communicate(timeout=20)[0] == "ended --code 137\n"
    assert json.loads((tmp_path / "step.ended").read_text()) == {"exit_code": 137}


def test_the_end_of_srun_is_the_jobs_exit_code_without_a_verdict(tmp_path: Path) -> None:
    def ended(*words: str) -> int:
        argv = [sys.executable, "-m", "distconsole_agent", "step-ended", *words]
        return subprocess.run(argv, check=False, capture_output=True).returncode

    words = ("--run", str(tmp_path), "--code", "5")
    assert ended(*words) == 5
    (tmp_path / "verdict.json").write_text('{"state": "failed", "exit_code": 7}')
    assert ended(*words) == 7
    assert ended("--run", str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("log", "told", "hint"),
    [
        ("srun: error: node1: task 0: Killed\n", "node1: task 0: Killed", "slurmd's log"),
        ("", "it said nothing", "/tmp of its own"),
    ],
)
def test_srun_says_why_a_shim_is_missing(tmp_path: Path, log: str, told: str, hint: str) -> None:
    (tmp_path / STEP_ENDED).touch()
    (tmp_path / STEP_LOG).write_text(log)
    with pytest.raises(Refusal, match=f"supervisor: {told}") as refused:
        slurm.await_shim("r", SimpleNamespace(folder=lambda _: str(tmp_path)))  # type: ignore[arg-type]
    assert hint in str(refused.value.hint)
