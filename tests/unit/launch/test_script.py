"""What is refused of scripts, what is read from them, and which launcher follows from it."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.cli.main import perform_headless
from distconsole.errors import PlanError, UsageError
from distconsole.launch.choose import decide
from distconsole.launch.script import (
    read_traits,
    refuse_missing_script,
    refuse_other_file,
    refuse_our_flags,
    traits_of,
)
from distconsole.model.cluster import Cluster, Host
from distconsole.model.job import ScriptTraits
from distconsole.model.names import HostName
from distconsole.model.requests import LauncherName, PassArgs, Run


@pytest.mark.parametrize(
    ("source", "launcher", "pass_args", "because"),
    [
        ("import torch.distributed as dist\ndist.init_process_group()", "torch", None, "env://"),
        ("from torch import distributed", "torch", None, "torch.distributed"),
        ("import torch", "torch", None, "imports torch"),
        ("print(1)", "torch", None, "names no launcher"),
        ("import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)", "single", None, "mp.spawn"),
        ("from torch.multiprocessing import spawn\nspawn(f, n)", "single", None, "mp.spawn"),
        (
            "import torch.multiprocessing as mp\n"
            "p.add_argument('--dist-url'); p.add_argument('--rank'); p.add_argument('--world-size')\n"
            "mp.spawn(main, nprocs=2)",
            "single",
            PassArgs.INIT_METHOD,
            "told the node's number by --rank",
        ),
        (
            "from subprocess import run\nc = ['torchrun', 'a.py']\nrun(c)",
            "single",
            None,
            "torchrun",
        ),
        ("import os\nos.execv(p, ['torchrun', 't.py'])", "single", None, "torchrun"),
        ("from torch.distributed import run\nrun.main()", "single", None, "distributed.run)"),
        ("import os\nos.system('torchrun t.py')\ninit_process_group()", "torch", None, "env://"),
        ("import os\nloss.backward()\nos.system('torchrun t.py')", "torch", None, "no launcher"),
        ("import os, transformers\nos.system('torchrun t.py')", "torch", None, "no launcher"),
        ("from subprocess import run\nrun(['mpirun', '--version'])", "torch", None, "no launcher"),
        ("import torch\nm = torch.nn.DataParallel(m)", "single", None, "DataParallel"),
        (
            "import torch, torch.distributed as dist\nm = torch.nn.DataParallel(m)",
            "single",
            None,
            "DataParallel",
        ),
        (
            "import torch.distributed as dist\nfrom mine import setup_ranks\n"
            "m = nn.parallel.DistributedDataParallel(m) if ranks else nn.DataParallel(m)",
            "torch",
            None,
            "torch.distributed",
        ),
        (
            "import torch.distributed as d\n"
            "m = torch.nn.parallel.DistributedDataParallel(m)\nd.init_process_group()",
            "torch",
            None,
            "torch.distributed",
        ),
        (
            "p.add_argument('--local_rank', type=int)",
            "torch",
            PassArgs.TORCH_LAUNCH,
            "--local_rank",
        ),
        (
            "p.add_argument('--local-rank', type=int)",
            "torch",
            PassArgs.TORCH_LAUNCH,
            "--local-rank",
        ),
        (
            "a('--x')\np.add_argument('--init_method')\np.add_argument('--rank')\n"
            "p.add_argument('--world-size')",
            "torch",
            PassArgs.INIT_METHOD,
            "--init_method",
        ),
        ("import torch, os\nos.environ['SLURM_PROCID']", "torch", None, "SLURM_PROCID"),
        ("import torch, horovod.torch as hvd", "horovod", None, "imports Horovod"),
        ("from horovod import torch", "horovod", None, "imports Horovod"),
        ("from mpi4py import MPI\nimport torch", "mpi", None, "imports mpi4py"),
        ("import mpi4py, horovod.torch", "mpi", None, "Horovod and mpi4py"),
        ("import horovod.torch as elastic", "horovod", None, "imports Horovod"),
    ],
)
def test_auto_reads_the_script_and_says_why(
    source: str, launcher: str, pass_args: PassArgs | None, because: str
) -> None:
    choice = decide(Run("t.py"), traits_of(source), {})
    assert (choice.launcher, choice.pass_args) == (LauncherName(launcher), pass_args)
    assert because in choice.why


@pytest.mark.parametrize(
    "source",
    [
        "import horovod.torch as hvd\n@hvd.elastic.run\ndef train(state): pass",
        "import horovod.torch as hvd\nstate = hvd.elastic.TorchState()",
        "from horovod.torch.elastic import run",
    ],
)
@pytest.mark.parametrize("asked", [LauncherName.AUTO, LauncherName.HOROVOD])
def test_elastic_horovod_is_told_apart_and_said(asked: LauncherName, source: str) -> None:
    choice = decide(Run("t.py", launcher=asked), traits_of(source), {})
    assert (choice.launcher, choice.elastic) == (LauncherName.HOROVOD, True)
    assert choice.why.endswith(", elastic (hvd.elastic)")


def test_a_variable_says_whether_ranks_are_elastic_where_the_script_does_not() -> None:
    traits = traits_of("import horovod.torch, my.loop")
    plain = decide(Run("t.py"), traits, {})
    told = decide(Run("t.py"), traits, {"HOROVOD_ELASTIC": "1"})
    assert (plain.elastic, told.elastic) == (False, True)
    assert told.why.endswith("; HOROVOD_ELASTIC=1")
    elastic = replace(traits, elastic=True)
    assert not decide(Run("t.py"), elastic, {"HOROVOD_ELASTIC": "0"}).elastic
    assert decide(Run("t.py"), elastic, {}).elastic


def test_elastic_horovod_by_mpi_is_not_elastic_and_that_is_said() -> None:
    traits = traits_of("import horovod.torch as hvd\n@hvd.elastic.run\ndef train(state): pass")
    by_mpi = decide(Run("t.py"), traits, {"HOROVOD_CONTROLLER": "mpi"})
    asked = decide(Run("t.py", launcher=LauncherName.MPI), traits, {})
    for choice in (by_mpi, asked):
        assert (choice.launcher, choice.elastic) == (LauncherName.MPI, False)
        assert choice.why.endswith("the ranks of mpirun are not elastic")
    assert not decide(Run("t.py"), traits_of("import horovod.torch"), {}).elastic


def test_a_script_that_is_not_here_is_assumed_to_be_ordinary(tmp_path: Path) -> None:
    traits = read_traits(tmp_path / "elsewhere.py")
    assert not traits.readable
    assert "is not on this machine" in decide(Run("t.py"), traits, {}).why


@pytest.mark.parametrize("source", ["def broken(:", "x = '\0'", "(" * 5000])
def test_a_script_that_does_not_parse_says_nothing(source: str) -> None:
    assert traits_of(source) == ScriptTraits(here=True)
    assert "is not Python that can be read" in decide(Run("t.py"), traits_of(source), {}).why


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("torchrun --nproc_per_node 4 train.py", "torchrun"),
        ("A=1 exec python3 -m torch.distributed.launch train.py", "torch.distributed.launch"),
        ("/opt/bin/python3.14t -m torch.distributed.run train.py", "torch.distributed.run"),
        ("  srun python train.py", "srun"),
        ("# torchrun train.py\npython train.py $@", ""),
    ],
)
def test_a_shell_script_that_starts_ranks_is_started_once_on_each_host(
    line: str, started: str
) -> None:
    choice = decide(Run("train.sh"), traits_of(f"#!/bin/bash\nset -e\n{line}\n"), {})
    assert choice.launcher is (LauncherName.SINGLE if started else LauncherName.TORCH)
    assert f"({started})" in choice.why if started else "starts no launcher" in choice.why


def test_a_word_in_a_string_or_comment_is_no_import() -> None:
    traits = traits_of("# import horovod\nx = 'import horovod; mp.spawn'")
    assert not traits.horovod
    assert not traits.spawns


IMAGENET = """
import argparse, os
import torch.distributed as dist
import torch.multiprocessing as mp
parser = argparse.ArgumentParser()
parser.add_argument('--world-size', default=-1, type=int)
parser.add_argument('--rank', default=-1, type=int)
parser.add_argument('--dist-url', default='tcp://224.66.41.62:23456', type=str)
parser.add_argument('--gpu', default=None, type=int)
parser.add_argument('--multiprocessing-distributed', action='store_true')

