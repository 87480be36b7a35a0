"""The launch that is checked: planned as ``run`` plans it, on hosts that answer from a list."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distconsole.checks.engine.target import Launch
from distconsole.checks.engine.targeting import argument_paths, make_planner
from distconsole.errors import ConfigError, UsageError
from distconsole.grammar.verbs import parse_line
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.rpc.frames import Address, Hello
from distconsole.session import Session

SCRIPT = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


@pytest.fixture
def folder(cwd: Path) -> Path:
    """The console's own folder, with a script in it."""
    (cwd / "train.py").write_text(SCRIPT)
    return cwd


class FakeLink:
    """What the planner reads of a node."""

    def __init__(self, host: Host, number: int) -> None:
        self.host = host
        self.name = host.name
        self.python = self.interpreter(host.python)
        self.address = ""
        self.hello = Hello(
            protocol=1,
            version="1",
            agent_pid=number,
            hostname=host.name,
            boot_id=f"boot-{number}",
            user="u",
            uid=1000,
            python="/usr/bin/python3",
            python_version="3.11.2",
            cpus=8,
            node_dir="/tmp/n",
            gpus=2,
            addresses=(
                Address(
                    iface="eth0",
                    address=f"10.0.0.{number}",
                    family=4,
                    prefix=24,
                    up=True,
                    loopback=False,
                ),
            ),
        )

    def interpreter(self, python: str | None) -> str:
        """Return its path; everybody's home is /home/u."""
        return (python or "/usr/bin/python3").replace("~/", "/home/u/")

    def connect(self) -> None:
        """It is."""

    def request(self, _op: str, **_arguments: Any) -> dict[str, Any]:
        """Say what the node has of Horovod and MPI."""
        return {
            "facts": {
                "horovod": {"present": True, "version": "0.28.1", "controllers": ["gloo", "mpi"]},
                "mpi": {"present": True, "family": "Open MPI", "version": "4.1.4", "daemon": "x"},
                "own_addresses": [self.hello.addresses[0].address],
            }
        }


def launch_of(line: str, *hosts: Host, away: str = "") -> Launch:
    request = parse_line(line)
    assert request.target is not None
    given = hosts or (Host(HostName("a")), Host(HostName("b")))
    links = {host.name: FakeLink(host, number) for number, host in enumerate(given, 1)}
    session = SimpleNamespace(
        cluster=Cluster(given), link=lambda name: links[name], has_link=lambda _: True
    )
    reached = [host for host in given if host.name != away]
    return make_planner(request, request.target)(cast("Session", session), reached)


def ranks(launch: Launch) -> dict[str, int]:
    return {name: len(host.ranks) for name, host in launch.hosts.items()}


def test_a_script_is_planned_as_run_does_it(folder: Path) -> None:
    launch = launch_of("check --env NCCL_DEBUG=INFO train.py --data ./train.py")
    assert (launch.launcher, launch.auto, launch.world_size) == ("torch", True, 4)
    assert (launch.path, launch.workdir) == (str(folder / "train.py"), str(folder))
    assert (launch.traits.backend, launch.traits.distributed) == ("nccl", True)
    first = launch.hosts["a"]
    assert (first.address, first.interface, first.ranks) == ("10.0.0.1", "eth0", (0, 1))
    assert first.env["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert first.env["NCCL_DEBUG"] == "INFO"
    assert "MASTER_PORT" not in first.env  # found when the run starts
    assert [each.path for each in launch.paths] == [str(folder / "train.py")]
    assert "NCCL_DEBUG" in launch.report().hosts[0].env


@pytest.mark.parametrize(
    ("words", "slots", "expected"),
    [
        ("mpirun -np 4", (None, None), {"a": 2, "b": 2}),
        ("horovodrun -np 3", (None, None), {"a": 2, "b": 1}),
        ("horovodrun -np 3", (2, 2), {"a": 2, "b": 1}),
        ("horovodrun -np 2", (2, 2), {"a": 2}),
        ("torchrun --nproc_per_node 3", (None, None), {"a": 3, "b": 3}),
        ("torchrun", (None, None), {"a": 1, "b": 1}),
        ("srun --ntasks-per-node=2", (None, None), {"a": 2, "b": 2}),
    ],
)
def test_ranks_of_a_command_are_divided_among_the_hosts(
    folder: Path, words: str, slots: tuple[int | None, int | None], expected: dict[str, int]
) -> None:
    hosts = [Host(HostName(name), slots=count) for name, count in zip("ab", slots, strict=True)]
    launch = launch_of(
        f"check -- {words} python3 train.py".replace("torchrun python3", "torchrun").replace(
            "--nproc_per_node 3 python3", "--nproc_per_node 3"
        ),
        *hosts,
    )
    assert launch.refused == ""
    assert ranks(launch) == expected


@pytest.mark.parametrize(
    ("line", "address", "port"),
    [
        ("check train.py", "", None),
        ("check --env MASTER_PORT=29777 train.py", "", 29777),
        ("check -- MASTER_ADDR=a MASTER_PORT=29777 python3 train.py", "a", 29777),
        ("check -- torchrun train.py", "", 29500),
        ("check -- torchrun --rdzv_endpoint a:29401 --rdzv_backend c10d train.py", "a", 29401),
        ("check -- python3 train.py --init_method tcp://10.0.0.1:23456", "10.0.0.1", 23456),
        ("check -- distconsole run --launcher torchrun --env MASTER_PORT=1 train.py", "", None),
    ],
)
def test_the_rendezvous_is_what_the_launch_fixes(
    folder: Path, line: str, address: str, port: int | None
) -> None:
    launch = launch_of(line)
    assert (launch.address, launch.port) == (address, port)
    assert bool(launch.fixed_by) == (port is not None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("check --nic ens9 train.py", "a has no interface ens9"),
        ("check --nnodes 3 train.py", "--nnodes 3 means 3 hosts"),
        ("check --launcher torchrun --pass-args torch-launch train.py", "--pass-args"),
        ("check --sync nothere.py", "does not exist"),
    ],
)
def test_what_run_would_refuse_is_a_part_of_the_plan(folder: Path, line: str, words: str) -> None:
    launch = launch_of(line)
    assert words in launch.refused
    assert launch.world_size == 0
    assert set(launch.hosts) == {"a", "b"}


