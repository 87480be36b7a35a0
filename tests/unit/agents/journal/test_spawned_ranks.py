"""Ranks that a process of the plan starts, though the plan takes that process for a rank itself."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.runspec import NodeSpec
from distconsole_training.records import HEADER_CHILD
from fakes.drained_run import Run
from fakes.ring_writer import RingWriter


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Run]:
    """The plan has one rank for the node, rank 1, whose process is pid 50."""
    run = Run(tmp_path / "run", ranks=1)
    run.spec = run.spec._replace(nodes=(NodeSpec("a", "", (1,)),), world_size=2)
    run.crash()
    run.start(1, pid=50)
    run.tick(1.0)
    yield run
    run.close()


def child(run: Run, rank: int, pid: int, **more: Any) -> RingWriter:
    ring = run.ring(rank, pid=pid, parent_pid=50, flags=HEADER_CHILD, local_rank=-1, **more)
    ring.phase("rendezvous", 4, rank)
    ring.phase("init_process_group", 4, rank)
    return ring


def seats(run: Run) -> dict[int, int | None]:
    return {
        rank.rank: rank.pid
        for rank in run.collector.ranks
        if not run.collector.ranks.is_nobody(rank)
    }


def test_ranks_with_rings_are_ranks_and_their_spawner_is_none(spawner: Run) -> None:
    for rank, pid in ((2, 62), (3, 63)):
        child(spawner, rank, pid)
    spawner.tick(1.0)
    assert seats(spawner) == {2: 62, 3: 63}
    assert spawner.states()[1:] == [(2, "starting"), (2, "running"), (3, "starting"), (3, "running")]  # fmt: skip
    places = {each.rank: each.local_rank for each in spawner.collector.rank_processes()}
    assert places == {2: -1, 3: -1}


def test_a_rank_with_its_spawners_number_takes_its_place(spawner: Run) -> None:
    child(spawner, 1, 61)
    spawner.tick(1.0)
    assert seats(spawner) == {1: 61}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_end_of_an_inner_torchruns_rank_is_seen_while_the_script_goes_on(
    spawner: Run, order: tuple[int, int]
) -> None:
    """One of its ranks has the plan's number for the script, and the script may yet upload for hours."""
    spawner.change_spec(launcher="single")
    for rank in order:
        ring = spawner.ring(rank, pid=60 + rank, parent_pid=51, local_rank=rank - 1)
        ring.phase("init_process_group", 4, rank)
    spawner.tick(1.0)
    assert seats(spawner) == {1: 61, 2: 62}
    for ring in spawner.rings:
        ring.finish()
    spawner.tick(1.0)
    assert sorted(spawner.states()[-2:]) == [(1, "exited"), (2, "exited")]


def test_a_process_that_forks_a_rank_and_joins_the_group_stays_a_rank(spawner: Run) -> None:
    child(spawner, 3, 63)
    spawner.tick(1.0)
    assert seats(spawner) == {3: 63}
    own = spawner.ring(1, pid=50)
    own.phase("rendezvous", 4, 2)
    own.phase("init_process_group", 4, 2)
    spawner.tick(1.0)
    spawner.tick(1.0)
    assert seats(spawner) == {2: 50, 3: 63}
    spawner.exit(1, 3, pid=50)
    spawner.tick(1.0)
    ends = {e["rank"]: e for e in spawner.entries("state") if e["state"] == "failed"}
    assert ends[2]["exit_code"] == 3
    assert spawner.states()[-2:] == [(3, "exited"), (2, "failed")]


def test_a_child_with_a_group_of_its_own_is_not_taken_for_the_rank(spawner: Run) -> None:
    own = spawner.ring(1, pid=50)
    own.phase("rendezvous", 2, 1)
    own.phase("init_process_group", 2, 1)
    spawner.tick(1.0)
    child(spawner, 1, 61)
    child(spawner, 0, 60)
    spawner.tick(1.0)
    assert seats(spawner) == {1: 50}


def test_a_child_that_trains_before_it_joins_a_group_is_not_its_parent(spawner: Run) -> None:
    first, second = (
        spawner.ring(-1, pid=pid, parent_pid=50, flags=HEADER_CHILD) for pid in (62, 63)
    )
    for ring in (first, second):
        ring.step(0)
    spawner.tick(1.0)
    spawner.tick(120.0)
    assert spawner.entries("window") == []
    for rank, ring in ((2, first), (3, second)):
        ring.phase("rendezvous", 4, rank)
        ring.set_rank(rank)
        ring.step(1)
    spawner.tick(1.0)
    told = [(each["rank"], each["step"]) for each in spawner.entries("window")]
    assert told == [(2, 0), (2, 1), (3, 0), (3, 1)]


def test_a_child_that_trains_and_joins_no_group_is_its_parents_rank(spawner: Run) -> None:
    ring = spawner.ring(-1, pid=62, parent_pid=50, flags=HEADER_CHILD)
    ring.step(0)
    spawner.tick(1.0)
    assert spawner.entries("window") == []
    spawner.tick(10.0)
    assert [each["rank"] for each in spawner.entries("window")] == [1]
    ring.step(1)
    ring.set_rank(3)
    spawner.tick(1.0)
    assert [each["rank"] for each in spawner.entries("window")] == [1, 3]


