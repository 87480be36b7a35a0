"""The drain: everything that a run leaves becomes an entry once, also when it is stopped anywhere."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.drain import UNBORN_SECONDS, Drain
from distconsole_agent.follow import LogTexts
from distconsole_agent.journal import Journal, Reader
from distconsole_agent.proctree import read_stat
from distconsole_agent.runlog import claim
from fakes.ring_writer import RingWriter

SECOND = 10**9


class Run:
    """A run's folder without a run: a test plays shim, ranks and clock."""

    def __init__(self, folder: Path, *, ranks: int = 2, engine_ranks: bool = True) -> None:
        self.folder = folder
        for name in ("logs", "errors", "journal", "rings"):
            (folder / name).mkdir(parents=True)
        self.spec = {
            "run": "run-under-test",
            "node_index": 0,
            "nodes": [{"host": "a", "address": "", "ranks": list(range(ranks))}],
            "ranks": [{"rank": 0, "env": {"CUDA_VISIBLE_DEVICES": "3"}}],
            "engine_ranks": engine_ranks,
        }
        self.now = 1000.0
        self.wall_ahead = 0.0
        self.alive(os.getpid())
        self.rings: list[RingWriter] = []
        self.open()

    def open(self) -> None:
        self.journal = Journal(str(self.folder / "journal"))
        assert self.journal.open_writer()
        self.drain = Drain(
            str(self.folder),
            self.spec,
            self.journal,
            lambda: self.now,
            lambda: int((self.now + self.wall_ahead) * 1e9),
        )

    def crash(self) -> None:
        """Lose everything that is not on disk."""
        self.drain.close()
        self.journal.close()
        self.open()

    def close(self) -> None:
        self.drain.close()
        self.journal.close()
        for ring in self.rings:
            ring.close()

    def tick(self, seconds: float = 0.1) -> None:
        self.now += seconds
        self.drain.tick()

    def shim(self, event: str, **fields: Any) -> None:
        line = json.dumps({"t_ns": int(self.now * 1e9), "event": event, **fields})
        with (self.folder / "shim.jsonl").open("a") as file:
            file.write(line + "\n")

    def alive(self, pid: int) -> None:
        stat = read_stat(pid)
        start = stat.starttime if stat is not None else 1
        (self.folder / "shim.pid").write_text(f"{pid} {start}\n")

    def start(self, rank: int, pid: int | None = None) -> None:
        self.shim("started", rank=rank, local_rank=rank, pid=pid or 5000 + rank)

    def exit(self, rank: int, code: int = 0, pid: int | None = None) -> None:
        self.shim("exited", rank=rank, local_rank=rank, pid=pid or 5000 + rank, exit_code=code, signal=None)  # fmt: skip

    def log(self, rank: int | None, text: str, stream: str = "out") -> None:
        stem = "engine" if rank is None else f"rank-{rank}"
        with (self.folder / "logs" / f"{stem}.{stream}").open("a") as file:
            file.write(text)

    def ring(self, rank: int, **more: Any) -> RingWriter:
        more = {"pid": 5000 + max(rank, 0), "clock_ns": lambda: int(self.now * 1e9), **more}
        started_ns = int(self.now * 1e9) - 1000 + len(self.rings)
        ring = RingWriter(self.folder / "rings", rank, started_ns=started_ns, **more)
        self.rings.append(ring)
        return ring

    def entries(self, kind: str = "") -> list[dict[str, Any]]:
        reader, texts = Reader(self.journal.folder, 0), LogTexts(str(self.folder / "logs"))
        try:
            lines = [texts.fill(e) if b'"kind":"log"' in e else e for e in reader.read_all()]
        finally:
            reader.close()
            texts.close()
        return [e for e in map(json.loads, lines) if kind in ("", e["kind"])]

    def states(self) -> list[tuple[int, str]]:
        return [(e["rank"], e["state"]) for e in self.entries("state")]

    def text(self, rank: int | None, stream: str = "out") -> str:
        parts = [e for e in self.entries("log") if (e["rank"], e["stream"]) == (rank, stream)]
        return "".join(part["text"] for part in parts)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run")
    yield run
    run.close()


@pytest.fixture
def engine_run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run", engine_ranks=False)
    yield run
    run.close()


@pytest.fixture
def run_of_one_process(tmp_path: Path) -> Iterator[Run]:
    """A script that spawns its ranks: the plan has one number for it."""
    run = Run(tmp_path / "run", ranks=1, engine_ranks=False)
    yield run
    run.close()


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


def test_the_end_is_the_last_entry(run: Run) -> None:
    run.start(0)
    run.exit(0)
    run.shim("verdict", state="succeeded", exit_code=0, first_failure=None)
    run.log(0, "x" * 200_000)
    run.now += 2.5
    run.shim("ended")
    run.tick()
    last = run.entries()[-1]
    assert (last["kind"], last["state"], last["exit_code"]) == ("end", "succeeded", 0)
    assert last["seconds"] == 2.5
    assert run.text(0) == "x" * 200_000
    assert run.drain.over
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


