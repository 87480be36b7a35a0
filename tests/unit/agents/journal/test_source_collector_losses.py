"""A shim that died, a disk that takes or keeps nothing: how the collector ends and tells such a run."""

import errno
import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from distconsole_agent.contract.runspec import NodeSpec
from distconsole_agent.journal.source_collector import UNBORN_SECONDS
from distconsole_agent.supervisor.notes import supervisor_lost
from distconsole_agent.supervisor.runlog import claim
from fakes.drained_run import Run


def bury_shim(run: Run) -> None:
    ghost = subprocess.Popen([sys.executable, "-c", ""])
    run.alive(ghost.pid)
    ghost.wait()


def test_a_dead_shim_of_node_zero_fails_the_run_and_is_blamed(run: Run) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "DISTCONSOLE_RUN_DIR": str(run.folder)},
    )
    bury_shim(run)
    run.start(0, pid=rank.pid)
    run.log(0, "still printed")
    run.tick(1.0)
    assert rank.wait(10) == -9
    assert run.states() == [(0, "starting"), (0, "killed")]
    note, end = run.entries("note")[0], run.entries()[-1]
    assert (note["check"], note["severity"]) == ("run.supervisor_lost", "fail")
    assert note["summary"].startswith("the run's supervisor on a is gone")
    below_slurm = supervisor_lost("", [], slurm=True, outlived=False)
    assert (note["hint"][:21], below_slurm.hint[:8]) == ("did that host restart", "scontrol")
    (verdict,) = run.entries("verdict")
    assert (end["kind"], end["state"], end["exit_code"]) == ("end", "failed", 1)
    assert (verdict["state"], verdict["exit_code"]) == ("failed", 1)
    assert verdict["first_failure"] == {
        "rank": 0,
        "host": "a",
        "exit_code": 1,
        "error": "node a lost: its shim is gone",
        "traceback": "",
    }
    assert run.text(0) == "still printed"


FAILED = {"rank": 0, "pid": 5000, "exit_code": 3, "signal": None, "error": "ValueError: x", "traceback": ""}  # fmt: skip


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_loses_no_run_in_preparation(run: Run, step: float) -> None:
    (run.folder / "shim.pid").unlink()
    run.wall_ahead = time.time() - run.now
    run.tick(1.0)
    run.wall_ahead += step
    run.tick(UNBORN_SECONDS - 1)
    assert not run.collector.over
    run.tick(2.0)
    assert run.collector.over


@pytest.mark.parametrize("crash", [False, True])
def test_a_rank_that_failed_before_its_shim_died_keeps_the_blame(run: Run, crash: bool) -> None:
    run.start(0)
    run.tick()
    run.shim("failed", **FAILED)
    run.shim("stopping", reason="failure")
    run.tick()
    if crash:
        run.crash()
    bury_shim(run)
    run.tick(2.0)
    (verdict,) = run.entries("verdict")
    assert verdict["first_failure"]["error"] == "ValueError: x"
    assert (run.entries()[-1]["state"], run.entries()[-1]["exit_code"]) == ("failed", 3)


KILLED = "/r/step.sh: line 9: 77 Killed    srun --jobid 3\n"
NODE_FAILED = "srun: error: Node failure on b\nsrun: Job step aborted: Waiting up to 7 seconds\n"


@pytest.mark.parametrize(
    ("log", "code", "told"),
    [
        (KILLED, 137, (137, "srun was killed by SIGKILL")),
        (NODE_FAILED, 0, (143, "Slurm ended the job: b failed")),
        ("", None, (1, "node a lost: its shim is gone")),
    ],
    ids=["srun killed", "another node failed", "nothing is known"],
)
def test_a_shim_that_died_with_its_step_leaves_the_blame_to_who_ended_it(
    run: Run, log: str, code: int | None, told: tuple[int, str]
) -> None:
    run.start(0)
    (run.folder / "step.sh").write_text("")
    bury_shim(run)
    run.tick(2.0)
    assert run.entries("verdict") == []
    (run.folder / "step.log").write_text(log)
    if code is not None:
        (run.folder / "step.ended").write_text(json.dumps({"exit_code": code}))
    run.tick(1.5 if code is not None else 15.0)
    (verdict,) = run.entries("verdict")
    assert (verdict["exit_code"], verdict["first_failure"]["error"]) == told


