"""When the ranks of a run are called without being asked: once for each stall, and before a stop.
Ranks are found by what their engine told them, parents before their children.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.limits import CALL_AGAIN_SECONDS
from distconsole_agent.journal.rank_states import RankStates
from distconsole_agent.journal.recorders import Recorders
from distconsole_agent.journal.roll_calls import RollCalls, find_ranks
from distconsole_agent.roll_call import calling
from distconsole_agent.supervisor.runlog import ShimEvent
from distconsole_agent.telemetry.sampling import Sample
from distconsole_training.records import HEADER_BYTES, HEADER_CHILD
from fakes.ring_writer import RingWriter
from fakes.shims import wait_until


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator["Ranks"]:
    # A process of its own: below this one there may be ranks of other tests.
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield Ranks(tmp_path, process.pid)
        process.kill()


class Ranks:
    """Three ranks, of which the first two are one process and the last was never started."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid = pid
        self.wall_ns = time.time_ns()
        self.states = RankStates([0, 1, 2], engine_ranks=True)
        for rank in (0, 1):
            self.states.started(ShimEvent("started", self.wall_ns, None, rank, rank, pid))
            self.states.trains(rank, 1.0)
        self.recorders = Recorders(str(folder), self.states, time.time_ns)
        self.now = 0.0
        clocks = (lambda: self.now, lambda: self.wall_ns)
        self.roll = RollCalls(str(folder), str(folder), self.states, self.recorders, *clocks)

    def stall(self, rank: int) -> None:
        self.states.stalled(rank, 2.0)

    def kept(self) -> list[tuple[int, str]]:
        """Return rank and reason of what is to be kept, and forget it."""
        self.now += 2
        told = [(each["rank"], each["why"]) for each in self.roll.entries]
        self.roll.entries.clear()
        return told

    def called(self) -> list[tuple[int, str]]:
        self.roll.watch()
        wait_until("the call", lambda: len(self.roll.entries) == 3)
        return self.kept()


STALLED = [(0, "stalled"), (1, "stalled"), (2, "stalled")]


def test_a_stall_is_called_once_and_rarely_again_for_other_ranks(ranks: Ranks) -> None:
    ranks.roll.watch()
    assert ranks.kept() == []
    ranks.stall(0)
    assert ranks.called() == STALLED
    ranks.stall(1)
    ranks.roll.watch()
    assert ranks.kept() == []
    ranks.now += CALL_AGAIN_SECONDS
    assert ranks.called() == STALLED
    ranks.now += CALL_AGAIN_SECONDS
    ranks.roll.watch()
    assert ranks.kept() == []


def test_a_stop_calls_if_a_rank_stalled(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.roll.call_before_stop()
    assert ranks.kept() == []
    ranks.stall(1)
    ranks.roll.call_before_stop()
    assert ranks.kept() == [(0, "stop"), (1, "stop"), (2, "stop")]

    def end(*_: object) -> None:  # as the stop by another node while they are asked
        os.kill(ranks.pid, signal.SIGKILL)
        os.waitid(os.P_PID, ranks.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(calling, "read_stalls", end)
    ranks.roll.call_before_stop()
    assert ranks.kept() == [(2, "stop")]


def test_who_asks_again_at_once_gets_the_same_call_journalled_once(ranks: Ranks) -> None:
    first: list[dict[str, Any]] = ranks.roll.call(1.0, "asked")
    assert ranks.roll.call(1.0, "asked") is first
    assert len(ranks.kept()) == 3
    stages = [(each["alive"], each["stage"], each["pid"]) for each in first]
    assert stages[2] == (False, "not_started", None)
    assert stages[0][::2] == (True, ranks.pid)


def test_a_rank_with_an_unreadable_ring_is_not_silent(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "7.ring").write_bytes(b"DCRING9\n".ljust(HEADER_BYTES, b"\1"))
    ranks.recorders.scan({})
    assert list(ranks.recorders.unread.values()) == ["another version of distconsole wrote it"]
    asked = ranks.roll.call(1.0, "asked")
    assert [(each["stage"], each["silent_s"]) for each in asked[:2]] == [(None, None)] * 2


def test_ranks_that_have_started_for_a_minute_are_asked_and_then_after_twice_as_long(
    ranks: Ranks,
) -> None:
    began = ranks.wall_ns

    def asked_after(seconds: float) -> list[tuple[int, str]]:
        ranks.wall_ns = began + int(seconds * 1e9)
        ranks.roll.watch()
        if threads := [each for each in threading.enumerate() if each.name == "roll call"]:
            threads[0].join()
        return ranks.kept()

    late = [(0, "start"), (1, "start")]
    answers = [asked_after(seconds) for seconds in (50.0, 62.0, 90.0, 130.0)]
    assert answers == [[], late, [], late]


def test_a_rank_whose_child_trains_is_not_late_to_start(ranks: Ranks, tmp_path: Path) -> None:
    child = RingWriter(tmp_path, -1, pid=ranks.pid + 1, parent_pid=ranks.pid, flags=HEADER_CHILD)
    child.step(0)
    with closing(child), closing(ranks.recorders):
        ranks.recorders.scan({})
        ranks.recorders.drain()
        ranks.wall_ns += int(62e9)
        ranks.roll.watch()
        wait_until("the call", lambda: ranks.roll.entries)
    assert ranks.kept() == [(0, "start")]  # the child's parent has the number 1, too


@pytest.mark.parametrize("before", [(300.0, 310.0, 320.0), (300.0, 320.0)])
def test_power_is_compared_with_that_of_steps(ranks: Ranks, before: tuple[float, ...]) -> None:
    now = time.time()
    for t, watts in (*((now - 90 + n, watts) for n, watts in enumerate(before)), (now + 9, 70.0)):
        gpu = {"gpu": 3, "rank": 0, "util": 100.0, "power_w": watts}
        ranks.roll.take_sample(Sample(t, {}, [gpu]))
    told = ranks.roll.call(1.0, "asked")[0]["gpu"]
    assert told == {"index": 3, "util": 100.0, "power_w": 70.0, "power_usual_w": 310.0}


CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


def test_a_rank_is_the_first_process_that_an_engine_gave_its_number(tmp_path: Path) -> None:
    told = [
        {"RANK": "3", "SLURM_PROCID": "0"},
        {"OMPI_COMM_WORLD_RANK": "1"},
        {"RANK": "nonsense"},
        {},
    ]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env={"DISTCONSOLE_RUN_DIR": str(tmp_path), **each},
            stdin=pipe,
            stdout=pipe,
        )
        for each in told
    ]
    try:
        for process in started:
            process.stdout.readline()
        assert find_ranks(str(tmp_path)) == {3: started[0].pid, 1: started[1].pid}
    finally:
        for process in started:
            process.communicate(b"\n")