def test_more_ranks_than_slots_are_refused(folder: Path) -> None:
    hosts = (Host(HostName("a"), slots=1), Host(HostName("b"), slots=1))
    assert (
        "3 ranks asked for, and the hosts have 2 slots"
        in launch_of("check -- mpirun -np 3 python3 train.py", *hosts).refused
    )


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("check --env-file /nowhere train.py", ConfigError),
        ("check train.py --nproc 2", UsageError),
    ],
)
def test_what_cannot_be_asked_is_an_error_before_any_host_is(
    folder: Path, line: str, error: type[Exception]
) -> None:
    request: Any = parse_line(line)
    with pytest.raises(error):
        make_planner(request, request.target)


def test_the_interpreter_of_the_command_is_that_of_its_ranks_alone(folder: Path) -> None:
    launch = launch_of("check -- /opt/py/bin/python train.py")
    assert {host.python for host in launch.hosts.values()} == {"/opt/py/bin/python"}
    mine = launch_of(
        "check --python /mine -- /opt/py/bin/python train.py", Host(HostName("a"), python="/mine")
    )
    assert launch.why == "the script uses torch.distributed: env:// ranks"
    assert mine.hosts["a"].python == "/mine"
    home = launch_of("check -- '~/venv/bin/python' train.py", Host(HostName("a")))
    assert home.hosts["a"].python == "/home/u/venv/bin/python"


def test_code_to_be_synced_travels_with_the_question(folder: Path) -> None:
    (folder / "model.py").write_text("import json\n")
    (folder / "data.bin").write_bytes(bytes(100))
    launch = launch_of("check --sync train.py")
    assert launch.refused == ""
    assert set(launch.sources or {}) == {str(folder / "train.py"), str(folder / "model.py")}
    assert (launch.root, launch.brought.partition(" ")[0]) == (str(folder), "3")


def test_a_pasted_srun_with_code_to_be_synced_is_planned_on_these_hosts(folder: Path) -> None:
    launch = launch_of("check --sync -- srun -n 2 python3 train.py")
    assert (launch.launcher, launch.refused) == ("torch", "")


def test_no_secret_of_the_command_is_in_what_is_told_of_it(folder: Path) -> None:
    launch = launch_of(
        "check -- HF_TOKEN=abc123 NCCL_DEBUG=INFO python3 train.py --api_key=xyz789"
    )
    told = str(launch.report())
    assert launch.hosts["a"].env["HF_TOKEN"] == "abc123"
    assert "abc123" not in told
    assert "xyz789" not in told
    assert "NCCL_DEBUG=INFO" in told


@pytest.mark.parametrize(
    ("words", "slots", "missing"),
    [
        ("train.py", (None, None), ("b",)),
        ("-- mpirun -np 4 python3 train.py", (2, 2), ("b",)),
        ("-- mpirun -np 2 python3 train.py", (2, 2), ()),
        ("-- mpirun -np 1 python3 train.py", (None, None), ()),
        ("--nnodes 1:2 train.py", (None, None), ()),
        ("--nnodes 2 train.py", (None, None), ("b",)),
    ],
)
def test_a_launch_tells_which_hosts_it_needs_and_lacks(
    folder: Path, words: str, slots: tuple[int | None, int | None], missing: tuple[str, ...]
) -> None:
    hosts = [Host(HostName(name), slots=count) for name, count in zip("ab", slots, strict=True)]
    launch = launch_of(f"check {words}", *hosts, away="b")
    assert launch.missing == launch.report().missing == missing


PATHS_HERE = {"/w/data/train", "/w/conf.yaml", "/w/cifar", "/w/gpt2"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--data /mnt/x --epochs 3", [("/mnt/x", "--data", False)]),
        ("--data=/mnt/x/", [("/mnt/x", "--data", False)]),
        (
            "--output-dir ./out --save /s",
            [("/w/out", "--output-dir", True), ("/s", "--save", True)],
        ),
        ("--resume-checkpoint /c/1.pt", [("/c/1.pt", "--resume-checkpoint", False)]),
        ("--checkpoint_dir /c", [("/c", "--checkpoint_dir", True)]),
        ("--log-dir ../logs", [("/logs", "--log-dir", True)]),
        ("data/train conf.yaml", [("/w/data/train", "", False), ("/w/conf.yaml", "", False)]),
        ("--dataset cifar --dataset other", [("/w/cifar", "--dataset", False)]),
        ("--model gpt2", []),
        ("--model meta/llama --lr 1e-3 --data s3://b/x --name a", []),
        ("--size 3x3 --date 1/2 -v --", []),
        ("--data ~/x --glob '/d/*.tar'", []),
        ("--data /", []),
        ("/d /d /d", [("/d", "", False)]),
    ],
)
def test_paths_among_arguments(line: str, found: list[tuple[str, str, bool]]) -> None:
    told = argument_paths(shlex.split(line), "/w", PATHS_HERE.__contains__)
    assert [(each.path, each.option, each.output) for each in told] == found
