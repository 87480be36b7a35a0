"""Commands of READMEs, one of each family, on two hosts: the ranks have the place and the variables that their own launcher gives.

Where that launcher can start ranks without a GPU it does so beside it, on this machine, and the two are compared.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distconsole.grammar.verbs import parse_args
from distconsole.model.requests import Run
from distconsole.model.run_events import EndState
from distconsole.session import open_session
from suite.driving import Operator
from suite.neighbours import BESIDE_TORCH, accelerate, neighbour
from suite.programs import run_to_end
from testbed import Testbed
from testbed.slurm import Slurm

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("lean_here")]

TELL = """
import json, os, sys
{join}
e = os.environ
told = {{"argv": sys.argv[1:], "env": dict(e), "sum": total, "host": os.uname().nodename}}
rank = next((e[n] for n in ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK") if n in e), "0")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{{rank}}.json"), "w") as file:
    json.dump(told, file)
"""
"""A rank says in a file how it was started, and what all ranks are together."""

ALONE = "total = None"
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
assert accelerator.mixed_precision == "no", accelerator.mixed_precision
total = int(accelerator.reduce(torch.tensor([10.0 ** accelerator.process_index])).item())
accelerator.end_training()
"""
DEEPSPEED = """
import torch, deepspeed, deepspeed.comm as dist
from deepspeed.accelerator import get_accelerator
deepspeed.ops.__compatible_ops__.clear()  # what it would compile takes minutes
deepspeed.init_distributed("gloo")
assert get_accelerator().device_count() == int(os.environ["LOCAL_SIZE"])
sums = torch.tensor([10.0 ** dist.get_rank()])
dist.all_reduce(sums)
total = int(sums.item())
dist.barrier()
dist.destroy_process_group()
"""
FABRIC = """
import torch
from lightning.fabric import Fabric
fabric = Fabric()  # launched by the command: launch() would be once too often
total = int(fabric.all_reduce(torch.tensor([10.0 ** fabric.global_rank]), reduce_op="sum").item())
torch.distributed.destroy_process_group()  # a thread of gloo's that is left lets go of a tensor while Python ends: SIGABRT
"""

PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
OF_PLACE = {
    *(*PLACE, "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "TORCHELASTIC_RUN_ID", "NCCL_SOCKET_IFNAME"),
    *(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK")),
    *(f"HOROVOD_{name}" for name in ("CROSS_SIZE", "HOSTNAME", "GLOO_IFACE")),
    *(f"HOROVOD_GLOO_RENDEZVOUS_{name}" for name in ("ADDR", "PORT")),
}
"""Variables that differ because there are two hosts; each is looked at."""
NOT_GIVEN = {
    # How torchrun's agent watches its ranks, which no agent of torchrun does here.
    *("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    # What libraries set in themselves while they are imported, and threads by the processors of a host.
    *("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR", "OMP_NUM_THREADS"),
    *("PWD", "OLDPWD", "SHLVL", "_", "PYTHONPATH"),
}


def write(folder: Path, join: str = ALONE) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tell.py"
    path.write_text(TELL.format(join=join))
    return path


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]


def run(
    bed: Testbed, folder: Path, command: str, hosts: str = "", join: str = ALONE, how: str = ""
) -> list[dict[str, Any]]:
    """Run ``command``, in which SCRIPT stands for one that tells; return what each rank has told."""
    script = write(folder, join)
    words = shlex.split(command.replace("SCRIPT", str(script)))
    named = ["--hosts", hosts] if hosts else []
    request = parse_args(
        ["--ssh-config", str(bed.ssh_config), "run", *named, *how.split(), "--", *words]
    )
    assert isinstance(request, Run)
    with Operator(request, open_session) as operator:
        end = operator.end()
        operator.finish()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), "\n".join(operator.lines())
    return read(folder)


def original(folder: Path, *words: str, **env: str) -> dict[str, Any]:
    """Return what the last rank tells where the launcher itself starts it here, of its variables the added ones."""
    script = write(folder)
    before = {**os.environ, **env}
    argv = [word.replace("SCRIPT", str(script)) for word in words]
    argv = [sys.executable, *argv]
    done = run_to_end(argv, env=before)
    assert done.returncode == 0, done.stderr
    last = read(folder)[-1]
    added = {name: value for name, value in last["env"].items() if before.get(name) != value}
    return {**last, "env": added}


def assert_same(first: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Assert that a rank has each variable of the original launcher, and but for its place the same value."""
    env = first["env"]
    given = {name: value for name, value in theirs["env"].items() if name not in NOT_GIVEN}
    assert given.keys() - env.keys() == set()
    same = {name: value for name, value in given.items() if name not in OF_PLACE}
    assert {name: env[name] for name in same} == same


def assert_placed(ranks: list[dict[str, Any]], *locals_: int) -> None:
    """Assert the place of each rank by torch's variables; ``locals_``: how many each host has."""
    world = sum(locals_)
    hosts = [host for host, count in enumerate(locals_) for _ in range(count)]
    places = [(host, hosts[:rank].count(host)) for rank, host in enumerate(hosts)]
    assert [[each["env"][name] for name in PLACE] for each in ranks] == [
        [str(rank), str(local), str(world), str(locals_[host]), str(host), str(len(locals_))]
        for rank, (host, local) in enumerate(places)
    ]
    assert [each["host"] for each in ranks] == [f"node{host + 1}" for host in hosts]
    (meeting,) = {(each["env"]["MASTER_ADDR"], each["env"]["MASTER_PORT"]) for each in ranks}
    assert meeting[0] not in ("127.0.0.1", "localhost")


@pytest.mark.torch_ranks
def test_torchrun(lean_bed: Testbed, tmp_path: Path) -> None:
    ranks = run(
        lean_bed,
        tmp_path / "ours",
        "FOO=1 torchrun --nnodes=2 --nproc_per_node=2 --node_rank=0 --rdzv_id 7 --rdzv_backend c10d "
        "--rdzv_endpoint node1:29400 SCRIPT --x 1",
        "node1,node2",
    )
    assert_placed(ranks, 2, 2)
    assert [(each["argv"], each["env"]["FOO"]) for each in ranks] == [(["--x", "1"], "1")] * 4
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0")
    assert_same(ranks[-1], original(tmp_path / "theirs", *torchrun, "SCRIPT"))


def test_torch_distributed_launch(lean_bed: Testbed, tmp_path: Path) -> None:
    ranks = run(
        lean_bed,
        tmp_path,
        "CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.launch --nproc_per_node=2 "
        "--master_port 9527 SCRIPT --cfg x",
        "node1,node2",
    )
    assert_placed(ranks, 2, 2)
    assert [each["argv"] for each in ranks] == [
        [f"--local_rank={local}", "--cfg", "x"] for local in (0, 1, 0, 1)
    ]
    assert {each["env"]["CUDA_VISIBLE_DEVICES"] for each in ranks} == {"0,1"}


@pytest.mark.horovod
def test_horovodrun(lean_bed: Testbed, tmp_path: Path) -> None:
    options = "--fusion-threshold-mb 32 --cycle-time-ms 3.5 --autotune --no-hierarchical-allreduce"
    ranks = run(
        lean_bed, tmp_path / "ours", f"horovodrun -np 3 -H node1:2,node2:2 {options} python SCRIPT"
    )
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [[each["env"][f"HOROVOD_{name}"] for name in names] for each in ranks] == [
        ["0", "3", "0", "2", "0", "2"],
        ["1", "3", "1", "2", "0", "1"],
        ["2", "3", "0", "1", "1", "2"],
    ]
    assert [each["host"] for each in ranks] == ["node1", "node1", "node2"]
    horovodrun = ("-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2")
    words = (*horovodrun, *options.split(), sys.executable, "SCRIPT")
    assert_same(ranks[-1], original(tmp_path / "theirs", *words))


@pytest.mark.mpi
def test_mpirun(lean_bed: Testbed, tmp_path: Path) -> None:
    ranks = run(
        lean_bed,
        tmp_path,
        "mpirun -np 3 -host node1,node1,node2,node2 -bind-to none -map-by slot -x FOO=1 -x PATH "
        "-mca btl ^openib -mca btl_tcp_if_exclude lo python SCRIPT a",
    )
    names = ("RANK", "SIZE", "LOCAL_RANK")
    assert [[each["env"][f"OMPI_COMM_WORLD_{name}"] for name in names] for each in ranks] == [
        ["0", "3", "0"],
        ["1", "3", "1"],
        ["2", "3", "0"],
    ]
    assert [each["host"] for each in ranks] == ["node1", "node1", "node2"]
    assert {(each["env"]["FOO"], each["argv"][0]) for each in ranks} == {("1", "a")}
    assert {each["env"]["OMPI_MCA_btl_tcp_if_exclude"] for each in ranks} == {"lo"}


@pytest.mark.slurm
@pytest.mark.parametrize(
    "command",
    [
        "srun --nodes=2 --ntasks=4 --gres=gpu:2 --label --export=ALL,FOO=1 python SCRIPT a",
        "srun -N2 --gres=gpu:2 python SCRIPT a",
        "srun -N2 --ntasks-per-node=1 torchrun --nproc_per_node 2 --rdzv_endpoint '$head:1' SCRIPT a",
    ],
    ids=["srun", "srun without tasks", "torchrun below srun"],
)
def test_srun(slurm: Slurm, tmp_path: Path, command: str) -> None:
    command = f"PYTHONPATH={os.environ['PYTHONPATH']} {command}"
    ranks = run(slurm.bed, tmp_path, command, how=f"--slurm-login {slurm.login.name}")
    one_a_node = "ntasks" not in command
    assert_placed(ranks, *((1, 1) if one_a_node else (2, 2)))
    nodes = [each["env"]["SLURM_NODEID"] for each in ranks]
    assert nodes == (["0", "1"] if one_a_node else ["0", "0", "1", "1"])
    assert {each["argv"][0] for each in ranks} == {"a"}
    if "FOO=1" in command:
        assert {each["env"]["FOO"] for each in ranks} == {"1"}
        assert [each["env"]["SLURM_PROCID"] for each in ranks] == ["0", "1", "2", "3"]
        assert {each["env"]["SLURM_NTASKS"] for each in ranks} == {"4"}


@pytest.mark.slurm
def test_srun_inside_of_a_job(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slurm.allocation() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        ranks = run(slurm.bed, tmp_path, "srun -N2 -n4 --export=ALL,FOO=1 python SCRIPT a")
    assert_placed(ranks, 2, 2)
    assert {each["env"]["SLURM_JOB_ID"] for each in ranks} == {variables["SLURM_JOB_ID"]}
    assert {each["env"]["FOO"] for each in ranks} == {"1"}


CONFIG = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
main_training_function: main
mixed_precision: 'no'
num_machines: 2
num_processes: 3
rdzv_backend: static
same_network: true
use_cpu: true
"""
FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_offload_params: false
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 1
dynamo_config:
  dynamo_backend: INDUCTOR
mixed_precision: bf16
num_machines: 1
num_processes: 2
"""


@pytest.mark.torch_ranks
def test_accelerate(lean_bed: Testbed, tmp_path: Path) -> None:
    packages = f"{accelerate()}:{os.environ['PYTHONPATH']}"
    (tmp_path / "cpu.yaml").write_text(CONFIG)
    ranks = run(
        lean_bed,
        tmp_path / "ours",
        f"PYTHONPATH={packages} accelerate launch --config_file {tmp_path}/cpu.yaml SCRIPT --x 1",
        "node1:2,node2:1",
        ACCELERATE,
    )
    assert_placed(ranks, 2, 1)
    assert [(each["argv"], each["sum"]) for each in ranks] == [(["--x", "1"], 111)] * 3
    launch = ("-m", "accelerate.commands.launch", "--config_file", f"{tmp_path}/cpu.yaml")
    alone = original(tmp_path / "theirs", *launch, "SCRIPT", PYTHONPATH=packages)
    assert_same(ranks[0], alone)


BESIDE = pytest.mark.parametrize(
    "beside", [False, pytest.param(True, marks=pytest.mark.campaign)], ids=["placed", "compared"]
)
"""The library and its own launcher are tried with plain accelerate and torchrun; of others they take seconds more."""


@BESIDE
@pytest.mark.torch_ranks
def test_accelerate_with_fsdp(lean_bed: Testbed, tmp_path: Path, beside: bool) -> None:
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    config = f"--config_file {tmp_path}/fsdp.yaml --mixed_precision fp16"
    ranks = run(
        lean_bed,
        tmp_path / "ours",
        f"accelerate launch {config} --fsdp_offload_params true SCRIPT",
        "node1:1,node2:1",
    )
    assert_placed(ranks, 1, 1)
    assert ranks[-1]["env"]["FSDP_OFFLOAD_PARAMS"] == "true"
    if beside:
        launch = (*config.split(), "--fsdp_offload_params", "true", "SCRIPT")
        argv = ("-m", "accelerate.commands.launch", *launch)
        alone = original(tmp_path / "theirs", *argv, PYTHONPATH=str(accelerate()))
        assert_same(ranks[-1], alone)


def deepspeed() -> str:
    needs = ("einops", "hjson", "msgpack", "psutil", "py-cpuinfo", "pydantic", "pydantic-core")
    more = ("annotated-types", "typing-inspection", "tqdm")
    return str(neighbour("deepspeed", "deepspeed~=0.19.0", *needs, *more, options=BESIDE_TORCH))


@BESIDE
@pytest.mark.torch_ranks
def test_deepspeed(
    lean_bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    monkeypatch.setenv("DS_BUILD_OPS", "0")
    packages = deepspeed() if beside else ""
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node1 slots=2\nnode2 slots=2\nnode3 slots=2\n")
    filtered = f"--hostfile {hostfile} --exclude node1:0@node2:0@node3 --master_port 29501"
    ranks = run(
        lean_bed,
        tmp_path / "ours",
        f"PYTHONPATH={packages} DS_ACCELERATOR=cpu deepspeed {filtered} SCRIPT --zero 2",
        join=DEEPSPEED if beside else ALONE,
    )
    assert_placed(ranks, 1, 1)
    assert [(each["argv"], each["sum"]) for each in ranks] == [
        (["--local_rank=0", "--zero", "2"], 11 if beside else None)
    ] * 2
    crossing = [[each["env"][name] for name in ("CROSS_RANK", "CROSS_SIZE")] for each in ranks]
    assert crossing == [["0", "2"], ["1", "2"]]
    assert {each["env"].pop("CUDA_VISIBLE_DEVICES") for each in ranks} == {"1"}
    if beside:
        runner = ("-m", "deepspeed.launcher.runner", "--num_gpus", "1", "SCRIPT")
        alone = original(tmp_path / "theirs", *runner, PYTHONPATH=packages, DS_ACCELERATOR="cpu")
        assert alone["env"].pop("CUDA_VISIBLE_DEVICES") == "0"
        assert_same(ranks[-1], alone)


def lightning() -> str:
    needs = ("lightning-utilities", "torchmetrics", "tqdm")
    return str(neighbour("lightning", "lightning~=2.6.0", *needs, options=BESIDE_TORCH))


@BESIDE
@pytest.mark.torch_ranks
def test_fabric(lean_bed: Testbed, tmp_path: Path, beside: bool) -> None:
    packages = lightning() if beside else ""
    options = "--accelerator=cpu --strategy=ddp --devices=1 --precision=bf16-mixed"
    ranks = run(
        lean_bed,
        tmp_path / "ours",
        f"PYTHONPATH={packages} fabric run {options} --num-nodes=2 --node-rank=0 "
        "--main-address=10.0.0.1 SCRIPT a",
        "node1,node2",
        FABRIC if beside else ALONE,
    )
    assert_placed(ranks, 1, 1)
    assert [(each["argv"], each["sum"]) for each in ranks] == [(["a"], 11 if beside else None)] * 2
    if beside:
        words = ("-m", "lightning.fabric.cli", *options.split(), "SCRIPT", "a")
        alone = original(tmp_path / "theirs", *words, PYTHONPATH=packages)
        alone["env"]["LT_NUM_NODES"] = "2"
        assert_same(ranks[-1], alone)
