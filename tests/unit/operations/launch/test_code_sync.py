"""What is refused of a script before anything is started."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from distconsole.cli.main import perform_headless
from distconsole.errors import PlanError, UsageError
from distconsole.launch.code_sync import (
    find_own_modules,
    refuse_missing_script,
    refuse_other_file,
    refuse_our_flags,
)
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.requests import Run

HERE = Cluster((Host(HostName("localhost"), local=True),))


def test_a_script_that_is_not_on_this_machine_is_refused_in_one_line(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert perform_headless(Run(str(tmp_path / "missing.py"))) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[0] == f"error: the script {tmp_path}/missing.py does not exist"
    assert not list(home.rglob("*.db"))


def test_what_python_can_run_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with pytest.raises(PlanError, match="is a folder"):
        refuse_missing_script(Run("job", workdir=str(tmp_path)), HERE)
    (tmp_path / "job" / "__main__.py").write_text("")
    (tmp_path / "job.py").write_text("")
    refuse_missing_script(Run("job", workdir=str(tmp_path)), HERE)
    refuse_missing_script(Run("job.py", workdir=str(tmp_path)), HERE)
    with pytest.raises(PlanError, match=r"the folder .*/nowhere of --workdir does not exist"):
        refuse_missing_script(Run("job.py", workdir=str(tmp_path / "nowhere")), HERE)
    refuse_missing_script(Run("not.here", module=True), HERE)


def test_what_other_hosts_have_is_theirs_to_say() -> None:
    refuse_missing_script(Run("/data/job.py"), Cluster((*HERE.hosts, Host(HostName("a")))))


@pytest.mark.parametrize("workdir", [None, "its folder"])
@pytest.mark.parametrize("name", ["train", "my prog", "it's"])
def test_the_line_said_of_a_program_writes_a_script_that_starts_it_over_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, workdir: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / (workdir or ".")
    folder.mkdir(exist_ok=True)
    shutil.copy("/bin/echo", folder / name)
    (folder / f"{name}.sh").write_text("mine\n")
    with pytest.raises(PlanError, match="is a program and no Python script") as caught:
        refuse_other_file(Run(name, workdir=workdir))
    subprocess.run(["sh", "-c", caught.value.hint.partition(": ")[2]], check=True)
    assert (folder / f"{name}.sh").read_text() == "mine\n"
    (made,) = (each for each in folder.iterdir() if each.name not in (name, f"{name}.sh"))
    started = subprocess.run(["sh", made, "a b"], cwd=folder, capture_output=True, check=True)
    assert started.stdout == b"a b\n"


def test_the_line_said_of_a_notebook_writes_over_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for taken, told in ((False, ""), (True, " --output train1")):
        if taken:
            (tmp_path / "train.py").touch()
        with pytest.raises(PlanError) as caught:
            refuse_other_file(Run("train.ipynb"))
        assert caught.value.hint.endswith(f"nbconvert --to script train.ipynb{told}")


@pytest.mark.parametrize(
    ("words", "source", "refused"),
    [
        (("--hosts", "a,b"), "print(1)", True),
        (("--lr", "1", "--nproc=4"), "print(1)", True),
        (("--max-restarts", "4"), "print(1)", True),
        (("--hosts", "a"), "parser.add_argument('--hosts')", False),
        (("--max-restarts", "4"), "max_restarts = FLAGS.max_restarts", False),
        (("--name", "x", "--json"), "print(1)", False),
        (("--", "--hosts", "a"), "print(1)", False),
        (("--hosts", "a"), "", False),
    ],
)
def test_an_option_of_ours_behind_a_script_that_does_not_know_it_is_refused(
    tmp_path: Path, words: tuple[str, ...], source: str, refused: bool
) -> None:
    (tmp_path / "t.py").write_text(source)
    request = Run("t.py", words, workdir=str(tmp_path))
    refuse_our_flags(replace(request, divided=True))
    if not refused:
        refuse_our_flags(request)
        return
    with pytest.raises(UsageError, match=r"--\w+(-\w+)? stands behind the script") as caught:
        refuse_our_flags(request)
    assert caught.value.hint.endswith(f"-- t.py {' '.join(words)}")


def lay_out(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()


@pytest.mark.parametrize(
    ("files", "cwd", "request_", "own"),
    [
        (
            ("src/toy/__init__.py", "scripts/t.py"),
            "",
            Run("scripts/t.py", sync=True),
            {"toy": "src"},
        ),
        (("toy/__init__.py", "scripts/t.py"), "", Run("scripts/t.py"), {"toy": "."}),
        (("toy/__init__.py", "t.py"), "", Run("t.py"), {}),
        (("src/toy/__init__.py",), "", Run("toy.train", module=True), {"toy": "src"}),
        (("toy/__init__.py",), "", Run("toy.train", module=True), {}),
        (("src/toy/__init__.py", "t.py"), "", Run("t.py", env=(("PYTHONPATH", "x:src"),)), {}),
    ],
)
def test_modules_of_the_project_that_python_does_not_find_by_itself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    cwd: str,
    request_: Run,
    own: dict[str, str],
) -> None:
    lay_out(tmp_path, *files, "pyproject.toml")
    monkeypatch.chdir(tmp_path / cwd)
    found = find_own_modules(request_)
    assert {name: place for name, (place, _) in found.items() if name == "toy"} == {
        name: str(tmp_path / place) for name, place in own.items()
    }
    for name, place in own.items():
        assert found[name][1].startswith(f"--env PYTHONPATH={place} ")


@pytest.mark.parametrize(
    ("files", "cwd", "script", "line"),
    [
        (("pkg/__init__.py", "pkg/t.py"), "", "pkg/t.py", "distconsole run -m pkg.t"),
        (("pkg/t.py",), "", "pkg/t.py", "distconsole run -m pkg.t"),
        (("pkg/__init__.py", "pkg/a/t.py"), "", "pkg/a/t.py", "distconsole run -m pkg.a.t"),
        (
            ("pkg/__init__.py", "pkg/t.py"),
            "pkg",
            "t.py",
            "distconsole run --workdir {folder} -m pkg.t",
        ),
    ],
)
def test_a_script_within_the_package_that_it_imports_is_started_as_a_module(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    cwd: str,
    script: str,
    line: str,
) -> None:
    lay_out(tmp_path, *files)
    monkeypatch.chdir(tmp_path / cwd)
    folder, cure = find_own_modules(Run(script))["pkg"]
    assert folder == str(tmp_path)
    assert cure == f"start it as a part of its package: {line.format(folder=tmp_path)}"
