"""What the collector reads of ranks that are started anew: nothing is lost, doubled or taken for another attempt's."""

import json
import os
import subprocess
import sys

import pytest

from fakes.drained_run import Run


def begin_again(run: Run, number: int = 1) -> None:
    run.shim("attempt", restart=number, of=3, checkpoint="/c/step-1.pt")


def test_an_attempt_counts_from_0_again_and_leaves_no_ring_of_the_one_before(run: Run) -> None:
    run.start(0)
    before = run.ring(0)
    for step in range(3):
        before.step(step)
    run.shim("stopping", reason="failure")
    run.exit(0, 1)
    run.shim("restart", restart=1, of=3, checkpoint=None, pause=0.5, first_failure=None)
    run.tick()
    for pid, late in ((5000, -1), (6000, 1)):
        raised = {"time_ns": int(run.now * 1e9) + late, "type": "ValueError", "message": "boom"}
        (run.folder / "errors" / f"{pid}.json").write_text(json.dumps(raised))
    begin_again(run)
    run.now += 0.1
    run.start(0, pid=6000)
    run.ring(0, pid=6000).step(0)
    run.tick(1.0)
    (restart,), (attempt,) = run.entries("restart"), run.entries("attempt")
    assert (restart["restart"], restart["of"], restart["pause"]) == (1, 3, 0.5)
    assert (attempt["restart"], attempt["checkpoint"]) == (1, "/c/step-1.pt")
    windows = run.entries("window")
    assert [(w["step"], w["steps"]) for w in windows] == [(2, 3), (0, 1)]
    assert windows[0]["seq"] < attempt["seq"] < windows[1]["seq"]
    assert len(list((run.folder / "rings").iterdir())) == 1
    assert [path.name for path in (run.folder / "errors").iterdir()] == ["6000.json"]
    run.exit(0, 7, pid=6000)
    run.tick()
    # Not "exited", as a rank that is stopped: the stop was that of the attempt before.
    assert run.states() == [
        (0, "starting"),
        (0, "running"),
        (0, "exited"),
        (0, "starting"),
        (0, "running"),
        (0, "failed"),
    ]


def test_a_line_that_the_next_attempt_has_begun_is_not_cut_in_two(run: Run) -> None:
    run.start(0)
    log = run.folder / "logs" / "rank-0.out"
    log.write_text("the last line\n")
    run.exit(0, 1)
    run.tick()
    begin_again(run)
    with log.open("a") as file:
        file.write("150")
        file.flush()
        run.tick()
        file.write("\n")
    run.tick()
    assert [entry["text"] for entry in run.entries("log")] == ["the last line\n", "150\n"]


@pytest.mark.parametrize("crashes", ["before", "after", "never"])
def test_a_crash_around_an_attempt_loses_and_doubles_nothing(run: Run, crashes: str) -> None:
    run.start(0)
    before = run.ring(0)
    before.step(0)
    run.log(0, "one\n")
    run.tick(1.0)
    before.step(1)
    run.log(0, "two\n")
    run.exit(0, 1)
    begin_again(run)
    run.now += 0.1
    run.start(0, pid=6000)
    ring = run.ring(0, pid=6000)
    ring.step(0)
    run.log(0, "three\n")
    if crashes == "before":
        run.crash()
    run.tick(1.0)
    if crashes == "after":
        run.crash()
        # What could not be removed in time is not read again.
        run.now -= 60
        run.ring(0, pid=4000).step(8)
        run.now += 60
    ring.step(1)
    run.tick(1.0)
    assert [w["steps"] for w in run.entries("window")] in ([1, 1, 1, 1], [1, 1, 2])
    assert run.text(0) == "one\ntwo\nthree\n"
    assert len(run.entries("attempt")) == 1


def test_a_restarted_spawner_is_not_taken_for_the_one_that_ended(engine_run: Run) -> None:
    run = engine_run
    run.start(0, pid=50)
    for rank in (0, 1):
        run.ring(rank, pid=60 + rank, parent_pid=50).step(0)
    run.tick(1.0)
    run.shim("stopping", reason="failure")
    run.exit(0, 1, pid=50)
    begin_again(run)
    run.now += 0.1
    run.start(0, pid=70)
    run.tick(1.0)
    assert run.states()[-2:] == [(0, "starting"), (1, "starting")]
    run.ring(1, pid=81, parent_pid=70).step(0)
    run.tick(1.0)
    assert run.states()[-2:] == [(1, "starting"), (1, "running")]


def test_the_rank_of_an_engines_next_round_is_known_before_it_trains(engine_run: Run) -> None:
    run = engine_run
    run.start(0, pid=50)
    first = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run.ring(1, pid=first.pid, parent_pid=50)
    run.tick(1.0)
    first.communicate(b"\n")
    run.tick(1.0)
    run.ring(1, pid=os.getpid(), parent_pid=first.pid)  # a child of the rank's, and no rank
    run.tick(1.0)
    assert run.states()[-1] == (1, "exited")
    run.ring(1, pid=os.getpid(), parent_pid=50)
    run.tick(1.0)
    assert run.states()[-1] == (1, "starting")


def test_the_rings_of_a_new_attempt_are_read_although_the_clock_went_back(run: Run) -> None:
    run.start(0)
    run.tick()
    old = run.ring(0, attempt=1)
    old.step(0, 1.0)
    run.tick(1.1)
    begin_again(run)
    run.now -= 2.0
    new = run.ring(0, pid=6000, attempt=2)
    run.start(0, pid=6000)
    run.tick(0.1)
    new.step(0, 1.0)
    new.step(1, 1.0)
    run.now += 10.0
    run.tick(1.1)
    assert new.path.exists()
    assert not old.path.exists()
    assert run.steps_told() == [1, 2]


def test_what_an_attempt_recorded_before_the_clock_went_back_is_read(run: Run) -> None:
    run.start(0)
    run.tick()
    ring = run.ring(0, attempt=1)
    run.tick(1.1)
    ring.step(0, 1.0)
    run.now -= 60.0
    run.exit(0, 1)
    begin_again(run)
    run.tick(0.1)
    assert run.steps_told() == [1]
    assert not ring.path.exists()


def test_a_ring_that_does_not_say_its_attempt_is_judged_by_its_time(run: Run) -> None:
    """As the first version wrote it."""
    run.start(0)
    run.tick()
    old = run.ring(0)
    old.step(0, 1.0)
    run.tick(1.1)
    begin_again(run)
    run.now += 0.1
    new = run.ring(0, pid=6000)
    new.step(0, 1.0)
    run.start(0, pid=6000)
    run.tick(1.1)
    assert (old.path.exists(), new.path.exists()) == (False, True)
