"""Ranks that a script spawned without the hook: the one that failed first is blamed, not the one that torch saw first."""

import json
import os
import pickle
import time
from pathlib import Path

import pytest

from distconsole_agent.contract.runspec import RankSpec, parse_spec
from distconsole_agent.coordination.blame import Failure
from distconsole_agent.supervisor.killing import count_kills
from distconsole_agent.supervisor.postmortem import find_failure
from distconsole_agent.supervisor.processes import Exit, RankProcess
from distconsole_agent.supervisor.spawning import ChildCommand
from distconsole_agent.system import steady

SPEC = {
    "run": "r",
    "secret": "00",
    "node_index": 0,
    "nodes": [{"host": "a", "address": "x", "ranks": [4]}],
    "ranks": [{"rank": 4, "local_rank": 0, "argv": ["x"], "env": {}}],
    "engine_ranks": False,
}
CHILD = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
  File "/job/train.py", line 6, in main
    {line}
{error}
"""
SPAWNER = """W1123 22:33:02.1 7 Terminating process 12 via signal SIGTERM
Traceback (most recent call last):
  File "/job/train.py", line 11, in <module>
    while not spawned.join(): pass
  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 211, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.Process"""
RAISED = "RaisedException: \n\n-- Process 0 terminated with the following error:\n"
VICTIM = CHILD.format(line="all_reduce(x)", error="RuntimeError: Connection closed by peer [::1]")
CAUSE = CHILD.format(line="layer()", error="ValueError: no such layer")
SAID = "ValueError: no such layer (in a spawned process)"
LATER = "\n/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: leaked\n"


def note(folder: Path, name: str, text: object, ago: float) -> None:
    path = folder / f"pytorch-errorfile-{name}.pickle"
    path.write_bytes(pickle.dumps(text))
    os.utime(path, (time.time() - ago, time.time() - ago))


def failure(folder: Path, said: str, **fields: object) -> Failure:
    (folder / "err").write_text(SPAWNER + said + LATER)
    env = {"TMPDIR": str(folder)}
    process = RankProcess(
        RankSpec(4, 0, ("x",), {}), ChildCommand(("x",), env, "/", None, "", str(folder / "err"))
    )
    now = steady.now_ns()
    process.pid, process.started_ns = 50, now - 3600 * 10**9
    process.ended = Exit(1, None, now)
    spec, errors = parse_spec({**SPEC, **fields}), str(folder / "no hook")
    found = find_failure(spec, process, errors, None, count_kills())
    assert found is not None
    return found


def test_the_child_that_raised_first_is_blamed_and_not_its_victim(tmp_path: Path) -> None:
    alone = failure(tmp_path, RAISED + VICTIM)
    assert (
        alone.error
        == "RuntimeError: Connection closed by peer [::1] (in spawned process 0, train.py:6)"
    )
    note(tmp_path, "b", VICTIM, 1.0)
    note(tmp_path, "a", CAUSE, 2.0)
    note(tmp_path, "of another job", CAUSE.replace("/job/", "/other/"), 3.0)
    note(tmp_path, "of long ago", CAUSE.replace("no such layer", "old"), 1800.0)
    found = failure(tmp_path, RAISED + VICTIM)
    assert (found.rank, found.exit_code, found.error) == (4, 1, SAID)
    assert found.traceback == CAUSE.strip()


@pytest.mark.parametrize(
    ("how", "exit_code", "error"),
    [
        ("exit code 7", 7, "exited with code 7"),
        ("signal SIGSEGV", 139, "killed by SIGSEGV"),
        ("signal SIGABRT", 134, "killed by SIGABRT"),
    ],
)
def test_the_end_of_a_child_that_did_not_raise_is_the_runs(
    tmp_path: Path, how: str, exit_code: int, error: str
) -> None:
    said = f"ExitedException: process 1 terminated with {how}\n"
    note(tmp_path, "b", VICTIM, 1.0)
    found = failure(tmp_path, said)
    assert (found.exit_code, found.error) == (exit_code, error)


def test_a_child_that_was_taken_down_is_not_blamed_for_the_one_that_raised(tmp_path: Path) -> None:
    note(tmp_path, "a", CAUSE, 2.0)
    found = failure(tmp_path, "ExitedException: process 0 terminated with signal SIGABRT\n")
    assert (found.exit_code, found.error) == (1, SAID)


TORCHRUN = """
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  rank      : 9 (local_rank: 1)
  exitcode  : 7 (pid: 12)
"""


@pytest.mark.parametrize("raised", [None, "ValueError", "ChildFailedError"])
def test_a_rank_of_a_torchrun_in_the_script_has_its_own_number(
    tmp_path: Path, raised: str | None
) -> None:
    """The plan's number is the script's, which no rank failed by."""
    if raised is not None:
        (tmp_path / "no hook").mkdir()
        noted = {"time_ns": time.time_ns() - 10**9, "type": raised}
        noted |= {"rank": 9} if raised == "ValueError" else {}
        (tmp_path / "no hook/12.json").write_text(json.dumps(noted))
    found = failure(tmp_path, TORCHRUN, launcher="single", engine_ranks=True)
    error = raised if raised == "ValueError" else "exited with code 7"
    assert (found.rank, found.exit_code, found.error) == (9, 7, error)


class Harmful:
    def __reduce__(self) -> object:
        return os.mkdir, ("loaded",)


def test_notes_are_read_and_never_loaded(cwd: Path) -> None:
    note(cwd, "harmful", Harmful(), 1.0)
    (cwd / "pytorch-errorfile-cut.pickle").write_bytes(b"\x80\x04\x95")
    (cwd / "pytorch-errorfile-link.pickle").symlink_to("/dev/zero")
    os.mkfifo(cwd / "pytorch-errorfile-pipe.pickle")
    (cwd / "pytorch-errorfile-folder.pickle").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert "Connection closed" in failure(cwd, RAISED + VICTIM).error
    assert not (cwd / "loaded").exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
