"""Ranks that stand still say where they are, however they do it, and go on as if nobody had asked."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distconsole_agent.roll_call import calling, ways
from distconsole_agent.roll_call.calling import Seat, call_ranks
from fakes.shims import wait_until
from suite.lean_torch import LEAN_TORCH

if TYPE_CHECKING:
    from conftest import Outcome, Runner

OUTSIDE = {"py-spy", "python"}
"""The ways that read the memory of a process; which one depends on the version of Python."""

STALLS = f"""{LEAN_TORCH}
import ctypes, os, sys, time
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
    with open("new-%d" % rank, "w") as file: file.write(str(os.getpid()))
    os.rename("new-%d" % rank, "pid-%d" % rank)
    if rank == 2: stuck_in_c()
    if rank > 0: load_image()
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


def functions(call: dict[str, Any]) -> list[str]:
    assert call["threads"], call
    return [frame["function"] for frame in call["threads"][0]["frames"]]


@pytest.mark.torch_ranks
def test_a_conditional_collective_shows_who_is_where_and_harms_nobody(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Outcome] = []
    thread = threading.Thread(target=lambda: ended.append(runner.watched(STALLS)))
    thread.start()
    here = runner.scripts
    try:
        wait_until("ranks", lambda: all((here / f"pid-{rank}").exists() for rank in range(3)))
        pids = [int((here / f"pid-{rank}").read_text()) for rank in range(3)]
        seats = [Seat(pid, {"rank": at, "silent_s": 1.0}, "") for at, pid in enumerate(pids)]
        rings = str(runner.folder / "watched" / "rings")

        def called() -> list[dict[str, Any]]:
            return call_ranks(seats, rings, 3.0)

        def waiting() -> bool:
            first = called()[0]["collectives"]
            return bool(first) and first[0]["seq"] == 3

        wait_until("the third collective", waiting)
        read = called()
        monkeypatch.setattr(ways, "find_py_spy", lambda _python: None)
        monkeypatch.setattr(ways, "stacks_by_python", lambda *_: None)
        waits, loads, stuck = called()
        again = called()[2]
        for rank in range(3):
            path = ways.find_server(rings, seats[rank].pid or 0)
            assert path is not None
            assert Path(path).stat().st_mode & 0o777 == 0o600
        wait_until("the gate", (here / "gate").exists)
        (here / "gate").open("w").close()
        wait_until("another answer", lambda: called()[2]["way"] == "server")
        free = called()[2]
    finally:
        (here / "go").touch()
        thread.join()
    places = [functions(each)[0] for each in read[1:]]
    assert ([each["way"] for each in read], places) == (
        ["py-spy"] * 3,
        ["load_image", "stuck_in_c"],
    )
    assert (waits["way"], loads["way"], stuck["way"]) == ("server", "server", "proc")
    assert "all_reduce" in functions(waits)
    assert functions(loads)[0] == "load_image"
    assert {"way": "server", "why": f"no answer within 0.5 s: {ways.HELD}"} in stuck["refused"]
    owed = next(each["why"] for each in again["refused"] if each["way"] == "server")
    assert owed.endswith(f" s after a request there is no answer: {ways.HELD}")
    assert (free["refused"], functions(free)[0]) == ([], "load_image")
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


def test_a_worker_of_a_loader_that_is_waited_for_says_where_it_is(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "WORKER_SECONDS", 30.0)
    # By the file's name: where a frame of torch's loader is on the stack, its workers are asked.
    loader = runner.scripts / "torch" / "utils" / "data" / "dataloader.py"
    loader.parent.mkdir(parents=True)
    loader.write_text(LOADS)
    process, state = runner.begin("", command=lambda _script: [sys.executable, str(loader)])
    try:
        child = int(process.stdout.readline())
        seat = Seat(process.pid, {"rank": 0}, "")
        (told,) = call_ranks([seat], str(state / "rings"), 30.0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    (worker,) = told["children"]
    assert (told["way"] in OUTSIDE, functions(told)[0]) == (True, "get_data")
    assert (worker["pid"], worker["frames"][0]["function"]) == (child, "augment")


ENDS = f"""{LEAN_TORCH}
import os, sys, time, torch.distributed as dist
class Late:
    def __init__(self): self.open, self.read, self.write = os.open, os.read, os.write
    def __del__(self):
        # Python is ending; the lock is free while it waits.
        self.write(1, b"ending\\n")
        self.read(self.open("gate", os.O_RDONLY), 1)
os.mkfifo("gate")
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"), rank=0, world_size=1)
print("up", flush=True)
sys.modules["late"] = Late()
"""


@pytest.mark.torch_ranks
def test_a_rank_that_is_ending_just_ends(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "find_py_spy", lambda _python: None)
    monkeypatch.setattr(ways, "stacks_by_python", lambda *_: None)
    process, state = runner.begin(ENDS)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    gate = os.open(runner.scripts / "gate", os.O_RDWR)  # waits for no reader
    try:
        (told,) = call_ranks([Seat(process.pid, {"rank": 0}, "")], str(state / "rings"), 1.0)
        os.write(gate, b".")
        rest = process.communicate(timeout=60)
    finally:
        os.close(gate)
        process.kill()
        process.communicate()
    assert (lines, told["alive"], told["way"]) == (["up\n", "ending\n"], True, "proc")
    assert (process.returncode, *rest) == (0, "", "")


PREPARED = """
import os, resource, sys
if os.environ.pop("FIRST", ""):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    os.execv(sys.executable, [sys.executable, __file__])
def seen():
    caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt"))
    return caught, sorted(os.listdir("/proc/self/fd")), "faulthandler" in sys.modules
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
before = seen()
for _ in range(3):
    one = interpreters.create()
    (getattr(interpreters, "exec", None) or interpreters.run_string)(one, "import sys")
    interpreters.destroy(one)
print(before, seen() == before, os.fork() and os.wait()[1])
"""


def test_nothing_is_prepared_in_a_process_that_could_end_it(runner: Runner) -> None:
    # Neither a handler of a signal nor a descriptor: in forks, other interpreters, with few descriptors.
    runner.unchanged(PREPARED, env={"FIRST": "1"})


FORKS = """
import os, signal, threading, time
def sleeps(): time.sleep(600)
def one(): sleeps()
def two(): sleeps()
def three(): sleeps()
signal.signal(62, lambda *_: os._exit(62))
for place in (one, two):
    if os.fork() == 0: place()
for _ in range(120): threading.Thread(target=sleeps, daemon=True).start()
print("up", flush=True)
three()
"""


def test_forked_ranks_and_one_with_many_threads_are_each_where_they_are(runner: Runner) -> None:
    process, state = runner.begin(FORKS)
    try:
        assert process.stdout.readline() == "up\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        pids = [*map(int, children), process.pid]
        seats = [Seat(pid, {"rank": rank}, "") for rank, pid in enumerate(pids)]
        wait_until(
            "the forks", lambda: all(each["threads"] for each in call_ranks(seats, "", 3.0))
        )
        told = call_ranks(seats, str(state / "rings"), 3.0)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert [functions(each)[:2] for each in told] == [
        ["sleeps", place] for place in ("one", "two", "three")
    ]