@pytest.mark.parametrize(
    ("event", "fields", "end"),
    [
        ("stopping", {"reason": "sigint"}, ("stopped", 130)),
        ("verdict", {"state": "failed", "exit_code": 9, "first_failure": None}, ("failed", 9)),
    ],
)
def test_a_stop_or_a_verdict_before_the_shim_died_stays_the_end(
    run: Run, event: str, fields: dict[str, Any], end: tuple[str, int]
) -> None:
    run.start(0)
    run.tick()
    run.shim(event, **fields)
    bury_shim(run)
    run.tick(2.0)
    assert [verdict["state"] for verdict in run.entries("verdict")] == [end[0]]
    assert (run.entries()[-1]["state"], run.entries()[-1]["exit_code"]) == end


def test_a_node_that_never_judged_leaves_the_verdict_to_the_others(run: Run) -> None:
    nodes = (NodeSpec("b", "", (7,)), *run.spec.nodes)
    run.change_spec(nodes=nodes, node_index=1)
    run.start(0)
    bury_shim(run)
    run.tick(2.0)
    assert run.entries("verdict") == []
    assert run.entries()[-1]["state"] == "lost"


def test_a_shims_last_words_count_although_it_is_gone(run: Run) -> None:
    bury_shim(run)
    run.start(0)
    run.exit(0)
    run.shim("verdict", state="succeeded", exit_code=0, first_failure=None)
    run.shim("ended")
    run.tick(5.0)
    assert run.entries()[-1]["state"] == "succeeded"


def test_an_unwritable_journal_loses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.start(0)
    run.log(0, "one\n")
    ring = run.ring(0)
    ring.step(0)
    with monkeypatch.context() as patch:

        def full(entries: Any, changed: Any) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(run.journal, "append", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                run.tick(1.0)
        run.log(0, "two\n")
        run.exit(0)
        with pytest.raises(OSError, match="No space"):
            run.tick(1.0)
    run.tick(1.0)
    run.tick(1.0)
    assert run.text(0) == "one\ntwo\n"
    assert run.states() == [(0, "starting"), (0, "running"), (0, "exited")]
    assert sum(w["steps"] for w in run.entries("window")) == 1


@pytest.mark.parametrize("refused", ["while it goes on", "at its end"])
def test_a_disk_that_does_not_keep_the_record_is_told_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    run.start(0)
    run.tick(1.0)
    assert run.journal.sync_with([], 10)
    monkeypatch.setattr(os, "fsync", refuse)
    if refused == "while it goes on":
        run.shim("failed", rank=0, pid=5000, exit_code=1, signal=None, error="E", traceback="")
        run.tick(1.0)
        assert not run.journal.sync_with([], 10)
        run.tick(1.0)
    run.exit(0)
    run.shim("verdict", state="failed", exit_code=1, first_failure=None)
    run.shim("ended")
    run.tick(1.0)
    (told,) = run.entries("note")
    assert (told["check"], told["severity"]) == ("run.record_cut", "warn")
    assert "Input/output error" in told["summary"]
    assert run.entries()[-1]["kind"] == "end"


def test_a_shim_that_cannot_be_read_is_not_gone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of its run is killed because the agent has no descriptor for a look at /proc."""
    (run.folder / "shim.pid").unlink()
    held = claim(str(run.folder))
    run.start(0)
    monkeypatch.setattr(
        "distconsole_agent.journal.source_collector.read_process", lambda _pid: None
    )
    run.tick(5.0)
    run.tick(5.0)
    assert [note["check"] for note in run.entries("note")] == []
    os.close(held)
    run.tick(5.0)
    assert [note["check"] for note in run.entries("note")] == ["run.supervisor_lost"]
