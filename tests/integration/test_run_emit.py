"""Files of ``run --emit``, given to the real sbatch, torchrun and mpirun."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.model.events import TextMade
from distconsole.model.requests import EmitKind, LauncherName, Run, Where
from distconsole.session import open_session
from suite.driving import Operator, answered
from suite.lean_torch import LEAN_TORCH, lean_torch
from testbed import Host, Testbed
from testbed.keeper import wait_for
from testbed.slurm import SLURM_ENVIRONMENT, Slurm

pytestmark = [pytest.mark.testbed, pytest.mark.slurm]

SECRET = "hunter2-of-the-test"
SPEAK = """
import argparse, os, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--words")
given = parser.parse_args()
e = os.environ
assert e["MASTER_ADDR"] and e["MASTER_PORT"] and e["LOCAL_WORLD_SIZE"] == "2"
told = (e["RANK"], e["LOCAL_RANK"], given.local_rank, e["WORLD_SIZE"], given.words, e["LR"],
        e["WANDB_API_KEY"], os.getcwd())
pathlib.Path(sys.argv[0] + "." + e["RANK"]).write_text(repr(told))
"""
BEGINS_AGAIN = f"""{LEAN_TORCH}
import os
import torch.distributed as dist

store, rank, world = next(dist.rendezvous("env://"))
assert store.add("ranks", 1) <= world, "the store is that of the round before"
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
dist.barrier()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("only once")
dist.destroy_process_group()
"""
WORDS = 'it\'s $HOME "quoted"'


def asked(bed: Slurm, folder: Path, kind: EmitKind, **options: object) -> Run:
    folder.joinpath("speak.py").write_text(SPEAK)
    hosts = ",".join(node.name for node in bed.nodes)
    given = {
        "where": Where(hosts=hosts, ssh_config=str(bed.bed.ssh_config)),
        "env": (("LR", "1 $x"), ("WANDB_API_KEY", SECRET), *lean_torch(folder).items()),
        "workdir": str(folder),
        "nproc": "2",
        "emit": kind,
        "output": str(folder / "file.sh"),
    }
    return Run("speak.py", ("--words", WORDS), **{**given, **options})  # type: ignore[arg-type]


def written(made: Run) -> Path:
    answered(made, open_session)
    assert made.output is not None
    file = Path(made.output)
    assert SECRET not in file.read_text()
    return file


def all_spoke(folder: Path) -> bool:
    told = [folder / f"speak.py.{rank}" for rank in range(4)]
    return wait_for(lambda: all(each.exists() and each.read_text() for each in told), 30) and all(
        each.read_text()
        == repr((str(rank), str(rank % 2), rank % 2, "4", WORDS, "1 $x", SECRET, str(folder)))
        for rank, each in enumerate(told)
    )


def test_sbatch_takes_the_file(slurm: Slurm, tmp_path: Path) -> None:
    file, out = written(asked(slurm, tmp_path, EmitKind.SBATCH)), tmp_path / "out"
    submit = ["sbatch", "--output", str(out), str(file)]
    slurm.login.exec(submit)
    assert wait_for(lambda: out.exists() and "set it before" in out.read_text(), 30)
    assert "WANDB_API_KEY" in out.read_text()
    slurm.login.exec(submit, env={"WANDB_API_KEY": SECRET})
    assert all_spoke(tmp_path), out.read_text()
    slurm.cancel_all()


def test_sbatch_takes_a_file_for_nodes_that_slurm_chooses(slurm: Slurm, tmp_path: Path) -> None:
    options = {"slurm": "-N 2 --gres=gpu:2", "where": Where(), "nproc": None}
    file, out = written(asked(slurm, tmp_path, EmitKind.SBATCH, **options)), tmp_path / "out"
    slurm.login.exec(["sbatch", "--output", str(out), str(file)], env={"WANDB_API_KEY": SECRET})
    assert all_spoke(tmp_path), out.read_text()
    slurm.cancel_all()


COUNT = """
import os, pathlib, sys
told = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
pathlib.Path(sys.argv[0] + ".cpus").write_text(told)
"""


def test_a_rank_of_sbatchs_file_has_the_processors_that_the_job_asked_for(tmp_path: Path) -> None:
    """srun of 22.05 and 23.02 binds a task to one where it does not get --cpus-per-task itself."""
    cpus = os.cpu_count() or 1
    settings = {"TaskPlugin": "task/affinity", "TaskPluginParam": "autobind=cores"}
    with (
        Testbed(2, environment=SLURM_ENVIRONMENT) as bed,
        Slurm(bed, cpus=cpus, settings=settings) as slurm,
    ):
        options = {"slurm": f"-N1 -n1 -c{cpus}", "where": Where(), "nproc": None}
        made = asked(slurm, tmp_path, EmitKind.SBATCH, **options)
        (tmp_path / "speak.py").write_text(COUNT)
        slurm.login.exec(
            ["sbatch", "--wait", "--output", str(tmp_path / "out"), str(written(made))],
            env={"WANDB_API_KEY": SECRET},
        )
    assert (tmp_path / "speak.py.cpus").read_text() == f"{cpus} of {cpus}"


@pytest.mark.mpi
def test_mpirun_takes_the_file(slurm: Slurm, tmp_path: Path) -> None:
    file = written(asked(slurm, tmp_path, EmitKind.MPIRUN))
    slurm.nodes[0].exec(["bash", str(file)], env={"WANDB_API_KEY": SECRET})
    assert all_spoke(tmp_path)


@pytest.mark.torch_ranks
def test_torchrun_takes_the_file(slurm: Slurm, tmp_path: Path) -> None:
    run_on_each_host(slurm.nodes, written(asked(slurm, tmp_path, EmitKind.TORCHRUN)))
    assert all_spoke(tmp_path)


@pytest.mark.torch_ranks
def test_ranks_that_the_file_for_torchrun_begins_again_have_a_store_of_their_own(
    slurm: Slurm, tmp_path: Path
) -> None:
    script = tmp_path / "again.py"
    script.write_text(BEGINS_AGAIN)
    request = asked(slurm, tmp_path, EmitKind.TORCHRUN, nproc="1", max_restarts=1)
    one = replace(request.where, hosts=slurm.nodes[0].name)
    file = written(replace(request, script=script.name, arguments=(), where=one))
    assert "--rdzv-backend static" in file.read_text()
    run_on_each_host(slurm.nodes[:1], file)


def run_on_each_host(nodes: list[Host], file: Path) -> None:
    running = [
        node.popen(["bash", str(file)], env={"WANDB_API_KEY": SECRET}, stderr=subprocess.PIPE)
        for node in nodes
    ]
    ends = [process.communicate(timeout=90)[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(nodes), ends


def test_the_file_is_text_where_no_output_is_given(slurm: Slurm, tmp_path: Path) -> None:
    made = asked(slurm, tmp_path, EmitKind.TORCHRUN, output=None, launcher=LauncherName.TORCH)
    with Operator(made, open_session) as operator:
        operator.finish()
        assert operator.of(TextMade)[0].text.startswith("#!/bin/bash\n")
