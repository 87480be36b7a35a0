"""A shell in a folder whose configuration nobody trusted yet."""

import os
from pathlib import Path

import pytest

from distconsole.__main__ import run


@pytest.fixture(autouse=True)
def project(cwd: Path) -> Path:
    """A folder that sets a shell command for every host, and where one stands."""
    file = cwd / "distconsole.toml"
    file.write_text(f"theme = 'nord'\nsetup = 'touch {cwd}/set-up'\n")
    return file


@pytest.mark.parametrize(
    "words",
    [
        ["run", "job.py"],
        ["check"],
        ["top", "--once"],
        ["runs"],
        ["no-verb"],
        ["demo", "--headless"],
        [],
    ],
)
def test_nothing_is_done_with_half_of_a_configuration(
    words: list[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        f"error: {project} is not trusted, and can have something executed: setup (line 2)",
        f"hint: look at it; if you trust it: distconsole trust {project.parent}",
    ]
    assert not (project.parent / "set-up").exists()


@pytest.mark.parametrize("words", [["--help"], ["run", "-h"], ["check", "--explain", "os"]])
def test_help_needs_no_trust(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert capsys.readouterr().err == ""


def test_trust_is_given_and_taken_back(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project.parent / "src").mkdir()
    assert run(["trust", "src"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"trusted as it is now: {project}",
        "  can have something executed: setup (line 2)",
        f"  to take it back: distconsole trust {project.parent} --revoke",
    ]
    assert run(["runs"]) == 0
    assert run(["trust", "--revoke"]) == 0
    assert run(["runs"]) == 2
    assert run(["trust", "--revoke"]) == 0
    assert capsys.readouterr().out.endswith(f"{project} was not trusted\n")


def test_trust_needs_a_file_that_can_be_understood(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trust", "nowhere"]) == 2
    project.write_text("setpu = 'x'\n")
    assert run(["trust"]) == 2
    project.unlink()
    assert run(["trust"]) == 2
    told = capsys.readouterr().err
    assert "no distconsole.toml to trust in" in told
    assert "did you mean 'setup'?" in told


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_stranger_s_file_is_passed_by_with_a_word_to_stderr(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chown(project, 65534, 65534)
    assert run(["runs"]) == 0
    told = capsys.readouterr()
    assert f"{project} is not read: it belongs to " in told.err
    assert "is not read" not in told.out
