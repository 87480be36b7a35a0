"""Shims that srun would have started, and a srun that is gone: real shims, without Slurm."""

import signal
from pathlib import Path

import pytest

from distconsole_agent.coordination.link import tell_death
from distconsole_agent.supervisor.processes import SLURMS_SIGNALS
from fakes.shims import StartedRun, wait_until

SIGNALS = sum(1 << (number - 1) for number in SLURMS_SIGNALS)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("/r/step.sh: line 9: 77 Killed    srun --jobid 3\n", (137, "srun was killed by SIGKILL")),
        ("srun: error: host1: task 1: Killed\n", (1, "node host1 lost: its shim is gone")),
    ],
)
def test_a_node_that_is_lost_with_its_srun_is_not_blamed(
    tmp_path: Path, log: str, told: tuple[int, str]
) -> None:
    argv = ["sh", "-c", "sleep 600"]
    with StartedRun(tmp_path, argv, nodes=2, launcher="slurm", below_slurm=True) as run:
        first, other = run.shims
        other.pid(1)
        (first.run_dir / "step.log").write_text(log)
        (first.run_dir / "step.ended").write_text('{"exit_code": 137}')
        other.process.send_signal(signal.SIGKILL)
        other.process.wait()
        assert tell_death(str(other.run_dir), "")  # as its agent does
        verdict = first.event("verdict")
        assert first.process.wait() == told[0]
    assert (verdict["exit_code"], verdict["first_failure"]["error"]) == told


@pytest.mark.parametrize(("launcher", "blocked"), [("mpi", SIGNALS), ("horovod", 0)])
def test_only_mpirun_gets_no_slurm_signals(tmp_path: Path, launcher: str, blocked: int) -> None:
    def mask(status: str) -> int:
        (line,) = [line for line in status.splitlines() if line.startswith("SigBlk:")]
        return int(line.split()[1], 16)

    said = tmp_path / "status"
    argv = ["sh", "-c", f"exec cp /proc/self/status {said}"]
    with StartedRun(tmp_path, argv, launcher=launcher, below_slurm=True):
        wait_until("its signals", lambda: said.exists() and "ctxt" in said.read_text())
    assert mask(said.read_text()) == blocked
