"""Ranks of jobs that nobody prepared are found in recorded /proc trees, each launcher's; and nothing else is kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from distconsole_agent.survey.processes import read_processes
from distconsole_agent.survey.worlds import SurveyedJob, find_jobs

SPAWN = (
    "python3 -c from~multiprocessing.spawn~import~spawn_main;~spawn_main(5) --multiprocessing-fork"
)
ELASTIC = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}


class P(NamedTuple):
    pid: int
    ppid: int
    line: str
    env: Mapping[str, str | int] = {}
    name: str = "python3"


def record(root: Path, processes: list[P]) -> None:
    for each in processes:
        folder = root / str(each.pid)
        folder.mkdir()
        rest = f"S {each.ppid} 1 1 0 -1 4194304 " + "0 " * 12 + f"{1000 + each.pid} 0 0"
        (folder / "stat").write_text(f"{each.pid} ({each.name}) {rest}\n")
        line = (word.replace("~", " ").encode() + b"\0" for word in each.line.split())
        (folder / "cmdline").write_bytes(b"".join(line))
        words = (f"{name}={value}".encode() + b"\0" for name, value in each.env.items())
        (folder / "environ").write_bytes(b"".join(words))


def ranks(job: SurveyedJob) -> dict[int, int]:
    return {rank: found.seen.pid for rank, found in job.ranks.items()}


def elastic(rank: int, local: int, world: int = 4) -> dict[str, str | int]:
    return {
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": 2,
        **ELASTIC,
    }


def ompi(rank: int) -> dict[str, str | int]:
    return {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": 3,
        "PMIX_NAMESPACE": 77,
        "OMPI_COMM_WORLD_LOCAL_RANK": rank - 1,
        "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
    }


def horovod(rank: int) -> dict[str, str | int]:
    return {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": 2,
        "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": 4242,
    }


def slurm(rank: int, step: str = "0") -> dict[str, str | int]:
    told = {"SLURM_PROCID": rank, "SLURM_NTASKS": 4, "SLURM_LOCALID": rank % 2, "SLURM_JOB_ID": 12}
    return {**told, "SLURM_STEP_ID": step} if step else {**told}


SPAWNED = [P(21, 20, SPAWN), P(22, 20, SPAWN), P(23, 21, SPAWN, name="pt_data_worker")]
TREES = {
    "torchrun, with a DataLoader's worker": (
        [
            P(10, 1, "/v/bin/python /v/bin/torchrun --nnodes 2 train.py"),
            P(11, 10, "/v/bin/python -u train.py --lr 1", elastic(2, 0)),
            P(12, 10, "/v/bin/python -u train.py --lr 1", elastic(3, 1)),
            P(13, 12, "/v/bin/python -u train.py --lr 1", elastic(3, 1)),
        ],
        ("torchrun", "train.py", 4, {2: 11, 3: 12}, []),
    ),
    "by hand, below a Python that only starts it": (
        [
            P(10, 1, "python3 wrapper.py", elastic(1, 1, 2)),
            P(11, 10, "python3 train.py", elastic(1, 1, 2), "pt_main_thread"),
        ],
        ("by hand", "train.py", 2, {1: 11}, [0]),
    ),
    "torch.distributed.launch": (
        [
            P(10, 1, "python3 -m torch.distributed.launch --nproc_per_node 2 train.py"),
            P(11, 10, "python3 -u train.py --local_rank=0", elastic(0, 0)),
        ],
        ("torch.distributed.launch", "train.py", 4, {0: 11}, [1]),
    ),
    "accelerate": (
        [
            P(10, 1, "python3 /v/bin/accelerate launch train.py"),
            P(11, 10, "python3 -u train.py", elastic(0, 0)),
            P(12, 10, "python3 -u train.py", elastic(1, 1)),
        ],
        ("accelerate", "train.py", 4, {0: 11, 1: 12}, []),
    ),
    "mpirun, below a wrapper": (
        [
            P(10, 1, "orted -mca ess env", name="orted"),
            P(11, 10, "bash wrap.sh", ompi(1), "bash"),
            P(12, 11, "python3 train.py", ompi(1)),
            P(13, 10, "python3 train.py", ompi(2)),
        ],
        ("mpirun", "train.py", 3, {1: 12, 2: 13}, []),
    ),
    "horovodrun, whose own helpers are spawned": (
        [
            P(10, 1, "python3 /v/bin/horovodrun -np 2 python train.py"),
            P(14, 10, SPAWN),
            P(15, 10, SPAWN),
            P(11, 14, "python3 train.py", horovod(0)),
            P(12, 15, "python3 train.py", horovod(1)),
        ],
        ("horovodrun", "train.py", 2, {0: 11, 1: 12}, []),
    ),
    "srun, without and with its plugin for PMI-2": (
        [
            P(10, 1, "slurmstepd: [12.0]", name="slurmstepd"),
            P(11, 10, "python3 train.py", slurm(2)),
            P(12, 10, "python3 -m pkg.train", slurm(3, step="")),
            P(13, 10, "python3 train.py", {**slurm(3), "PMI_RANK": 3, "PMI_SIZE": 4}),
        ],
        ("srun", "train.py", 4, {2: 11, 3: 13}, []),
    ),
    "mpiexec inside a step of srun's": (
        [
            P(10, 1, "slurmstepd: [12.0]", name="slurmstepd"),
            P(11, 10, "mpiexec -n 2 python3 train.py", slurm(0), "mpiexec"),
            P(12, 11, "python3 train.py", {**slurm(0), "PMI_RANK": 0, "PMI_SIZE": 2}),
            P(13, 11, "python3 train.py", {**slurm(0), "PMI_RANK": 1, "PMI_SIZE": 2}),
        ],
        ("mpirun", "train.py", 2, {0: 12, 1: 13}, []),
    ),
    "torchrun below srun": (
        [
            P(9, 1, "slurmstepd: [12.0]", name="slurmstepd"),
            P(10, 9, "python3 /v/bin/torchrun train.py", slurm(1)),
            P(11, 10, "python3 train.py", {**slurm(1), **elastic(2, 0)}),
            P(12, 10, "python3 train.py", {**slurm(1), **elastic(3, 1)}),
        ],
        ("torchrun", "train.py", 4, {2: 11, 3: 12}, []),
    ),
    "mp.spawn": (
        [P(20, 1, "python3 spawn.py"), *SPAWNED],
        ("mp.spawn", "spawn.py", 2, {0: 21, 1: 22}, []),
    ),
    "by hand, with variables": (
        [P(11, 1, "python3 train.py", {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "10.0.0.1"})],
        ("by hand", "train.py", 2, {1: 11}, []),
    ),
    "by hand, with arguments": (
        [P(11, 1, "python3 train.py --rank 3 --world-size=4 --dist-url tcp://10.0.0.1:29500")],
        ("by hand", "train.py", 4, {3: 11}, []),
    ),
    "alone": (
        [P(11, 1, "python3 train.py", name="pt_main_thread"),
         P(12, 11, "python3 train.py", name="pt_main_thread")],
        ("by hand", "train.py", 1, {0: 11}, []),
    ),
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
def test_every_launchers_ranks_are_mapped_and_nothing_else(tree: str, tmp_path: Path) -> None:
    processes, (launcher, script, size, expected, gone) = TREES[tree]
    record(tmp_path, processes)
    (job,) = find_jobs(*read_processes(str(tmp_path)))
    assert (job.launcher, job.script, job.size) == (launcher, script, size)
    assert ranks(job) == expected
    assert job.gone() == gone


def test_jobs_that_meet_elsewhere_are_apart(tmp_path: Path) -> None:
    other = {**elastic(0, 0), "MASTER_PORT": 29501}
    here = {**elastic(0, 0, 1), "MASTER_ADDR": "localhost"}
    record(
        tmp_path,
        [
            P(10 + n, 1, "python3 train.py", env)
            for n, env in enumerate((elastic(0, 0), other, here))
        ],
    )
    jobs = find_jobs(*read_processes(str(tmp_path)))
    assert len({job.key for job in jobs}) == 3
    assert sorted(job.here for job in jobs) == [False, False, True]


def test_ranks_spawned_on_several_hosts_are_one_world_where_they_meet(tmp_path: Path) -> None:
    record(tmp_path, [P(20, 1, "python3 spawn.py"), *SPAWNED])
    asked: list[list[int]] = []

    def meets(pids: object) -> str:
        asked.append(list(pids))  # type: ignore[call-overload]
        return "10.0.0.1:29505"

    (job,) = find_jobs(*read_processes(str(tmp_path)), meets)
    assert (job.here, job.size, job.key) == (False, 0, "10.0.0.1:29505|")
    assert asked == [[21, 22]]


def test_of_an_environment_only_what_says_which_rank_it_is_is_kept(tmp_path: Path) -> None:
    env = {**elastic(0, 0), "AWS_SECRET_ACCESS_KEY": "hunter2", "WANDB_API_KEY": "hunter3"}
    record(
        tmp_path,
        [P(10, 1, "python3 train.py --token hunter4", env), P(11, 1, "vim notes", env, "vim")],
    )
    tree, seen = read_processes(str(tmp_path))
    assert set(seen[10].told) == set(elastic(0, 0))
    assert seen[11].told == {}
    assert "hunter" not in repr(find_jobs(tree, seen)[0].key)


def test_an_embedded_node_sees_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTCONSOLE_EMBEDDED", "m-node1")
    marked = {
        name: {**elastic(0, 0), "DISTCONSOLE_EMBEDDED": f"m-{name}"} for name in ("node1", "node2")
    }
    envs = (marked["node2"], elastic(0, 0), marked["node1"])
    record(tmp_path, [P(10 + at, 1, "python3 train.py", env) for at, env in enumerate(envs)])
    (job,) = find_jobs(*read_processes(str(tmp_path)))
    assert ranks(job) == {0: 12}


@pytest.mark.parametrize(
    "line",
    [
        "python3 -E /h/.cache/distconsole/agent-0123456789abcdef.pyz agent --node-dir /tmp/d",
        "python3 -E /h/.cache/distconsole/agent-0123456789abcdef.pyz bridge",
        "python3 -S -E /h/agent-0123456789abcdef.pyz shim --run /tmp/d/runs/r",
        "python3 -E -S -c import~os 512 99 /h/agent-0123456789abcdef.pyz 2048 /tmp/d",
        "/usr/bin/python3.12 -m distconsole_agent agent --node-dir /tmp/d",
        "python3 -X dev -Im distconsole run train.py --rank 0 --world-size 4",
        "/home/me/venv/bin/python /home/me/venv/bin/distconsole run train.py",
    ],
)
def test_processes_of_distconsole_itself_are_no_ranks(tmp_path: Path, line: str) -> None:
    record(tmp_path, [P(10, 1, line, elastic(0, 0))])
    assert find_jobs(*read_processes(str(tmp_path))) == []


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("/tmp/distconsole/.venv/bin/python /tmp/distconsole/examples/train.py", "train.py"),
        ("python3 -u /tmp/distconsole-0/runs/r-1/code/train.py", "train.py"),
        ("python3 distconsole/agent.py", "agent.py"),
        ("python3 -um distconsole_training.recipes.digits", "distconsole_training.recipes.digits"),
        ("python3 -m distconsole_agents.train", "distconsole_agents.train"),
        ("python3 train.py --init distconsole_agent", "train.py"),
        ("python3 agent-resnet.pyz", "agent-resnet.pyz"),
        ("python3 -W ignore -c import~distconsole_agent", "-c"),
    ],
)
def test_a_rank_is_found_wherever_its_script_lies(tmp_path: Path, line: str, script: str) -> None:
    record(tmp_path, [P(10, 1, line, elastic(0, 0))])
    (job,) = find_jobs(*read_processes(str(tmp_path)))
    assert (job.script, ranks(job)) == (script, {0: 10})
