"""Ranks that a module of the script's starts, which no reading of the script shows: each is a rank, watched and asked."""

from pathlib import Path
from typing import Any

import pytest

from suite.console import Console
from suite.lean_torch import LEAN_TORCH
from suite.remains import gone
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles"), pytest.mark.torch_ranks]

STARTER = """
import os
import torch.multiprocessing as mp

def launch(way, work, count=2):
    first = count * int(os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK")))
    if way == "fork":
        mp.start_processes(work, (first,), count, start_method="fork")
    elif way == "spawn":
        mp.spawn(work, (first,), count)
    else:
        child = os.fork()
        work(0 if child else 1, first)
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""
"""A library's launcher: two ranks on each host, by one way of starting processes or another."""

TRAINS = """
import os, sys, time
import torch.distributed as dist
from starter import launch

def slow_storage():
    time.sleep(4)
    print("reading", flush=True)
    time.sleep(600)  # the line that is named

def work(local, first):
    rank, where = first + local, os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
    dist.init_process_group("gloo", init_method=f"tcp://{where}", rank=rank, world_size=4)
    model = torch.nn.Linear(4, 1)  # in DDP what spawn starts never ends with the lean torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().mean().backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        time.sleep(0.05)
    if rank == 3 and sys.argv[2] == "hang":
        slow_storage()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()

if __name__ == "__main__":
    launch(sys.argv[1], work)
"""
SCRIPT = LEAN_TORCH + TRAINS
LINE = SCRIPT.splitlines().index("    time.sleep(600)  # the line that is named") + 1

WAYS = [("spawn", "auto"), ("fork", "torch"), ("os.fork", "single")]


def start(bed: Testbed, folder: Path, launcher: str, way: str, what: str) -> Console:
    (folder / "starter.py").write_text(STARTER)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    words = ("run", "--json", "--launcher", launcher, "--nproc", "1", "--grace", "2")
    return Console(bed, folder, *words, str(script), way, what)


def last_states(console: Console) -> dict[int, tuple[str, str]]:
    return {each["rank"]: (each["host"], each["state"]) for each in console.of("rank")}


def findings(console: Console) -> list[dict[str, Any]]:
    """Return what was found, but for what a busy machine may do to any run: to its first step, too."""
    slow = ("run.straggler", "run.stall", "run.rare_looks")
    return [each for each in console.of("finding") if each["check"] not in slow]


@pytest.mark.parametrize(("way", "launcher"), WAYS)
def test_the_rank_that_hangs_is_named_whoever_started_it_and_asked_when_the_run_stalls(
    way: str, launcher: str, standing_bed: Testbed, tmp_path: Path
) -> None:
    first, second = standing_bed.host_names
    with start(standing_bed, tmp_path, launcher, way, "hang") as console:
        console.see(150, event="log", line="reading")
        stalls = (
            [console.see(180, event="finding", check="run.stall", rank=3)] if way == "fork" else []
        )
        with Console(standing_bed, tmp_path, "why", "--json", console.run) as asked:
            assert asked.wait() == 0, asked.stderr
            (told,) = asked.events
        hosts = {rank: host for rank, (host, _) in last_states(console).items()}
        with Console(standing_bed, tmp_path, "stop", console.run) as stopped:
            assert stopped.wait() == 0, stopped.stderr
        assert console.wait() == 143
    diagnosis = told["diagnosis"]
    assert (diagnosis["ranks"], diagnosis["hosts"]) == ([3], [second]), told
    assert f"train.py:{LINE}" in diagnosis["summary"], told
    assert hosts == {0: first, 1: first, 2: second, 3: second}
    assert findings(console) == []
    for stall in stalls:
        assert stall["hosts"] == [second]
        assert f"slow_storage at train.py:{LINE}" in stall["summary"]
    assert not gone(*standing_bed.hosts)


def test_spawned_ranks_that_train_to_the_end_have_ended_well(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    """Ranks that raise, and those of single, are in test_every_launcher."""
    first, second = standing_bed.host_names
    with start(standing_bed, tmp_path, "auto", "spawn", "end") as console:
        assert console.wait(180) == 0, console.stderr
    places = {0: first, 1: first, 2: second, 3: second}
    assert last_states(console) == {rank: (host, "exited") for rank, host in places.items()}
    assert findings(console) == []
    steps = [each for each in console.of("window") if each["steps"]]
    assert {each["rank"]: each["host"] for each in steps} == places