def test_a_rank_is_known_by_the_process_it_was_started_as(run: Run) -> None:
    run.start(1, pid=777)
    ring = run.ring(-1, pid=777)
    ring.step(0)
    run.tick(1.0)
    assert [w["rank"] for w in run.entries("window")] == [1]


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


def test_a_spawned_rank_is_not_taken_for_its_parents_before_it_knows_its_own(
    run_of_one_process: Run,
) -> None:
    run = run_of_one_process
    run.start(0, pid=50)
    ring = run.ring(-1, pid=51, parent_pid=50)
    ring.phase("import_torch")
    run.tick(1.0)
    assert run.entries("phase") == []
    ring.set_rank(3)
    ring.step(0)
    run.tick(1.0)
    assert [w["rank"] for w in run.entries("window")] == [3]
    assert [p["rank"] for p in run.entries("phase")] == [3]


def test_a_child_that_trains_without_a_number_speaks_for_its_parent(
    run_of_one_process: Run,
) -> None:
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


def test_a_dead_shim_of_node_zero_fails_the_run_and_is_blamed(run: Run) -> None:
    ghost = subprocess.Popen([sys.executable, "-c", ""])
    rank = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "DISTCONSOLE_RUN_DIR": str(run.folder)},
    )
    run.alive(ghost.pid)
    ghost.wait()
    run.start(0, pid=rank.pid)
    run.log(0, "still printed")
    run.tick(1.0)
    assert rank.wait(10) == -9
    assert run.states() == [(0, "starting"), (0, "failed")]
    note, end = run.entries("note")[0], run.entries()[-1]
    assert (note["check"], note["severity"]) == ("run.supervisor_lost", "fail")
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


def bury_shim(run: Run) -> None:
    ghost = subprocess.Popen([sys.executable, "-c", ""])
    run.alive(ghost.pid)
    ghost.wait()


FAILED = {"rank": 0, "pid": 5000, "exit_code": 3, "signal": None, "error": "ValueError: x", "traceback": ""}  # fmt: skip


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_run_that_is_being_prepared_is_not_lost_when_the_clock_is_set(
    run: Run, step: float
) -> None:
    (run.folder / "shim.pid").unlink()
    run.wall_ahead = time.time() - run.now
    run.tick(1.0)
    run.wall_ahead += step
    run.tick(UNBORN_SECONDS - 1)
    assert not run.drain.over
    run.tick(2.0)
    assert run.drain.over


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


@pytest.mark.parametrize("noted", [True, False])
def test_a_shim_that_died_with_its_srun_leaves_the_blame_to_it(run: Run, noted: bool) -> None:
    run.start(0)
    (run.folder / "step.sh").write_text("")
    bury_shim(run)
    run.tick(2.0)
    assert run.entries("verdict") == []
    if noted:
        (run.folder / "step.log").write_text("/r/step.sh: line 9: 77 Killed    srun --jobid 3\n")
        (run.folder / "step.ended").write_text('{"exit_code": 137}')
    run.tick(1.5 if noted else 5.0)
    (verdict,) = run.entries("verdict")
    told = (137, "srun was killed by SIGKILL") if noted else (1, "node a lost: its shim is gone")
    assert (verdict["exit_code"], verdict["first_failure"]["error"]) == told


def test_a_stop_asked_before_the_shim_died_stays_a_stop(run: Run) -> None:
    run.start(0)
    run.tick()
    run.shim("stopping", reason="sigint")
    bury_shim(run)
    run.tick(2.0)
    assert run.entries("verdict")[0]["state"] == "stopped"
    assert (run.entries()[-1]["state"], run.entries()[-1]["exit_code"]) == ("stopped", 130)


def test_a_node_that_never_judged_leaves_the_verdict_to_the_others(run: Run) -> None:
    run.spec["nodes"].insert(0, {"host": "b", "address": "", "ranks": [7]})
    run.spec["node_index"] = 1
    run.start(0)
    bury_shim(run)
    run.tick(2.0)
    assert run.entries("verdict") == []
    assert run.entries()[-1]["state"] == "lost"


def test_a_verdict_stands_although_its_shim_died_before_the_end(run: Run) -> None:
    run.start(0)
    run.shim("verdict", state="failed", exit_code=9, first_failure=None)
    bury_shim(run)
    run.tick(2.0)
    assert len(run.entries("verdict")) == 1
    assert (run.entries()[-1]["state"], run.entries()[-1]["exit_code"]) == ("failed", 9)


