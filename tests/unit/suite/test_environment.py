"""Tests see a machine that nobody has configured.
What the campaign of faults speaks to.
The laboratory's list speaks of checks that there are, at levels at which they run.
The leak check finds what a test leaves, and nothing else.
Tests that cannot run are skipped by name, with a reason, and counted.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.cases import draw
from campaign.hostile import is_ours
from distconsole.checks.engine.catalogue import at_level, find_rule
from distconsole.model.requests import Level
from suite.environment import scrubbed
from suite.house import main, measure
from suite.leaks import Held, leaked_since
from suite.obstacles import by_reason, needs_module, obstacle
from testbed.faults import BY_NAME, FAULTS, THREE_AT_ONCE, Fault
from testbed.lab import chosen, lab, listed


def test_a_launchers_and_a_users_variables_are_hidden() -> None:
    theirs = {
        "RANK": "3",
        "PET_NNODES": "2",
        "SLURM_JOB_ID": "1",
        "OMPI_COMM_WORLD_RANK": "0",
        "DISTCONSOLE_SSH_CONFIG": "/x",
        "XDG_CONFIG_HOME": "/x",
        "SSH_AUTH_SOCK": "/x",
        "NO_COLOR": "1",
        "PYTHONPATH": "/x",
    }
    assert not theirs.keys() & scrubbed(theirs).keys()


def test_other_variables_are_kept() -> None:
    assert scrubbed({"LOGNAME": "ada"})["LOGNAME"] == "ada"


def test_programs_of_the_tests_interpreter_come_first() -> None:
    first, *others = scrubbed({"PATH": "/bin"})["PATH"].split(os.pathsep)
    assert (first, others) == (str(Path(sys.executable).parent), ["/bin"])


def test_each_test_has_an_empty_home_of_its_own(home: Path) -> None:
    assert Path.home() == home
    assert list(home.iterdir()) == []


def test_this_process_is_scrubbed() -> None:
    left = {name for name in os.environ if name.startswith(("DISTCONSOLE_", "PET_", "XDG_"))}
    assert not left | (os.environ.keys() & {"RANK", "NO_COLOR", "SSH_AUTH_SOCK", "PYTHONPATH"})


@pytest.mark.parametrize(
    ("argv", "ours"),
    [
        ("/usr/bin/python3 -S -I /h/agent-0123456789abcdef.pyz shim --run /tmp/x/runs/r", True),
        ("/usr/bin/python3 -I /h/agent-0123456789abcdef.pyz agent --node-dir /tmp/x", True),
        ("srun --jobid 1 /bin/sh -c exec python3 /h/agent-0.pyz shim --run /tmp/x/runs/r", False),
        ("python3 -m torch.distributed.run --nnodes 2 job.py", False),
        ("python3 /work/job.py --steps 60", False),
    ],
)
def test_strangers_speak_to_shims_and_agents_alone(argv: str, ours: bool) -> None:
    assert is_ours(argv) is ours


def test_strangers_come_to_the_host_on_which_a_shim_listens() -> None:
    cases = [case for seed in range(3000) if (case := draw(seed)).fault == "strangers"]
    assert cases
    assert {case.host for case in cases} == {0}


WHY_A_HOST_IS_LEFT_OUT = "net.reach_tcp"
"""Told also where only jobs were asked for."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_must_be_found_can_be_found(fault: Fault) -> None:
    assert fault.expected
    for expected in fault.expected:
        rule = find_rule(expected.check)
        assert rule is not None
        assert at_level(rule, Level(fault.level))
        assert (
            not fault.only or rule.id.startswith(fault.only) or rule.id == WHY_A_HOST_IS_LEFT_OUT
        )


def test_names_are_words_and_stand_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BY_NAME) == len(FAULTS)
    assert all(shlex.quote(name) == name for name in BY_NAME)
    assert set(THREE_AT_ONCE) < set(BY_NAME)
    lab(argparse.Namespace(fault=[]))
    assert capsys.readouterr().out == listed() + "\n"


def test_a_fault_or_a_host_that_is_not_there_is_one_line() -> None:
    assert chosen("dead-host:2", 3) == (BY_NAME["dead-host"], 2)
    for word in ("dead-hots", "dead-host:4", "dead-host:x"):
        with pytest.raises(SystemExit, match=word.partition(":")[0]):
            chosen(word, 3)


