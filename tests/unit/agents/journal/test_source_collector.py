"""The source collector: everything that a run leaves becomes an entry once, also when it is stopped anywhere."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.limits import MEET_SECONDS
from distconsole_agent.telemetry.mapping import RunningRank
from distconsole_training import records
from fakes.drained_run import Run
from fakes.shims import wait_until
from suite.seeds import seeds


def test_what_a_rank_printed_and_recorded_comes_before_its_end(run: Run) -> None:
    run.start(0)
    run.tick()
    ring = run.ring(0)
    ring.step(0, 1.5)
    run.log(0, "last words")
    run.exit(0)
    run.tick()
    kinds = [entry["kind"] for entry in run.entries()]
    assert kinds.index("window") < len(kinds) - 1
    assert kinds.index("log") < len(kinds) - 1
    assert run.states()[-1] == (0, "exited")
    assert run.entries()[-1]["kind"] == "state"


def test_ranks_that_wait_for_others_to_meet_them_are_called(run: Run) -> None:
    for rank in (0, 1):
        run.start(rank, pid=os.getpid())
    meets = records.PHASES.index("rendezvous")
    run.ring(0).put(records.PHASE, name=meets)
    run.tick(1.1)
    run.tick(MEET_SECONDS)
    wait_until("the call", lambda: len(run.collector.roll.entries) == 2)
    run.tick(1.1)
    assert [each["rank"] for each in run.entries("roll_call")] == [0, 1]


@pytest.mark.parametrize(("state", "seconds"), [("succeeded", 2.5), ("stopped", 4.0)])
def test_the_end_is_the_last_entry(run: Run, state: str, seconds: float) -> None:
    """The time of a good run is that of its ranks, without what they left and took longer."""
    run.start(0)
    run.now += 2.5
    run.exit(0)
    run.shim("verdict", state=state, exit_code=0, first_failure=None)
    run.log(0, "x" * 200_000)
    run.now += 1.5
    run.shim("ended")
    run.tick()
    last = run.entries()[-1]
    assert (last["kind"], last["state"], last["exit_code"]) == ("end", state, 0)
    assert last["seconds"] == seconds
    assert run.text(0) == "x" * 200_000
    assert run.collector.over
    assert [entry["seq"] for entry in run.entries()] == list(range(1, run.journal.last_seq + 1))


@pytest.mark.parametrize(
    ("codes", "stopping", "state", "exit_code"),
    [
        ((0, 0), False, "succeeded", 0),
        ((0, 7), False, "failed", 7),
        ((15, 15), True, "stopped", 15),
        ((), False, "stopped", 143),
    ],
)
def test_a_run_without_a_verdict_is_judged_by_its_exits(
    run: Run, codes: tuple[int, ...], stopping: bool, state: str, exit_code: int
) -> None:
    for rank in range(len(codes)):
        run.start(rank)
    if stopping:
        run.shim("stopping", reason="user")
    for rank, code in enumerate(codes):
        run.exit(rank, code)
    run.shim("ended")
    run.tick()
    end = run.entries()[-1]
    assert (end["state"], end["exit_code"]) == (state, exit_code)


def test_failures_notes_and_verdicts_are_passed_on(run: Run) -> None:
    first = {"rank": 1, "host": "a", "exit_code": 1, "error": "E", "traceback": "T"}
    run.shim("failed", rank=1, pid=1, exit_code=1, signal=None, error="E", traceback="T")
    run.shim(
        "note", check="x.y", severity="warn", summary="S", hint="H", rank=1, host="n2", seen="T"
    )
    run.shim("verdict", state="failed", exit_code=1, first_failure=first)
    run.tick()
    failure, note, verdict = run.entries()
    assert (failure["kind"], failure["rank"], failure["traceback"]) == ("failure", 1, "T")
    assert (note["kind"], note["check"], note["rank"]) == ("note", "x.y", 1)
    assert (note["host"], note["seen"]) == ("n2", "T")
    assert (verdict["kind"], verdict["first_failure"]) == ("verdict", first)


def test_windows_come_every_second_for_all_ranks_at_once(run: Run) -> None:
    for rank in range(2):
        run.start(rank)
        run.ring(rank)
    run.tick(1.0)
    for tenth in range(50):
        for ring in run.rings:
            ring.step(tenth)
        run.tick(0.1)
    windows = run.entries("window")
    assert 8 <= len(windows) <= 12
    run.tick(1.0)
    for rank in range(2):
        assert sum(w["steps"] for w in run.entries("window") if w["rank"] == rank) == 50


def test_a_recorder_waits_until_its_rank_is_known(engine_run: Run) -> None:
    run = engine_run
    run.start(0, pid=50)
    ring = run.ring(-1, pid=os.getpid())
    ring.step(0)
    run.tick(1.0)
    assert run.entries("window") == []
    ring.set_rank(1)
    run.tick(1.0)
    assert [(w["rank"], w["steps"]) for w in run.entries("window")] == [(1, 1)]
    assert run.states() == [(0, "starting"), (1, "starting"), (1, "starting"), (1, "running")]


def test_a_child_without_a_number_trains_for_its_parent(run_of_one_process: Run) -> None:
    run = run_of_one_process
    run.start(0, pid=50)
    run.ring(-1, pid=51, parent_pid=50).step(0)
    run.tick(1.0)
    assert [w["rank"] for w in run.entries("window")] == [0]


def test_a_process_that_never_trains_writes_nothing(engine_run: Run) -> None:
    run = engine_run
    run.start(0, pid=50)
    ring = run.ring(-1)
    ring.phase("interpreter")
    run.tick(1.0)
    run.shim("ended")
    run.tick(1.0)
    assert [e["kind"] for e in run.entries()] == ["state", "state", "end"]


def test_phases_count_from_the_start_of_the_rank(run: Run) -> None:
    run.start(0)
    run.tick()
    run.now += 2.0
    ring = run.ring(0, pid=5000)
    ring.phase("import_torch")
    ring.phase("init_process_group")
    run.now += 3.0
    run.tick()
    phases = run.entries("phase")
    assert [p["phase"] for p in phases] == ["import_torch", "init_process_group"]
    assert all(2.0 <= p["seconds"] <= 6.0 for p in phases)
    assert run.states()[-1] == (0, "running")


def test_a_process_that_replaces_another_goes_on_with_its_steps(run: Run) -> None:
    run.start(0)
    old = run.ring(0, pid=5000)
    for step in range(10):
        old.step(step)
    run.tick(1.0)
    new = run.ring(0, pid=5000)
    new.phase("interpreter")
    run.tick(1.0)
    for step in range(5):
        new.step(step, 0.5)
    run.tick(1.0)
    assert [(w["step"], w["steps"]) for w in run.entries("window")] == [(9, 10), (14, 5)]


def test_of_two_processes_that_train_as_one_rank_the_newest_counts(run: Run) -> None:
    run.start(0)
    old = run.ring(0, pid=os.getpid())
    old.step(0)
    run.tick(1.0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    new = run.ring(0, pid=child.pid)
    for step in range(3):
        new.step(step)
        old.step(step + 1)
    run.tick(1.0)
    old.step(9)
    run.tick(1.0)
    assert sum(w["steps"] for w in run.entries("window")) == 1 + 3 + 3
    child.communicate(b"\n")
    old.step(10)
    run.tick(1.0)
    old.step(11)
    run.tick(1.0)
    windows = run.entries("window")
    assert sum(w["steps"] for w in windows) == 7 + 2
    assert [w["step"] for w in windows] == sorted(w["step"] for w in windows)


def test_losses_that_arrive_late_know_their_samples_after_a_crash(run: Run) -> None:
    run.start(0)
    ring = run.ring(0)
    for step in range(5):
        ring.step(step, samples=16)
    run.tick(1.0)
    run.crash()
    for step in range(5):
        ring.late_loss(step, 1.0 - step / 10)
    run.tick(1.0)
    points = run.entries("window")[-1]["points"]["loss"]
    assert points == [[n, 1.0 - n / 10, 16] for n in range(5)]


def test_what_a_ring_lost_and_its_guard_counted_is_dropped(run: Run) -> None:
    run.start(0)
    ring = run.ring(0, capacity=32)
    ring.step(0)
    run.tick(1.0)
    for step in range(1, 101):
        ring.step(step)
    ring.set_guard_errors(3)
    run.tick(1.0)
    run.crash()
    run.tick(1.0)
    windows = run.entries("window")
    steps = sum(w["steps"] for w in windows)
    assert steps + sum(w["dropped"] for w in windows) == 101 + 3


def test_a_rank_that_makes_batches_alone_does_not_stall(run: Run) -> None:
    run.start(0)
    ring = run.ring(0)
    for step in range(5):
        ring.put(records.BATCH, step=step, time_ns=int(run.now * 1e9), seconds=(0.01,) * 5)
    for _ in range(60):
        run.tick(1.0)
    assert run.states()[-1] == (0, "running")


def test_a_rank_that_stops_making_steps_has_stalled(run: Run, monkeypatch: Any) -> None:
    run.start(0)
    ring = run.ring(0)
    for step in range(5):
        ring.put(1, step=step, time_ns=int(run.now * 1e9), seconds=(0.01,) * 5)
    run.tick(1.0)
    for _ in range(40):
        run.tick(1.0)
    assert run.states()[-2:] == [(0, "running"), (0, "stalled")]
    run.crash()
    run.tick(1.0)
    assert run.states()[-1] == (0, "stalled")
    ring.put(1, step=5, time_ns=int(run.now * 1e9), seconds=(0.01,) * 5)
    run.tick(1.0)
    assert run.states()[-1] == (0, "running")
    run.tick(45.0)
    assert run.states()[-1] == (0, "running"), "a pause as long as the one before is no stall"
    run.tick(5.0)
    assert run.states()[-1] == (0, "stalled")


def test_an_engines_log_is_nobodys_and_its_ranks_have_their_own(engine_run: Run) -> None:
    run = engine_run
    run.start(0, pid=50)
    run.log(None, "from torchrun\n")
    run.log(1, "step 1\rstep 2\r")
    run.exit(0)
    run.log(1, "the end")
    run.tick(1.0)
    assert run.text(None) == "from torchrun\n"
    assert run.text(1) == "step 1\rstep 2\rthe end"


def test_an_engines_rank_that_raised_has_failed(engine_run: Run) -> None:
    run = engine_run
    run.start(0, pid=50)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ring = run.ring(0, pid=child.pid)
    ring.step(0)
    run.tick(1.0)
    child.communicate(b"\n")
    raised = {"pid": child.pid, "rank": 0, "time_ns": 5, "type": "E", "message": "", "traceback": ""}  # fmt: skip
    (run.folder / "errors" / f"{child.pid}.json").write_text(json.dumps(raised))
    run.tick(1.0)
    run.tick(1.0)
    assert run.states()[-1] == (0, "failed")


def test_samples_are_entries(run: Run) -> None:
    run.collector.samples.append({"t": 1.0, "kind": "sample", "node": None, "gpus": []})
    run.tick()
    assert [e["kind"] for e in run.entries()] == ["sample"]


def test_gpus_are_mapped_by_the_variables_of_the_node_and_of_the_plan(run: Run) -> None:
    run.start(0)
    run.tick()
    assert run.collector.rank_processes() == [RunningRank(0, 0, 5000, "3")]
    for changed, devices in (
        (
            {
                "visible_devices": "6,7",
                "ranks": (),
                "visible_variables": {"ROCR_VISIBLE_DEVICES": "6,7"},
            },
            "6,7",
        ),
        ({"env": {"HIP_VISIBLE_DEVICES": "1"}}, "7"),
        ({"unset": ("ROCR_VISIBLE_DEVICES",)}, "1"),
    ):
        run.change_spec(**changed)
        assert run.collector.rank_processes()[0].visible_devices == devices


@pytest.mark.parametrize("seed", seeds(6, always=2))
def test_a_drain_that_is_stopped_anywhere_neither_loses_nor_doubles(run: Run, seed: int) -> None:
    chance = random.Random(seed)
    printed = ["", ""]
    made = [0, 0]
    for rank in range(2):
        run.start(rank)
        run.ring(rank)
    for _ in range(150):
        rank = chance.randrange(2)
        for _ in range(chance.randrange(20)):
            run.rings[rank].step(made[rank], samples=4)
            made[rank] += 1
        text = chance.choice(("", "half a line ", "line é\n", "x" * 70_000 + "\n"))
        printed[rank] += text
        run.log(rank, text)
        run.tick(chance.choice((0.1, 0.1, 1.0)))
        if chance.random() < 0.15:
            run.crash()
    for rank in range(2):
        run.exit(rank)
    run.shim("verdict", state="succeeded", exit_code=0, first_failure=None)
    run.shim("ended")
    run.crash()
    run.tick()
    assert run.collector.over
    entries = run.entries()
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    for rank in range(2):
        mine = [w for w in entries if w["kind"] == "window" and w["rank"] == rank]
        assert sum(w["steps"] for w in mine) == made[rank]
        assert sum(w["dropped"] for w in mine) == 0
        assert run.text(rank) == printed[rank]
        assert [s for r, s in run.states() if r == rank] == ["starting", "running", "exited"]


def test_a_rank_that_notes_its_waits_less_often_says_so_once(run: Run) -> None:
    run.start(0)
    ring = run.ring(0)
    for step, every_ms in enumerate((0, 400, 800)):
        ring.put(records.WAIT, step=step, samples=every_ms, seconds=(0.0,) * 5)
        ring.step(step, 1.0)
        run.tick(1.1)
    (note,) = run.entries("note")
    assert (note["check"], note["severity"], note["rank"]) == ("run.rare_looks", "info", 0)
    assert note["summary"].startswith("rank 0 notes its waits for other ranks every 400 ms only")


def test_an_unreadable_ring_is_read_later(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.start(0)
    run.tick()
    ring = run.ring(0)
    ring.step(0, 1.0)
    taken = os.open

    def refuse(path: Any, *how: Any, **more: Any) -> int:
        if str(path).endswith(".ring"):
            raise OSError(24, "Too many open files", path)
        return taken(path, *how, **more)

    with monkeypatch.context() as exhausted:
        exhausted.setattr(os, "open", refuse)
        run.tick(1.1)
        run.tick(1.1)
    (note,) = run.entries("note")
    assert (note["check"], note["severity"]) == ("run.rings_unread", "warn")
    assert note["summary"].startswith("1 ring cannot be read: Too many open files")
    run.tick(1.1)
    assert run.steps_told() == [1]


def test_rings_beyond_what_is_read_are_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole_agent.journal.recorders.MAX_RINGS", 1)
    run.ring(0)
    run.ring(1)
    run.tick(1.1)
    (note,) = run.entries("note")
    assert note["summary"].startswith("1 ring cannot be read: more than 1")


def test_what_a_rank_prints_once_it_has_its_own_number_is_that_numbers(tmp_path: Path) -> None:
    run = Run(tmp_path / "single", ranks=1)
    run.close()
    run.spec = run.spec._replace(launcher="single")
    run.open()
    run.start(0)
    ring = run.ring(0)
    run.log(0, "before\n")
    run.tick(2)
    ring.put(records.PHASE, name=records.PHASES.index("init_process_group"), samples=2, value=1.0)
    run.log(0, "I am rank 1\n")
    run.tick(0.3)
    assert (run.text(0), run.text(1)) == ("before\n", "I am rank 1\n")
    run.close()
