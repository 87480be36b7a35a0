"""Each example of docs/contributing.md is applied to a copy of the repository, and does what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.sshd import end_processes_of
from suite.pages import REPOSITORY, blocks, shown_commands

TEXT = (REPOSITORY / "docs" / "contributing.md").read_text()
SECTIONS = {
    section.partition("\n")[0]: f"## {section}"
    for section in TEXT.split("\n## ")
    if blocks(f"## {section}", "diff")
}
COPIED = ("console", "agents", "training", "tests/unit/checks", "tests/suite")
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


@pytest.mark.parametrize("title", SECTIONS)
def test_an_example_touches_few_files(title: str) -> None:
    (diff,) = blocks(SECTIONS[title], "diff")
    files = re.findall(r"^\+\+\+ b/(\S+)$", diff, flags=re.MULTILINE)
    assert len(files) <= MAX_FILES


@pytest.mark.parametrize("title", SECTIONS)
def test_an_example_works_as_the_page_says(title: str, copy: Path) -> None:
    (diff,) = blocks(SECTIONS[title], "diff")
    # One line of context is enough: the page stays true while the code around an example changes.
    apply = subprocess.run(
        ["git", "apply", "-C1"], cwd=copy, input=diff, text=True, capture_output=True, check=False
    )
    assert not apply.returncode, f"mend this diff in docs/contributing.md by hand: {apply.stderr}"
    roots = os.pathsep.join(str(copy / root) for root in ("console", "agents", "training"))
    shown = [each for each in shown_commands(TEXT) if each.section == title]
    assert shown
    for each in shown:
        command = each.command.replace("distconsole ", "python -m distconsole ", 1)
        command = each.command if each.command.startswith("python") else command
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": roots, "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert [line for line in each.output if line not in done.stdout] == [], done.stdout
