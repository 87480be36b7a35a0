"""Tests see a machine that nobody has configured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from suite.environment import scrubbed


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