def test_nothing_is_held_where_nothing_was_taken() -> None:
    assert leaked_since(Held.now(), seconds=0) == []


def test_a_thread_that_runs_on_is_found() -> None:
    before, ended = Held.now(), threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-running")
    thread.start()
    assert leaked_since(before, seconds=0) == ["thread 'left-running'"]
    ended.set()
    thread.join()
    assert leaked_since(before, seconds=0) == []


def test_a_child_that_nobody_waited_for_is_found() -> None:
    before = Held.now()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = leaked_since(before, seconds=0)
    child.communicate()
    assert any(line.startswith(f"process {child.pid}: ") for line in found)
    assert any(line.startswith("descriptor ") and "pipe" in line for line in found)
    assert leaked_since(before, seconds=0) == []


def test_a_descriptor_that_stays_open_is_found() -> None:
    before = Held.now()
    reading, writing = os.pipe()
    assert len(leaked_since(before, seconds=0)) == 2
    os.close(reading)
    os.close(writing)
    assert leaked_since(before, seconds=0) == []


def test_what_ends_by_itself_in_time_is_no_leak() -> None:
    before = Held.now()
    timer = threading.Timer(0.05, lambda: None)
    timer.start()
    assert leaked_since(before, seconds=5) == []


def test_a_child_that_the_kernel_did_not_list_before_is_no_leak() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = Held.now()
    before = replace(held, children=frozenset(), ticks=held.ticks + 1)
    found = leaked_since(before, seconds=0)
    child.communicate()
    assert found == []


def test_a_child_that_had_no_words_yet_is_known_by_its_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = Held.now()
    without_words = frozenset((pid, "") for pid, _ in held.children)
    before = replace(held, children=without_words, ticks=0)
    found = leaked_since(before, seconds=0)
    child.communicate()
    assert (child.pid, "") in without_words
    assert found == []


def test_the_largest_group_comes_first() -> None:
    skipped = [("a", "needs root"), ("b", "needs a GPU"), ("c", "needs root")]
    assert list(by_reason(skipped).items()) == [("needs root", ["a", "c"]), ("needs a GPU", ["b"])]


def test_a_module_that_is_missing_is_named_with_the_way_to_it() -> None:
    assert needs_module("no_such_module", "make test") == "needs no_such_module (make test)"
    assert needs_module("json", "make test") == ""


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    obstacle.cache_clear()
    try:
        assert obstacle("mpi") == "needs mpirun (Debian: openmpi-bin)"
        assert obstacle("slurm").startswith("needs slurmctld, slurmd, srun, munged")
        assert obstacle("gpu") == "needs an NVIDIA GPU"
    finally:
        obstacle.cache_clear()


def test_an_unmarked_test_has_no_obstacle() -> None:
    assert obstacle("keeps") == ""


AGENT = "agents/distconsole_agent/reading.py"
CONSOLE = "console/distconsole/reading.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {
        AGENT: "from typing import Any\n\nclass Place:\n    kept: dict[str, Any]\n",
        "training/distconsole_training/rings.py": "import distconsole_agent.reading\n",
        CONSOLE: "class Place:\n    pass\n\ndef _one():\n    return 1\n\nONE = _one()\n",
        "README.md": "Four words are here.",
        "docs/architecture.md": "Two words.",
        "tests/test_it.py": "\n\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_each_measure_counts_what_it_is_named_for(checkout: Path) -> None:
    assert measure(checkout) == {
        "source lines": 12,
        "functions per 1,000 lines": 83,
        "short private functions called once": 1,
        "modules with one importer": 1,
        "class names that mean two things": 1,
        "dict[str, Any] in the agent": 1,
        "words of README and docs": 6,
        "lines of tests": 2,
    }


def test_a_measure_that_rises_fails_and_is_recorded_only_where_asked(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = checkout / "house.json"
    assert main(["--lower"], checkout, record) == 0
    with (checkout / CONSOLE).open("a") as module:
        module.write("TWO = 2\n")
    (checkout / "tests/test_it.py").write_text("")

    assert main(["--lower"], checkout, record) == 1
    assert capsys.readouterr().out == "source lines: 13, and house.json records 12\n"
    recorded = json.loads(record.read_text())
    assert (recorded["source lines"], recorded["lines of tests"]) == (12, 0)
    assert main(["--accept"], checkout, record) == 0
    assert main([], checkout, record) == 0
