"""Modules of the project that the ranks' Python does not find by itself."""

from pathlib import Path

import pytest

from distconsole.launch.own_modules import find_own_modules
from distconsole.model.requests import Run


def lay_out(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()


@pytest.mark.parametrize(
    ("files", "request_", "own"),
    [
        (("src/toy/__init__.py", "s/t.py"), Run("s/t.py", sync=True), {"toy": "src"}),
        (("toy/__init__.py", "scripts/t.py"), Run("scripts/t.py"), {"toy": "."}),
        (("toy/__init__.py", "t.py"), Run("t.py"), {}),
        (("src/toy/__init__.py",), Run("toy.train", module=True), {"toy": "src"}),
        (("python/toy/__init__.py",), Run("toy.train", module=True), {"toy": "python"}),
        (("toy/__init__.py",), Run("toy.train", module=True), {}),
        (("src/toy/__init__.py", "t.py"), Run("t.py", env=(("PYTHONPATH", "x:src"),)), {}),
    ],
)
def test_modules_of_the_project_that_python_does_not_find_by_itself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    request_: Run,
    own: dict[str, str],
) -> None:
    lay_out(tmp_path, *files, "pyproject.toml")
    monkeypatch.chdir(tmp_path)
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