def test_children_of_another_rank_silence_no_child_that_trains_for_its_own(run: Run) -> None:
    children = []
    for rank in (0, 1):
        run.start(rank, pid=50 + rank)
        run.ring(rank, pid=50 + rank).phase("interpreter")  # their parents do not train
        children.append(run.ring(-1, pid=60 + rank, parent_pid=50 + rank, flags=HEADER_CHILD))
    for ring in children:
        ring.step(0)
    run.tick(1.0)
    run.tick(10.0)
    assert [(each["rank"], each["step"]) for each in run.entries("window")] == [(0, 0), (1, 0)]


def test_of_children_that_joined_no_group_the_first_is_read_at_the_end(spawner: Run) -> None:
    for pid in (62, 63):
        ring = spawner.ring(-1, pid=pid, parent_pid=50, flags=HEADER_CHILD)
        ring.step(0)
        spawner.tick(1.0)
    spawner.tick(60.0)
    assert spawner.entries("window") == []
    spawner.exit(1, pid=50)
    spawner.tick(1.0)
    assert [(each["rank"], each["step"]) for each in spawner.entries("window")] == [(1, 0)]


def test_a_child_does_not_speak_for_a_parent_that_trains(spawner: Run) -> None:
    own = spawner.ring(1, pid=50)
    own.step(0)
    spawner.tick(1.0)
    spawner.ring(-1, pid=62, parent_pid=50, flags=HEADER_CHILD).step(5)
    spawner.tick(1.0)
    own.step(1)
    spawner.tick(60.0)
    spawner.exit(1, pid=50)
    spawner.tick(1.0)
    assert [(w["rank"], w["steps"]) for w in spawner.entries("window")] == [(1, 1), (1, 1)]


def test_the_start_of_a_spawned_rank_is_counted_from_its_own(spawner: Run) -> None:
    spawner.tick(20.0)
    child(spawner, 1, 61)
    child(spawner, 2, 62)
    spawner.tick(1.0)
    phases = spawner.entries("phase")
    assert {each["rank"] for each in phases} == {1, 2}
    assert all(each["child"] and each["seconds"] < 1 for each in phases)


def test_lines_that_several_ranks_print_are_of_none(spawner: Run) -> None:
    child(spawner, 2, 62)
    spawner.tick(1.0)
    spawner.log(1, "hello\n")
    spawner.tick(1.0)
    assert spawner.text(None) == "hello\n"


def test_an_agent_that_comes_back_knows_who_was_spawned(spawner: Run) -> None:
    ring = child(spawner, 2, 62)
    child(spawner, 3, 63)
    spawner.tick(1.0)
    spawner.crash()
    spawner.tick(1.0)
    assert seats(spawner) == {2: 62, 3: 63}
    ring.finish()
    spawner.tick(1.0)
    assert spawner.states()[-1] == (2, "exited")
    spawner.exit(1, pid=50)
    spawner.tick(1.0)
    assert spawner.states()[-1] == (3, "exited")


FORKSERVER = """
import multiprocessing, os

def rank(numbers, go):
    numbers.put((os.getpid(), os.getppid()))
    go.wait()

if __name__ == "__main__":
    method = multiprocessing.get_context("forkserver")
    numbers, go = method.Queue(), method.Event()
    child = method.Process(target=rank, args=(numbers, go))
    child.start()
    print(*numbers.get(), flush=True)
    for told in (child.join, input):
        input()
        go.set()
        told()
        print(flush=True)
"""


@pytest.mark.parametrize("crash", ["", "before its parent", "after its parent"])
def test_a_rank_of_a_fork_server_ends_with_the_process_of_the_plan_behind_it(
    tmp_path: Path, crash: str
) -> None:
    (tmp_path / "train.py").write_text(FORKSERVER)
    run = Run(tmp_path / "run", ranks=2)
    with subprocess.Popen(
        [sys.executable, tmp_path / "train.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        pid, server = map(int, process.stdout.readline().split())
        assert server != process.pid
        run.start(0, pid=1 << 22)
        run.start(1, pid=process.pid)
        ring = run.ring(7, pid=pid, parent_pid=server, flags=HEADER_CHILD, local_rank=-1)
        ring.phase("rendezvous", 4, 7)
        run.tick(1.0)
        if crash == "before its parent":
            run.crash()
            run.tick(1.0)
        process.stdin.write("\n")
        process.stdout.readline()  # the child has ended
    run.tick(1.0)
    if crash == "after its parent":
        run.crash()
        run.tick(1.0)
    run.exit(0, pid=1 << 22)
    run.tick(1.0)
    assert run.states()[-1][0] != 7
    run.exit(1, 1, pid=process.pid)
    run.tick(1.0)
    (end,) = (
        each for each in run.entries("state") if each["rank"] == 7 and each["state"] == "exited"
    )
    assert not {"exit_code", "signal"} & end.keys(), "its parent's end does not show it"
    run.close()
