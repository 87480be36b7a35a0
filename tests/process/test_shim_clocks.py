"""A node whose wall clock is set by an hour while a run goes on: real shims, and ranks, that share a wall clock of their own."""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from fakes.nvml import compiler
from fakes.shims import RunUnderTest, StartedRun, script, wait_until
from fakes.wall_clock import WallClock

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="needs a C compiler, to build a clock that is not the machine's"
)

RAISE = """
import json, os, sys, time
rank, folder = os.environ["RANK"], sys.argv[1]

def wait(name):
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.005)

def raises(error):
    # As the hook notes an exception that nobody caught.
    path = f"{os.environ['DISTCONSOLE_RUN_DIR']}/errors/{os.getpid()}.json"
    noted = {"time_ns": time.time_ns(), "rank": int(rank), "type": error, "message": rank, "traceback": ""}
    with open(path + ".part", "w") as file:
        json.dump(noted, file)
    os.rename(path + ".part", path)
    open(f"{folder}/raised{rank}", "w").close()

open(f"{folder}/ready{rank}", "w").close()
"""
HOURS = pytest.mark.parametrize("step", [3600, -3600])


def begin(run: RunUnderTest, folder: Path) -> None:
    """Start a run, and wait until its nodes have compared their clocks."""
    run.start()
    ready = [folder / f"ready{rank}" for rank in range(len(run.shims))]
    wait_until("ranks", lambda: all(path.exists() for path in ready))
    run.await_links()


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def see(folder: Path, names: Iterable[str]) -> None:
    wait_until(f"{names}", lambda: all((folder / name).exists() for name in names))


@HOURS
def test_a_clock_that_is_set_blames_nobody_else(tmp_path: Path, step: int) -> None:
    text = RAISE + (
        "wait('first' if rank == '0' else 'second')\n"
        "raises('First' if rank == '0' else 'Second')\n"
        "wait('never' if rank == '0' else 'end')\n"
        "sys.exit(1)\n"
    )
    for host, blamed in ((1, "First: 0"), (0, "First: 0")):
        folder = tmp_path / str(host)
        folder.mkdir()
        clock = WallClock(folder / "clock")
        env: list[dict[str, str]] = [{}, {}]
        env[host] = clock.variables
        argv = [sys.executable, script(folder, text), str(folder)]
        with RunUnderTest(folder, argv, nodes=2, node_env=env) as run:
            begin(run, folder)
            clock.set(step)
            # Rank 0 raises first, and lives on; rank 1 raises later, and ends first.
            touch(folder, "first")
            see(folder, ["raised0"])
            touch(folder, "second")
            see(folder, ["raised1"])
            touch(folder, "end")
            verdict = run.verdict()
        assert (verdict["state"], verdict["first_failure"]["error"]) == ("failed", blamed), host


@pytest.mark.parametrize(
    ("step", "failed_first"),
    [
        (3600, True),  # by that clock the failure is after the stop
        (-3600, False),  # and here before it
    ],
)
def test_a_clock_that_is_set_makes_no_failure_of_a_stop_and_no_stop_of_a_failure(
    tmp_path: Path, step: int, failed_first: bool
) -> None:
    text = RAISE + (
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "if rank == '1': wait('second')\n"
        "else: wait('never')\n"
        "raises('Second')\n"
        "wait('end')\n"
        "sys.exit(1)\n"
    )
    clock = WallClock(tmp_path / "clock")
    argv = [sys.executable, script(tmp_path, text), str(tmp_path)]
    with RunUnderTest(tmp_path, argv, nodes=2, node_env=[{}, clock.variables], grace=600) as run:
        begin(run, tmp_path)
        clock.set(step)
        if failed_first:
            touch(tmp_path, "second")
            see(tmp_path, ["raised1"])
        run.shims[0].ask(op="stop", reason="user")
        run.shims[1].event("stopping")
        if not failed_first:
            touch(tmp_path, "second")
            see(tmp_path, ["raised1"])
        touch(tmp_path, "end", "never")
        verdict = run.verdict()
    assert verdict["state"] == ("failed" if failed_first else "stopped")


@HOURS
def test_an_exception_is_found_though_the_clock_was_set_later(tmp_path: Path, step: int) -> None:
    text = RAISE + "raises('First')\nwait('end')\nsys.exit(1)\n"
    clock = WallClock(tmp_path / "clock")
    argv = [sys.executable, script(tmp_path, text), str(tmp_path)]
    with StartedRun(tmp_path, argv, node_env=[clock.variables]) as run:
        see(tmp_path, ["raised0"])
        clock.set(step)
        touch(tmp_path, "end")
        verdict = run.verdict()
        assert verdict["first_failure"]["error"] == "First: 0"
        wall = (tmp_path / "raised0").stat().st_mtime
        told = run.shims[0].event("exited")["t_ns"] / 1e9
        assert abs(told - (wall + step)) < 60.0
