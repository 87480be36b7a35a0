"""Windows: what a second of records says, and nothing that the records do not say.
What a rank waits for, and what its DataLoader workers do: of real processes, and of files as /proc has them.
Checks in a ring, written by the recorder itself, as entries.
"""

import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.protocol import MAX_METRICS, MAX_POINTS
from distconsole_agent.journal import windows
from distconsole_agent.journal.rings import Ring
from distconsole_agent.journal.windows import (
    Checks,
    Offset,
    ProcessWaits,
    StepMemory,
    cut,
    p95,
    thin,
    window,
)
from distconsole_training import records
from distconsole_training.identity import Identity
from distconsole_training.recorder import Recorder
from distconsole_training.records import (
    BATCH,
    CHECK,
    DETAIL,
    LOSS,
    METRIC,
    SAMPLES_NAME,
    SKIPPED,
    STEP,
    WAIT,
)

NAN = math.nan
SECOND = 10**9


def step(number: int, loss: float = NAN, *, seconds: float = 0.01, samples: int = 32, **more: Any) -> Any:  # fmt: skip
    data, forward, backward, optimizer = more.get("parts", (0.001, 0.002, 0.004, 0.003))
    at = more.get("at", number * SECOND // 100)
    flags = more.get("flags", 0)
    return (
        number + 1, number, at, STEP, flags, 0, samples,
        seconds, data, forward, backward, optimizer, loss,
    )  # fmt: skip


def metric(number: int, value: float, *, name: int = 0, samples: int = 0) -> Any:
    return (0, number, 0, METRIC, 0, name, samples, NAN, NAN, NAN, NAN, NAN, value)


def late(number: int, value: float) -> Any:
    return (0, number, 0, LOSS, 0, 0, 0, NAN, NAN, NAN, NAN, NAN, value)


def fold(records: Any, names: Any = (), *, memory: StepMemory | None = None, base: int = 0, dropped: int = 0) -> Any:  # fmt: skip
    return window(3, records, names, Offset(base), memory or StepMemory(), dropped)


def test_a_window_says_how_its_steps_went() -> None:
    body = fold([step(n, 1.0 - n / 100, seconds=0.01 + n / 1000) for n in range(10)])
    assert body["rank"] == 3
    assert (body["step"], body["steps"], body["skipped"], body["dropped"]) == (9, 10, 0, 0)
    assert body["step_ms"] == [14.5, 19.0]
    assert [body[f"{part}_ms"] for part in ("data", "forward", "backward", "optimizer")] == [
        1.0, 2.0, 4.0, 3.0,
    ]  # fmt: skip
    assert body["samples_s"] == round(320 / 0.145, 3)
    assert body["metrics"] == {"loss": 0.91}
    assert body["points"]["loss"][0] == [0, 1.0, 32]


def test_of_steps_of_which_some_were_looked_at_own_time_is_theirs() -> None:
    # Ten steps of 10 to 19 ms, of which the two longest were looked at: 12 ms of each were no wait.
    steps = [step(n, seconds=0.01 + n / 1000) for n in range(10)]
    waits = [
        (0, n, each[2], WAIT, 0, 0, 0, each[7] - 0.012, 0.0, 0.0, 0.003, 0.0, NAN)
        for n, each in enumerate(steps)
    ]
    body = fold([*steps[:8], waits[8], steps[8], waits[9], steps[9]])
    assert body["waited_ms"] == [2.5, 0.0, 0.0, 3.0, 0.0]
    assert fold([*waits, *steps])["waited_ms"] == [2.5, 0.0, 0.0, 3.0, 0.0]
    assert "waited_ms" not in fold([*steps, (*waits[0][:1], 77, *waits[0][2:])])


def test_what_is_not_known_is_null_and_without_training_there_is_no_window() -> None:
    body = fold([step(0, seconds=NAN, samples=0, parts=(NAN, NAN, NAN, NAN))])
    unknown = ("step_ms", "samples_s", "data_ms", "forward_ms", "backward_ms")
    assert [body[name] for name in unknown] == [None] * 5
    assert (body["metrics"], body["points"]) == ({}, {})
    assert fold([]) is None


def test_losses_without_steps_are_a_window() -> None:
    memory = StepMemory()
    fold([step(0), step(1)], memory=memory)
    body = fold([late(0, 0.5), late(1, 0.25)], memory=memory)
    assert (body["steps"], body["step"]) == (0, 1)
    assert body["points"] == {"loss": [[0, 0.5, 32], [1, 0.25, 32]]}


def test_a_loss_that_is_not_finite_is_shown_and_thinning_keeps_it() -> None:
    assert math.isnan(fold([step(0), late(0, NAN)])["metrics"]["loss"])
    points = fold([step(n, math.inf if n == 37 else 1.0) for n in range(100)])["points"]["loss"]
    assert [37, math.inf, 32] in points
    assert points == sorted(points)
    assert len(points) <= MAX_POINTS + 1


def test_a_reported_loss_replaces_the_hooks() -> None:
    memory = StepMemory()
    body = fold([step(0, 9.0), metric(0, 0.5, samples=8)], ["loss"], memory=memory)
    assert body["points"] == {"loss": [[0, 0.5, 8]]}
    assert fold([step(1, 9.0)], ["loss"], memory=memory)["points"] == {}


def test_what_is_skipped_unknown_impossible_or_beyond_the_bound_is_counted() -> None:
    assert fold([step(0, flags=SKIPPED), step(1)])["skipped"] == 1
    assert fold([metric(0, 1.0, name=7)], ["a"])["dropped"] == 1
    body = fold([step(0), step(1 << 62)])
    assert (body["steps"], body["step"], body["dropped"]) == (1, 0, 1)
    names = [f"m{n}" for n in range(MAX_METRICS + 3)]
    body = fold([metric(0, 1.0, name=n) for n in range(len(names))], names)
    assert (len(body["points"]), body["dropped"]) == (MAX_METRICS, 3)


def test_steps_of_a_process_that_replaces_another_go_on_but_not_those_of_the_script() -> None:
    memory = StepMemory()
    fold([step(n) for n in range(10)], memory=memory)
    body = fold([step(0, 0.5), metric(0, 1.0), late(0, 0.4)], ["acc"], memory=memory, base=10)
    assert body["step"] == 10
    assert body["points"]["acc"] == [[10, 1.0, None]]
    assert [point[0] for point in body["points"]["loss"]] == [10, 10]
    named = fold([step(0), metric(500, 1.0)], ["acc"], base=100)
    assert named["points"]["acc"] == [[500, 1.0, None]]


def test_points_are_thinned_to_the_same_steps_on_every_rank_and_to_the_last_of_one() -> None:
    one = thin([[n, 0.0, None] for n in range(100, 200)])
    other = thin([[n, 0.0, None] for n in range(103, 201)])
    assert one[-1][0] == 199
    assert {point[0] for point in one[:-1]} == {n for n in range(100, 199) if n % 8 == 0}
    assert len({p[0] for p in one} & {p[0] for p in other}) >= 11
    same = [thin([[step, float(n), None] for n in range(100)]) for step in (0, 7)]
    assert [kept[-1][1] for kept in same] == [99.0, 99.0]
    assert max(map(len, (one, other, *same))) <= MAX_POINTS


def test_p95_is_the_nearest_rank_and_the_median_needs_three_steps() -> None:
    assert p95([float(n) for n in range(1, 101)]) == 95.0
    assert p95([5.0]) == 5.0
    memory = StepMemory()
    assert memory.stall_seconds() == math.inf
    fold([step(1, seconds=0.1), step(2, seconds=7.0)], memory=memory)
    assert (memory.median_seconds(), memory.stall_seconds()) == (None, pytest.approx(70.0))
    fold([step(3, seconds=0.2)], memory=memory)
    assert (memory.median_seconds(), memory.stall_seconds()) == (pytest.approx(0.2), 30.0)
    fold([step(4, seconds=7.0), step(5, seconds=7.0)], memory=memory)
    assert memory.stall_seconds() == pytest.approx(70.0)
    fold([step(105, at=105 * SECOND)], memory=memory)
    assert memory.stall_seconds() == pytest.approx(1.2 * 104.95)


def test_a_backlog_is_cut_into_seconds_by_its_own_times() -> None:
    records = [step(n, at=n * SECOND // 10) for n in range(100)]
    pieces = cut(records)
    assert [record for piece in pieces for record in piece] == records
    assert len(pieces) == 10
    assert len(cut(records[:12])) == 1
    assert cut([]) == []


def batch(number: int, loss: float = NAN) -> Any:
    return (*step(number, loss, parts=(0.001, 0.009, NAN, NAN))[:3], BATCH, *step(number, loss, parts=(0.001, 0.009, NAN, NAN))[4:])  # fmt: skip


def test_batches_are_counted_until_the_first_step() -> None:
    memory = StepMemory()
    offset = Offset(0)
    body = window(3, [batch(n, 0.5) for n in range(8)], (), offset, memory, 0)
    assert (body["step"], body["steps"], body["batches"]) == (7, 8, True)
    assert (body["samples_s"], body["forward_ms"], body["backward_ms"]) == (3200.0, 9.0, None)
    assert body["metrics"] == {"loss": 0.5}
    # Who evaluates, and then does something else, has not stalled.
    assert memory.last_step_ns == 0
    for pieces in ([batch(8), step(0), batch(9), step(1)], [step(2), batch(10)]):
        body = window(3, pieces, (), offset, memory, 0)
    assert (body["step"], body["steps"], body["dropped"]) == (2, 1, 0)
    assert "batches" not in body
    assert fold([batch(11)], memory=memory) is None


def test_what_a_script_says_of_the_size_of_its_steps_counts_where_the_hook_knows_none() -> None:
    names = ["accuracy", SAMPLES_NAME, "loss"]
    steps = [step(0, samples=0), step(1, samples=0), step(2, samples=16), step(3, samples=0)]
    told = [
        metric(0, 64.0, name=1, samples=64),
        metric(1, 0.5, name=2, samples=64),
        metric(2, 64.0, name=1, samples=64),
        metric(3, 0.9, name=0, samples=9000),  # of a whole evaluation
    ]
    body = fold([*told, *steps], names)
    assert body["samples_s"] == (64 + 64 + 16) / 0.03
    assert set(body["points"]) == {"loss", "accuracy"}
    assert fold([metric(0, 64.0, name=7, samples=64), *steps], names)["dropped"] == 1


ALL = records.HAS_PARAMETERS | records.HAS_STATE | records.HAS_BATCH
LAYOUT = 0xDEADBEEF


def place(rank: int = 1, world: int = 2) -> int:
    return int.from_bytes(records.PLACE.pack(rank, world, LAYOUT), "little")


class Rank:
    """A recorder, and the reader of its ring."""

    def __init__(self, folder: Path) -> None:
        self.recorder = Recorder(str(folder), Identity(1, 1, 2), 11, 22)
        self.ring = Ring(self.recorder.path)
        self.checks = Checks(self.recorder.path)

    def details(self, step: int, values: list[int]) -> int:
        rows = [values[first : first + 8] for first in range(0, len(values), 8)]
        for number, row in enumerate(rows):
            words = struct.unpack("<4Q", struct.pack("<8I", *row, *[0] * (8 - len(row))))
            self.recorder.write_words(DETAIL, step, 5, words, name=number)
        return len(rows)

    def check(self, step: int, rows: int, samples: int, *, flags: int = ALL) -> None:
        words = [2**64 - 1, 2, 3, place()]
        self.recorder.write_words(CHECK, step, 5, words, flags=flags, name=rows, samples=samples)

    def names(self, said: Any) -> None:
        path = self.recorder.path.removesuffix(records.RING_SUFFIX) + records.CHECKED_SUFFIX
        Path(path).write_text(said if isinstance(said, str) else json.dumps(said))

    def taken(self) -> list[dict[str, Any]]:
        self.ring.refresh()
        entries = [self.checks.take(1, one, lambda step: step + 100) for one in self.ring.read()]
        return [entry for entry in entries if entry is not None]


@pytest.fixture
def rank(tmp_path: Path) -> Any:
    rank = Rank(tmp_path)
    yield rank
    rank.ring.close()
    rank.recorder.close()


def test_a_check_is_one_entry_with_its_names_once(rank: Rank) -> None:
    values = list(range(2**32 - 10, 2**32))
    rank.names({"layout": LAYOUT, "names": [f"n{each}" for each in range(10)]})
    for step in (0, 5):
        rank.check(step, rank.details(step, values), 10 | 3 << 16)
    first, second = rank.taken()
    assert (first["step"], first["rank"], first["place"]) == (100, 1, [1, 2])
    assert (first["parameters"], first["state"]) == ("f" * 16, f"{2:016x}")
    assert first["details"] == "".join(f"{value:08x}" for value in values)
    assert first["bad_gradient"] == 2
    assert first["names"][9] == "n9"
    assert second["names"] is None
    assert second["details"] == first["details"]


def test_what_is_missing_lost_in_part_or_endless_is_null(rank: Rank) -> None:
    os.mkfifo(rank.recorder.path.removesuffix(records.RING_SUFFIX) + records.CHECKED_SUFFIX)
    rank.check(0, 0, 0, flags=records.SAME_EPOCH)
    rank.details(0, [1] * 16)
    rank.check(5, 2, 16)
    rank.check(6, 1, 8)
    rank.check(7, rank.details(7, [1] * 4000), 4000)
    entries = rank.taken()
    unknown = ("parameters", "state", "batch", "details", "names", "bad_gradient")
    assert [entries[0][name] for name in unknown] == [None] * 6
    assert entries[0]["same_epoch"]
    assert [(entry["details"], entry["names"]) for entry in entries] == [(None, None)] * 4


@pytest.mark.parametrize(
    "said", ["", "[", "[1]", '{"names": 3}', '{"layout": 1, "names": ["a"]}', "[" * 60_000]
)
def test_names_that_are_none_are_left_out(rank: Rank, said: str) -> None:
    rank.names(said)
    rank.check(0, rank.details(0, [1]), 1)
    (entry,) = rank.taken()
    assert entry["names"] is None
    assert entry["details"] == "00000001"


def test_records_of_words_and_of_numbers_stand_side_by_side(rank: Rank) -> None:
    rank.recorder.write(records.STEP, 0, 5, a=0.5, value=0.25)
    rank.check(0, 0, 0)
    rank.recorder.write(records.STEP, 1, 5, a=0.5, value=0.75)
    rank.ring.refresh()
    read = rank.ring.read()
    assert [record[3] for record in read] == [records.STEP, CHECK, records.STEP]
    assert [record[12] for record in read if record[3] != CHECK] == [0.25, 0.75]
    assert read[1][7] == 2**64 - 1


STARVED = {"step_ms": [20.0, 25.0], "data_ms": 15.0}
BLOCKED = "import ctypes,time; print(1, flush=True); ctypes.CDLL(None).vfork() or time.sleep(1000)"
"""A parent is in state D until the child of its vfork has another program: this one never has."""
TWO_WORKERS = """
import os, time
for busy in (True, False):
    if not os.fork():
        open("/proc/self/comm", "w").write("pt_data_worker")
        while busy:
            pass
        time.sleep(1000)
if not os.fork():
    time.sleep(1000)
print(1, flush=True)
time.sleep(1000)
"""


@contextmanager
def program(text: str) -> Iterator[int]:
    """Run a program until its first line, and kill its session at the end."""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_it_is_told_of_the_time_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = ProcessWaits()
    assert waits.look(os.getpid()) == {"cpu_wait": None, "disk_wait": None}
    found = waits.look(os.getpid())
    assert 0.0 <= found["cpu_wait"] <= 100.0
    assert found["disk_wait"] == 0.0
    monkeypatch.setattr(windows.time, "monotonic_ns", lambda: 0)
    assert waits.look(os.getpid())["cpu_wait"] is None, "a clock that goes back tells nothing"


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    waits = ProcessWaits()
    for _ in range(2):
        assert waits.look(2**22 + 1) == {"cpu_wait": None, "disk_wait": None}
    assert waits.look_at_workers(2**22 + 1, STARVED) is None


def test_a_process_that_waits_for_a_disk_is_seen() -> None:
    waits = ProcessWaits()
    with program(BLOCKED) as pid:
        while waits.look(pid)["disk_wait"] != 100.0:
            os.sched_yield()


def test_workers_that_compute_are_told_from_those_that_rest_and_from_other_children() -> None:
    with program(TWO_WORKERS) as pid:
        waits, found = ProcessWaits(), None
        assert waits.look_at_workers(pid, STARVED) is None, "the first look has nothing to compare"
        while found is None or found[0] != 2 or found[1] < 20.0:
            found = waits.look_at_workers(pid, STARVED)
            os.sched_yield()
        assert found[1] <= 100.0
        assert found[2] == 0.0
        rests: dict[str, Any] = {"step_ms": [20.0, 25.0], "data_ms": 0.3}
        assert waits.look_at_workers(pid, rests) is None, "who does not wait for data is not asked"


def test_a_kernel_that_counts_waits_for_disks_is_believed(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "schedstat").write_text("5 5 5\n")
    stat = "7 (a ) b) S " + " ".join(["0"] * 38) + " {}\n"
    waits = ProcessWaits(str(tmp_path))
    (folder / "stat").write_text(stat.format(5))
    waits.look(7)
    (folder / "stat").write_text(stat.format(10**9))
    assert waits.look(7) == {"cpu_wait": 0.0, "disk_wait": 100.0}