def test_a_shims_last_words_count_although_it_is_gone(run: Run) -> None:
    ghost = subprocess.Popen([sys.executable, "-c", ""])
    run.alive(ghost.pid)
    ghost.wait()
    run.start(0)
    run.exit(0)
    run.shim("verdict", state="succeeded", exit_code=0, first_failure=None)
    run.shim("ended")
    run.tick(5.0)
    assert run.entries()[-1]["state"] == "succeeded"


def test_a_journal_that_cannot_be_written_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_samples_are_entries(run: Run) -> None:
    run.drain.samples.append({"t": 1.0, "kind": "sample", "node": None, "gpus": []})
    run.tick()
    assert [e["kind"] for e in run.entries()] == ["sample"]


def test_gpus_are_mapped_by_what_the_ranks_were_given(run: Run) -> None:
    run.start(0)
    run.tick()
    assert run.drain.rank_processes() == [
        {"rank": 0, "local_rank": 0, "pid": 5000, "cuda_visible_devices": "3"}
    ]


@pytest.mark.parametrize("seed", range(6))
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
    assert run.drain.over
    entries = run.entries()
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    for rank in range(2):
        mine = [w for w in entries if w["kind"] == "window" and w["rank"] == rank]
        assert sum(w["steps"] for w in mine) == made[rank]
        assert sum(w["dropped"] for w in mine) == 0
        assert run.text(rank) == printed[rank]
        assert [s for r, s in run.states() if r == rank] == ["starting", "running", "exited"]


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


def test_an_end_that_is_read_late_ends_no_process_of_the_next_attempt(run: Run) -> None:
    run.start(0)
    run.ring(0).step(0)
    run.now += 0.1
    run.exit(0, 1)
    begin_again(run)
    run.now += 0.1
    run.start(0, pid=6000)
    ring = run.ring(0, pid=6000)
    ring.step(0)
    run.tick(1.0)
    ring.step(1)
    run.tick(1.0)
    attempt = run.entries("attempt")[0]["seq"]
    steps = [(w["step"], w["steps"]) for w in run.entries("window") if w["seq"] > attempt]
    assert steps == [(0, 1), (1, 1)]
    assert sum(w["steps"] for w in run.entries("window")) == 3


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


def test_a_spawning_process_that_is_started_anew_is_not_taken_for_the_one_that_ended(
    engine_run: Run,
) -> None:
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
    assert run.states()[-1] == (1, "killed")
    run.ring(1, pid=os.getpid(), parent_pid=50)
    run.tick(1.0)
    assert run.states()[-1] == (1, "starting")


def restart(run: Run, number: int) -> None:
    run.shim("attempt", restart=number, of=3, checkpoint=None)


def steps_told(run: Run) -> list[int]:
    return [entry["steps"] for entry in run.entries("window")]


def test_the_rings_of_a_new_attempt_are_read_although_the_clock_went_back(run: Run) -> None:
    run.start(0)
    run.tick()
    old = run.ring(0, attempt=1)
    old.step(0, 1.0)
    run.tick(1.1)
    restart(run, 1)
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
    assert steps_told(run) == [1, 2]


def test_what_an_attempt_recorded_before_the_clock_went_back_is_read_before_it_goes(
    run: Run,
) -> None:
    run.start(0)
    run.tick()
    ring = run.ring(0, attempt=1)
    run.tick(1.1)
    ring.step(0, 1.0)
    run.now -= 60.0
    run.exit(0, 1)
    restart(run, 1)
    run.tick(0.1)
    assert steps_told(run) == [1]
    assert not ring.path.exists()


def test_a_ring_that_does_not_say_its_attempt_is_judged_by_its_time(run: Run) -> None:
    """As the first version wrote it."""
    run.start(0)
    run.tick()
    old = run.ring(0)
    old.step(0, 1.0)
    run.tick(1.1)
    restart(run, 1)
    run.now += 0.1
    new = run.ring(0, pid=6000)
    new.step(0, 1.0)
    run.start(0, pid=6000)
    run.tick(1.1)
    assert (old.path.exists(), new.path.exists()) == (False, True)


def test_a_ring_without_a_descriptor_is_read_once_there_is_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert steps_told(run) == [1]


def test_rings_beyond_what_is_read_are_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole_agent.recorders.MAX_RINGS", 1)
    run.ring(0)
    run.ring(1)
    run.tick(1.1)
    (note,) = run.entries("note")
    assert note["summary"].startswith("1 ring cannot be read: more than 1")


def test_a_shim_that_cannot_be_looked_at_is_not_gone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of its run is killed because the agent has no descriptor for a look at /proc."""
    (run.folder / "shim.pid").unlink()
    held = claim(str(run.folder))
    run.start(0)
    monkeypatch.setattr("distconsole_agent.drain.read_stat", lambda _pid: None)
    run.tick(5.0)
    run.tick(5.0)
    assert [note["check"] for note in run.entries("note")] == []
    os.close(held)
    run.tick(5.0)
    assert [note["check"] for note in run.entries("note")] == ["run.supervisor_lost"]
