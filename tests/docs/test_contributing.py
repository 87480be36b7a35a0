"""Each change of docs/contributing.md is applied to a copy of the repository, and does what the page shows."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from fakes.sshd import end_processes_of
from suite.pages import REPOSITORY, shown_commands
from suite.programs import run_to_end

TEXT = (REPOSITORY / "docs" / "contributing.md").read_text()
DIFFS = {path.stem: path for path in (REPOSITORY / "docs" / "changes").glob("*.diff")}
SECTIONS = {
    re.findall(r"(\w+)\.diff", shown[0].command)[0]: shown
    for _, group in groupby(shown_commands(TEXT), key=lambda each: each.section)
    if "git apply" in (shown := list(group))[0].command
}
COPIED = ("console", "agents", "training", "docs/changes", "tests/unit/checks", "tests/suite")
MAX_FILES = 4


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the source, and of the tests that the page runs; its agent has a node folder of its own."""
    own = home / ".config" / "distconsole" / "distconsole.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f'node_dir = "{tmp_path}/node"\n')
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    yield tmp_path
    end_processes_of(tmp_path)


def test_there_are_four_examples() -> None:
    assert len(SECTIONS) == 4


@pytest.mark.parametrize("name", SECTIONS)
def test_an_example_touches_few_files_and_git_reads_all_its_lines(name: str) -> None:
    """git leaves out what stands behind the number of lines in a hunk's header."""
    counts = run_to_end(["git", "apply", "--numstat", DIFFS[name]]).stdout.splitlines()
    added = re.findall(r"^\+(?!\+\+ )", DIFFS[name].read_text(), flags=re.MULTILINE)
    assert 0 < len(counts) <= MAX_FILES
    assert sum(int(each.split()[0]) for each in counts) == len(added)


@pytest.mark.parametrize("name", SECTIONS)
def test_an_example_works_as_the_page_says(name: str, copy: Path) -> None:
    """One line of context is enough for git: a change stays true while the code around it changes."""
    roots = os.pathsep.join(str(copy / root) for root in ("console", "agents", "training"))
    apply, *shown = SECTIONS[name]
    assert shown
    for each in (apply, *shown):
        command = re.sub(r"^distconsole ", "python -m distconsole ", each.command)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": roots, "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert each is not apply or not done.returncode, done.stdout
        assert [line for line in each.output if line not in done.stdout] == [], done.stdout