def main():
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    if {test}:
        mp.spawn(main_worker, nprocs=8, args=(8, args))
    else:
        main_worker(args.gpu, 8, args)

def main_worker(gpu, ngpus_per_node, args):
    dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url)
"""


@pytest.mark.parametrize(
    ("arguments", "launcher"),
    [
        (("--dist-url", "env://", "data"), "torch"),
        (("--dist-url=env://",), "torch"),
        (("--dist-url", "env://", "--multiprocessing-distributed"), "single"),
        (("--dist-url", "tcp://10.0.0.1:9"), "single"),
        ((), "single"),
    ],
)
def test_ranks_that_are_to_meet_by_variables_are_started_where_the_script_will_not_spawn(
    arguments: tuple[str, ...], launcher: str
) -> None:
    traits = traits_of(IMAGENET.replace("{test}", "args.multiprocessing_distributed"))
    choice = decide(Run("t.py", arguments), traits, {})
    assert choice.launcher == LauncherName(launcher)
    if launcher == "torch":
        assert choice.pass_args is None
        assert choice.why == (
            "--dist-url is env://, and --multiprocessing-distributed, with which the script "
            "starts its own ranks, is not given: env:// ranks"
        )


@pytest.mark.parametrize("test", ["True", "torch.cuda.is_available()", "args.gpu is None"])
def test_a_script_that_may_spawn_without_a_flag_is_left_to_spawn(test: str) -> None:
    traits = traits_of(IMAGENET.replace("{test}", test))
    choice = decide(Run("t.py", ("--dist-url", "env://")), traits, {})
    assert choice.launcher is LauncherName.SINGLE


HERE = Cluster((Host(HostName("localhost"), local=True),))


def test_a_script_that_is_not_on_this_machine_is_refused_in_one_line(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert perform_headless(Run(str(tmp_path / "missing.py"))) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[0] == f"error: the script {tmp_path}/missing.py does not exist"
    assert not list(home.rglob("*.db"))


def test_what_python_can_run_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with pytest.raises(PlanError, match="is a folder"):
        refuse_missing_script(Run("job", workdir=str(tmp_path)), HERE)
    (tmp_path / "job" / "__main__.py").write_text("")
    (tmp_path / "job.py").write_text("")
    refuse_missing_script(Run("job", workdir=str(tmp_path)), HERE)
    refuse_missing_script(Run("job.py", workdir=str(tmp_path)), HERE)
    with pytest.raises(PlanError, match=r"the folder .*/nowhere of --workdir does not exist"):
        refuse_missing_script(Run("job.py", workdir=str(tmp_path / "nowhere")), HERE)
    refuse_missing_script(Run("not.here", module=True), HERE)


def test_what_other_hosts_have_is_theirs_to_say() -> None:
    refuse_missing_script(Run("/data/job.py"), Cluster((*HERE.hosts, Host(HostName("a")))))


@pytest.mark.parametrize("workdir", [None, "its folder"])
@pytest.mark.parametrize("name", ["train", "my prog", "it's"])
def test_the_line_said_of_a_program_writes_a_script_that_starts_it_over_no_file(
    cwd: Path, name: str, workdir: str | None
) -> None:
    folder = cwd / (workdir or ".")
    folder.mkdir(exist_ok=True)
    shutil.copy("/bin/echo", folder / name)
    (folder / f"{name}.sh").write_text("mine\n")
    with pytest.raises(PlanError, match="is a program and no Python script") as caught:
        refuse_other_file(Run(name, workdir=workdir))
    subprocess.run(["sh", "-c", caught.value.hint.partition(": ")[2]], check=True)
    assert (folder / f"{name}.sh").read_text() == "mine\n"
    (made,) = (each for each in folder.iterdir() if each.name not in (name, f"{name}.sh"))
    started = subprocess.run(["sh", made, "a b"], cwd=folder, capture_output=True, check=True)
    assert started.stdout == b"a b\n"


def test_the_line_said_of_a_notebook_writes_over_no_script(cwd: Path) -> None:
    for taken, told in ((False, ""), (True, " --output train1")):
        if taken:
            (cwd / "train.py").touch()
        with pytest.raises(PlanError) as caught:
            refuse_other_file(Run("train.ipynb"))
        assert caught.value.hint.endswith(f"nbconvert --to script train.ipynb{told}")


@pytest.mark.parametrize(
    ("words", "source", "refused"),
    [
        (("--hosts", "a,b"), "print(1)", True),
        (("--lr", "1", "--nproc=4"), "print(1)", True),
        (("--max-restarts", "4"), "print(1)", True),
        (("--hosts", "a"), "parser.add_argument('--hosts')", False),
        (("--max-restarts", "4"), "max_restarts = FLAGS.max_restarts", False),
        (("--name", "x", "--json"), "print(1)", False),
        (("--", "--hosts", "a"), "print(1)", False),
        (("--hosts", "a"), "", False),
        (("--hosts", "a"), None, True),
        (("--nproc", "4"), None, False),
    ],
)
def test_an_option_of_ours_behind_a_script_that_does_not_know_it_is_refused(
    tmp_path: Path, words: tuple[str, ...], source: str | None, refused: bool
) -> None:
    if source is not None:
        (tmp_path / "t.py").write_text(source)
    request = Run("t.py", words, workdir=str(tmp_path))
    refuse_our_flags(replace(request, divided=True))
    if not refused:
        refuse_our_flags(request)
        return
    with pytest.raises(UsageError, match=r"--\w+(-\w+)? stands behind the script") as caught:
        refuse_our_flags(request)
    assert caught.value.hint.endswith(f"-- t.py {' '.join(words)}")
