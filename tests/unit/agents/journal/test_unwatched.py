"""Processes of a watched run that have imported torch without the hook."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distconsole_agent.journal.unwatched import FIRST_SECONDS, UnwatchedProcesses

MAPS_TORCH = """
import mmap, sys
with open(sys.argv[1]) as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    path = tmp_path / "hook-0123"
    path.mkdir()
    (path / "sitecustomize.py").touch()
    return path


@contextmanager
def rank(
    folder: Path,
    *options: str,
    maps: str = "libtorch_python.so",
    program: str = sys.executable,
    **env: str,
) -> Iterator[None]:
    """Run a process of the run in ``folder`` that has mapped a library of torch's name."""
    library = folder / maps
    library.write_text("x")
    words = [program, *options, "-c", MAPS_TORCH, str(library)]
    told = {"DISTCONSOLE_RUN_DIR": str(folder), "DISTCONSOLE_RINGS": str(folder), **env}
    with subprocess.Popen(
        words, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        yield
        process.communicate()


def look(folder: Path, hook: Path | None, *, recorded: bool = False) -> list[str]:
    found = UnwatchedProcesses(str(folder), None if hook is None else str(hook))
    assert found.take(0.0, recorded=recorded) == []
    said = found.take(FIRST_SECONDS, recorded=recorded)
    assert found.take(4 * FIRST_SECONDS, recorded=recorded) == [], "once"
    return [each.summary for each in said]


def test_a_path_without_the_hook_is_told(tmp_path: Path, hook: Path) -> None:
    with rank(tmp_path, PYTHONPATH="/elsewhere"):
        (said,) = look(tmp_path, hook)
    assert f"without the hook: its PYTHONPATH does not hold {hook}" in said


@pytest.mark.parametrize(
    "line", ["-I", "-sE", "-S", "-X dev=0 -E", "-W ignore -I", "-Wignore -bI"]
)
def test_an_isolated_python_is_told(line: str, tmp_path: Path, hook: Path) -> None:
    with rank(tmp_path, *line.split(), PYTHONPATH=f"{hook}:/x"):
        (said,) = look(tmp_path, hook)
    assert f"Python was started with {line.split()[-1]};" in said


@pytest.mark.parametrize("line", ["-Wignore::ImportWarning", "-XISE", "-bXEx"])
def test_the_value_of_an_option_isolates_no_python(line: str, tmp_path: Path, hook: Path) -> None:
    with rank(tmp_path, *line.split(), PYTHONPATH=f"{hook}:/x"):
        assert look(tmp_path, hook) == []


def test_another_programs_options_are_not_taken_for_pythons(tmp_path: Path, hook: Path) -> None:
    other = tmp_path / "trainer"
    shutil.copy(os.path.realpath(sys.executable), other)
    with rank(tmp_path, "-E", program=str(other), PYTHONPATH=f"{hook}:/x"):
        assert look(tmp_path, hook) == []


def test_a_hook_that_cannot_be_read_is_told(tmp_path: Path, hook: Path) -> None:
    (hook / "sitecustomize.py").unlink()
    with rank(tmp_path, PYTHONPATH=str(hook)):
        (said,) = look(tmp_path, hook)
    assert f"{hook}/sitecustomize.py cannot be read there" in said


def test_nothing_is_told_of_others(tmp_path: Path, hook: Path) -> None:
    with rank(tmp_path, PYTHONPATH=str(hook)):
        assert look(tmp_path, hook) == [], "it trains nothing"
    with rank(tmp_path, maps="libc.so"):
        assert look(tmp_path, hook) == [], "it has no torch"
    with rank(tmp_path, DISTCONSOLE_HOOK="0"):
        assert look(tmp_path, hook) == [], "its user wants none"
    with rank(tmp_path):
        assert look(tmp_path, None) == [], "the run is not watched"
        assert look(tmp_path, hook, recorded=True) == [], "another has a ring"
        assert look(tmp_path / "other", hook) == [], "it is of another run"
