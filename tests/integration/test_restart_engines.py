"""``--max-restarts`` below real engines: nothing of an attempt is in the way of the next one."""

from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.model.events import Narration
from distconsole.model.requests import LauncherName, Run, Where
from distconsole.model.run_events import EndState, LogLine, RunFinding, RunRestarted
from distconsole.session import open_session
from suite.driving import Operator, write_script
from suite.lean_torch import LEAN_TORCH
from suite.remains import gone
from testbed import Testbed
from testbed.slurm import Slurm

pytestmark = pytest.mark.testbed

FAIL_TWICE = """
import os, sys, time
restart = int(os.environ.get("DISTCONSOLE_RESTART", 0))
print(f"attempt {restart}", flush=True)  # in one write: it may be killed behind any
if restart < 2:
    if os.environ["RANK"] == "1":
        raise ValueError(f"boom {restart}")
    time.sleep(300)
"""

HOROVOD = f"""{LEAN_TORCH}
import os, time
import horovod.torch as hvd
hvd.init()
rank, restart = hvd.rank(), int(os.environ.get("DISTCONSOLE_RESTART", 0))

def total():
    return int(hvd.allreduce(torch.tensor([10 ** rank]), op=hvd.Sum).item())

print("attempt", restart, "sums to", total(), flush=True)
if restart == 0 and rank == 1:
    raise ValueError("boom 0")
if restart == 0:
    total()
    time.sleep(300)
hvd.shutdown()
"""

TORCHRUN = f"""{LEAN_TORCH}
import fcntl, os, pathlib, signal, time
import torch.distributed as dist

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
rank, world, restart, allowed = (
    int(os.environ[name])
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
)
held = []
for path in [*pathlib.Path(sys.argv[1]).glob(f"{{restart - 1}}-*"), pathlib.Path(sys.argv[1], f"{{restart}}-{{rank}}")]:
    held.append(path.open("w"))
    fcntl.flock(held[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
fcntl.flock(held[-1], fcntl.LOCK_EX)  # as long as this process is there
store, _, _ = next(dist.rendezvous("env://"))
assert store.add("ranks", 1) <= world, "the store is that of the round before"
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
summed = torch.tensor([10 ** rank])
dist.all_reduce(summed)
print(f"attempt {{restart}} of {{allowed}} sums to {{summed.item()}}", flush=True)
if restart == 1:
    dist.destroy_process_group()
elif rank == 1:
    raise ValueError(f"boom {{restart}}")
else:
    while not asked:
        time.sleep(0.05)
    time.sleep(2)  # such as one that writes a checkpoint at its end
    os._exit(1)
"""
"""Ranks that end slowly, and look that no rank of the round before is there, nor what it has left in the store."""


def followed(request: Run) -> list[str]:
    """Run to the end, which is a success; return what ranks printed, and how each attempt failed."""
    with Operator(request, open_session) as run:
        end = run.end(150)
        run.finish()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    assert end.restarts == len(run.of(RunRestarted))
    told = [each for each in run.of(RunFinding) if each.check == "run.restart"]
    assert [(each.rank, f"boom {n}" in each.seen) for n, each in enumerate(told)] == [
        (1, True)
    ] * len(told)
    # In the last attempt every rank says so; in those before, some may have been too slow.
    # What stands there while a line is written is none yet.
    whole = [each.line for each in run.of(LogLine) if not each.transient]
    lines = [line for line in whole if line.startswith("attempt")]
    assert len([line for line in lines if line.startswith(f"attempt {end.restarts}")]) == 2
    return sorted(set(lines))


def request(
    folder: Path,
    text: str,
    bed: Testbed,
    launcher: LauncherName,
    arguments: tuple[str, ...] = (),
    hosts: str = "node1:1,node2:1",
) -> Run:
    where = Where(ssh_config=str(bed.ssh_config), hosts=hosts)
    path = write_script(folder, text)
    return Run(path, arguments, where=where, launcher=launcher, max_restarts=3, grace_seconds=4)


@pytest.mark.torch_ranks
@pytest.mark.parametrize(
    "hosts", ["node1:1,node2:1", pytest.param("node1:2", marks=pytest.mark.campaign)]
)
def test_torchruns_meet_anew_once_every_old_rank_has_ended(
    standing_bed: Testbed, tmp_path: Path, hosts: str, lean: dict[str, str]
) -> None:
    words = (str(tmp_path),)
    asked = request(tmp_path, TORCHRUN, standing_bed, LauncherName.TORCHRUN, words, hosts)
    asked = replace(asked, env=tuple(lean.items()))
    assert followed(asked) == [f"attempt {n} of 3 sums to 11" for n in range(2)]
    assert not gone(*standing_bed.hosts)


@pytest.mark.mpi
def test_mpirun_and_its_daemons_start_anew(standing_bed: Testbed, tmp_path: Path) -> None:
    asked = request(tmp_path, FAIL_TWICE, standing_bed, LauncherName.MPI)
    assert followed(asked) == ["attempt 0", "attempt 1", "attempt 2"]
    assert not gone(*standing_bed.hosts)


@pytest.mark.horovod
def test_horovods_ranks_meet_anew(standing_bed: Testbed, tmp_path: Path) -> None:
    asked = request(tmp_path, HOROVOD, standing_bed, LauncherName.HOROVOD)
    assert followed(asked) == ["attempt 0 sums to 11", "attempt 1 sums to 11"]
    assert not gone(*standing_bed.hosts)


@pytest.mark.slurm
def test_a_submitted_job_starts_its_ranks_anew_within_its_step(
    slurm: Slurm, tmp_path: Path
) -> None:
    path = tmp_path / "job.py"
    path.write_text(FAIL_TWICE)
    asked = Run(
        str(path),
        where=Where(ssh_config=str(slurm.bed.ssh_config)),
        slurm="-N1",
        slurm_login=slurm.login.name,
        nproc="2",
        max_restarts=3,
    )
    assert followed(asked) == ["attempt 0", "attempt 1", "attempt 2"]


@pytest.mark.slurm
def test_what_slurm_ends_in_a_pause_is_not_started_anew(slurm: Slurm, tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("import os\nraise SystemExit(5)\n")
    asked = Run(
        str(path),
        where=Where(ssh_config=str(slurm.bed.ssh_config)),
        slurm="-N2",
        slurm_login=slurm.login.name,
        launcher=LauncherName.SLURM,
        max_restarts=9,
    )
    with Operator(asked, open_session) as run:
        told = run.see(Narration, lambda event: "submitted Slurm job" in event.text).text
        run.see(RunFinding, lambda finding: "restart 4 of 9 in 4 s" in finding.summary)
        slurm.login.exec(f"scancel {told.split()[3]}")
        end = run.ended()
    assert (end.state, end.exit_code, end.restarts) == (EndState.FAILED, 5, 3)
    (why,) = [each for each in run.of(RunFinding) if each.check == "run.not_restarted"]
    assert why.summary == "not restarted: Slurm has ended the step"
