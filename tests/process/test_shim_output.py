"""What becomes of the ranks' output where the disk is full: it is dropped and counted, and no rank sees it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.system.room import disk_of
from fakes import disks
from fakes.shims import RunUnderTest, ShimUnderTest, StartedRun, script, wait_until

PY = sys.executable
LINES = 400_000

FLOOD = f"""
import os, sys
sys.stderr.write("it begins\\n")
for n in range({LINES}):
    sys.stdout.write(f"{{n:09d}} and some words to fill the line\\n")
sys.stdout.flush()
sys.stderr.write("its last words\\n")
"""

WAITS = """
import os, sys, time
folder = sys.argv[1]
print("before", flush=True)
open(f"{folder}/ready", "w").close()
while not os.path.exists(f"{folder}/full"):
    time.sleep(0.01)
for n in range(1000):
    print(n, "and some words to fill the line" * 10, flush=True)
print("its last words", flush=True)
"""

FLOOD_OF_BOTH = f"""
import os, sys
for n in range({LINES}):
    sys.stdout.write(f"{{n:09d}} and some words to fill the line\\n")
    sys.stderr.write(f"{{n:09d}} and some words to fill the line\\n")
sys.stdout.flush()
"""

DIES = """
sys.stderr.write("terminate called after throwing: the data ends at 17\\n")
os.kill(os.getpid(), 6)
"""

ONE_FLOODS = """
import os, sys, time
folder = sys.argv[1]
if os.environ["RANK"] == "1":
    while not os.path.exists(f"{folder}/full"):
        time.sleep(0.01)
    for n in range(1500):
        print("epoch", n, "and what else a training script says of it, line by line")
    print("the last epoch", flush=True)
while not os.path.exists(f"{folder}/heard"):
    if os.environ["RANK"] == "0":
        print("and some words to fill the line", flush=True)
    else:
        time.sleep(0.01)
"""

WHOLE = re.compile(r"\d{9} and some words to fill the line")
MISSING = re.compile(r"\[distconsole: (\d+) lines \(\d+ bytes\) are missing here: ")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 8 MB of its own."""
    with disks.small_disk(tmp_path / "disk", "size=8m,mode=700") as folder:
        yield folder


def in_attempt(number: int, argv: list[str]) -> list[str]:
    """Return a command whose attempts before this one fail at once."""
    guard = f'test "${{DISTCONSOLE_RESTART:-0}}" = {number} || exit 5; exec "$@"'
    return ["sh", "-c", guard, "sh", *argv]


def lines_and_missing(shim: ShimUnderTest) -> tuple[int, int]:
    """Return how many whole lines rank 0 has in its log, and how many it is said to lack."""
    text = shim.log(0)
    whole = [line for line in text.splitlines() if WHOLE.fullmatch(line)]
    assert len(set(whole)) == len(whole)
    return len(whole), sum(int(number) for number in MISSING.findall(text))


def test_a_full_disk_fails_no_rank_and_is_counted(small_disk: Path, tmp_path: Path) -> None:
    argv = [PY, script(tmp_path, FLOOD)]
    with RunUnderTest(small_disk, argv, env={"PYTHONUNBUFFERED": ""}) as run:
        verdict = run.complete()
        shim = run.shims[0]
        assert verdict["state"] == "succeeded"
        whole, missing = lines_and_missing(shim)
        assert 0 < whole < LINES
        assert whole + missing == LINES
        assert shim.log(0).splitlines()[-1].startswith(f"{LINES - 1:09d}")
        assert shim.log(0, "err") == "it begins\nits last words\n"
        last = [note for note in shim.events("note") if note["check"] == "run.output_dropped"][-1]
        assert f"{missing:,} lines" in last["summary"]
        assert "rank 0" in last["summary"]


def test_a_disk_that_others_fill_fails_no_rank(small_disk: Path, tmp_path: Path) -> None:
    argv = [PY, script(tmp_path, WAITS), str(tmp_path)]
    with StartedRun(small_disk, argv) as run:
        wait_until("the rank", (tmp_path / "ready").exists)
        disks.fill(small_disk / "foreign")
        (tmp_path / "full").touch()
        shim = run.shims[0]
        assert shim.process.wait(30) == 0
        assert shim.event("exited")["exit_code"] == 0
        assert shim.event("verdict")["state"] == "succeeded"
        assert shim.events()[-1]["event"] == "ended"
        assert [note["check"] for note in shim.events("note")][-1] == "run.output_dropped"


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_disk_that_runs_low_is_told_once(small_disk: Path, tmp_path: Path, attempt: int) -> None:
    argv = in_attempt(attempt, [PY, script(tmp_path, WAITS), str(tmp_path)])
    with StartedRun(small_disk, argv, max_restarts=1) as run:
        wait_until("the rank", (tmp_path / "ready").exists)
        (small_disk / "foreign").write_bytes(bytes(disk_of(str(small_disk)).free - (600 << 10)))
        shim = run.shims[0]
        wait_until(
            "the finding", lambda: "run.disk_low" in [n["check"] for n in shim.events("note")]
        )
        (tmp_path / "full").touch()
        assert shim.process.wait(30) == 0
        assert shim.event("verdict")["state"] == "succeeded"
        (low,) = [note for note in shim.events("note") if note["check"] == "run.disk_low"]
        assert f"of {8 << 20} bytes" in low["summary"]


def test_the_logs_of_a_run_take_no_more_than_they_may(tmp_path: Path) -> None:
    argv = [PY, script(tmp_path, FLOOD)]
    limit = 2 << 20
    with RunUnderTest(tmp_path, argv, env={"PYTHONUNBUFFERED": ""}, log_bytes=limit) as run:
        assert run.complete()["state"] == "succeeded"
        shim = run.shims[0]
        whole, missing = lines_and_missing(shim)
        assert whole + missing == LINES
        logs = shim.run_dir / "logs"
        assert sum(path.stat().st_blocks * 512 for path in logs.iterdir()) < limit + (256 << 10)
        assert "their limit" in shim.log(0)


@pytest.mark.parametrize("last", ["raise ValueError('the data ends at 17')", DIES])
def test_what_ends_a_rank_behind_its_flood_is_named(tmp_path: Path, last: str) -> None:
    argv = [PY, script(tmp_path, FLOOD_OF_BOTH + last)]
    env = {"PYTHONUNBUFFERED": ""}
    with RunUnderTest(tmp_path, argv, env=env, log_bytes=2 << 20) as run:
        verdict = run.complete()
        shim = run.shims[0]
        assert verdict["state"] == "failed"
        assert "the data ends at 17" in verdict["first_failure"]["error"]
        assert shim.log(0, "err").splitlines()[-1].endswith("the data ends at 17")
        assert MISSING.search(shim.log(0, "err"))


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_rank_that_prints_little_is_heard_beside_a_flood(tmp_path: Path, attempt: int) -> None:
    argv = in_attempt(attempt, [PY, script(tmp_path, ONE_FLOODS), str(tmp_path)])
    limit = 2 << 20
    with StartedRun(tmp_path, argv, ranks_per_node=2, max_restarts=1, log_bytes=limit) as run:
        shim = run.shims[0]
        wait_until("dropped output", lambda: shim.events("note"))
        (tmp_path / "full").touch()
        wait_until("the words of rank 1", lambda: "the last epoch\n" in shim.log(1))
        (tmp_path / "heard").touch()
        assert run.verdict()["state"] == "succeeded"
        assert len(shim.log(1).splitlines()) == 1501
        logs = shim.run_dir / "logs"
        assert sum(path.stat().st_blocks * 512 for path in logs.iterdir()) < limit + (256 << 10)
