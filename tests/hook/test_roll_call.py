"""Ranks that stand still say where they are, however they do it, and go on as if nobody had asked."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distconsole_agent.roll_call import ways
from distconsole_agent.roll_call.calling import Seat, call_ranks
from fakes.shims import wait_until

if TYPE_CHECKING:
    from conftest import Outcome, Runner

STALLS = """
import ctypes, os, sys, time, torch
import torch.distributed as dist

def load_image():
    while not os.path.exists("go"): time.sleep(0.01)

def stuck_in_c():
    # With Python's lock held, until somebody opens the other end.
    ctypes.PyDLL(None).open(b"gate", os.O_RDONLY)

def join(rank):
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"), rank=rank, world_size=3)
    tensor = torch.ones(4)
    for _ in range(2): dist.all_reduce(tensor)
    with open(f"pid-{rank}.new", "w") as file: file.write(str(os.getpid()))
    os.rename(f"pid-{rank}.new", f"pid-{rank}")
    if rank == 1: load_image()
    if rank == 2: stuck_in_c()
    dist.all_reduce(tensor)
    dist.destroy_process_group()

if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    os.mkfifo("gate")
    context = torch.multiprocessing.get_context("fork")
    ranks = [context.Process(target=join, args=(rank,)) for rank in range(3)]
    for rank in ranks: rank.start()
    for rank in ranks: rank.join()
    print([rank.exitcode for rank in ranks])
"""


def seats_of(folder: Path) -> list[Seat]:
    pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(3)]
    return [Seat(pid, {"rank": rank, "silent_s": 1.0}, "") for rank, pid in enumerate(pids)]


def functions(call: dict[str, Any]) -> list[str]:
    assert call["threads"], call
    return [frame["function"] for frame in call["threads"][0]["frames"]]


@pytest.mark.torch_ranks
def test_a_conditional_collective_shows_who_is_where_and_harms_nobody(runner: Runner) -> None:
    ended: list[Outcome] = []
    thread = threading.Thread(target=lambda: ended.append(runner.watched(STALLS)))
    thread.start()
    here = runner.scripts
    try:
        wait_until("ranks", lambda: all((here / f"pid-{rank}").exists() for rank in range(3)))
        seats, rings = seats_of(here), str(runner.folder / "watched" / "rings")

        def called() -> list[dict[str, Any]]:
            return call_ranks(seats, rings, 3.0)

        def waiting() -> bool:
            first = called()[0]["collectives"]
            return bool(first) and first[0]["seq"] == 3

        wait_until("the third collective", waiting)
        waits, loads, stuck = called()
        for rank in range(3):
            path = ways.find_server(rings, seats[rank].pid or 0)
            assert path is not None
            assert Path(path).stat().st_mode & 0o777 == 0o600
    finally:
        (here / "go").touch()
        wait_until("the gate", (here / "gate").exists)
        (here / "gate").open("w").close()
        thread.join()
    assert (waits["way"], loads["way"], stuck["way"]) == ("server", "server", "signal")
    assert "all_reduce" in functions(waits)
    assert functions(loads)[0] == "load_image"
    assert functions(stuck)[0] == "stuck_in_c"
    assert stuck["refused"] == [
        {"way": "server", "why": "no answer in time: the process holds Python's lock"}
    ]
    told = [
        (each["collectives"][0]["seq"], each["collectives"][0]["done_seq"])
        for each in (waits, loads, stuck)
    ]
    assert told == [(3, 2), (2, 2), (2, 2)]
    assert waits["collectives"][0]["op"] == "all_reduce"
    assert [each.seen for each in ended] == [(0, "[0, 0, 0]\n", "")]


LOADS = """
import os, time
def augment():
    os.read(waited_for, 1)
    print(os.getpid(), flush=True)
    time.sleep(600)
def get_data(child):
    os.write(waits, b".")
    os.waitpid(child, 0)
waited_for, waits = os.pipe()
child = os.fork()
if child == 0: augment()
get_data(child)
"""


def test_a_worker_of_a_loader_that_is_waited_for_says_where_it_is(runner: Runner) -> None:
    # By the file's name: where a frame of torch's loader is on the stack, its workers are asked.
    loader = runner.scripts / "torch" / "utils" / "data" / "dataloader.py"
    loader.parent.mkdir(parents=True)
    loader.write_text(LOADS)
    process, state = runner.begin("", command=lambda _script: [sys.executable, str(loader)])
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        seat = Seat(process.pid, {"rank": 0}, "")
        (told,) = call_ranks([seat], str(state / "rings"), 3.0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    (worker,) = told["children"]
    assert (told["way"], functions(told)[0]) == ("signal", "get_data")
    assert (worker["pid"], worker["frames"][0]["function"]) == (child, "augment")
