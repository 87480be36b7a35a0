"""The probes ``script`` and ``folders``: what a launch needs of a node, read without running or importing it."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.probes import ProbeError, run
from distconsole_agent.probes.standalone import inspect_script

SECONDS = 20.0


def write(folder: Path, **files: str) -> None:
    """Write modules; ``_in_`` in a name leads into a folder, and ``init`` is ``__init__``."""
    for name, text in files.items():
        parts = ["__init__" if part == "init" else part for part in name.split("_in_")]
        path = folder.joinpath(*parts).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def look(folder: Path, **args: Any) -> dict[str, Any]:
    given = {
        "path": str(folder / "train.py"),
        "root": str(folder),
        "workdir": str(folder),
        "python": sys.executable,
        **args,
    }
    return run("script", given, SECONDS)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("import a, b.c", [(0, "a", [], False), (0, "b.c", [], False)]),
        ("from . import x\nfrom ..p import y", [(1, "", ["x"], False), (2, "p", ["y"], False)]),
        ("from a import *", [(0, "a", [], False)]),
        (
            "try:\n import a\nexcept ImportError:\n import b",
            [(0, "a", [], True), (0, "b", [], True)],
        ),
        ("try:\n import a\nexcept (OSError, ModuleNotFoundError):\n pass", [(0, "a", [], True)]),
        (
            "try:\n import a\nexcept:\n pass\nelse:\n import b",
            [(0, "a", [], True), (0, "b", [], False)],
        ),
        (
            "try:\n import a\nexcept KeyError:\n pass\nfinally:\n import b",
            [(0, "a", [], False), (0, "b", [], False)],
        ),
        (
            "def f():\n import a\nasync def g():\n import b",
            [(0, "a", [], True), (0, "b", [], True)],
        ),
        ("class A:\n import a", [(0, "a", [], False)]),
        (
            "if TYPE_CHECKING:\n import a\nelse:\n import b",
            [(0, "a", [], True), (0, "b", [], True)],
        ),
        ("if __name__ == '__main__':\n import a", [(0, "a", [], False)]),
        ("with x:\n import a\nfor i in y:\n import b", [(0, "a", [], False), (0, "b", [], False)]),
    ],
)
def test_imports_are_told_with_whether_the_script_can_do_without(
    text: str, seen: list[tuple[int, str, list[str], bool]]
) -> None:
    found = inspect_script.Imports()
    found.visit(inspect_script.ast.parse(text))
    assert found.seen == seen


def test_the_local_code_is_followed_and_nothing_of_it_runs(tmp_path: Path) -> None:
    write(
        tmp_path,
        train="import model\nfrom pkg.sub import thing\nimport io, json, msgspec, no_such_thing, sys\n"
        f"open({str(tmp_path / 'ran')!r}, 'w')\n",
        model="from pkg import other\ntry:\n    import maybe_not\nexcept ImportError:\n    pass\n",
        pkg_in_init="",
        pkg_in_sub_in_thing="from .. import deep\n",
        pkg_in_sub_in_init="",
        pkg_in_deep="import no_such_other\n",
        pkg_in_other="",
        unused="import never_looked_at\n",
    )
    facts = look(tmp_path)
    assert set(facts["code"]["files"]) == {
        *("train.py", "model.py", "pkg/__init__.py", "pkg/sub/__init__.py"),
        *("pkg/sub/thing.py", "pkg/deep.py", "pkg/other.py"),
    }
    modules = facts["modules"]
    assert set(modules) == {"msgspec", "no_such_thing", "no_such_other", "maybe_not"}
    assert modules["msgspec"]["found"]
    assert modules["msgspec"]["package"] == "msgspec"
    assert modules["msgspec"]["version"]
    lacking = {name: each["needed"] for name, each in modules.items() if not each["found"]}
    assert lacking == {"no_such_thing": True, "no_such_other": True, "maybe_not": False}
    assert not (tmp_path / "ran").exists()
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_folder_without_an_init_counts_unless_a_package_hides_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        train="from utils import helper\nimport msgspec.hidden\n",
        utils_in_helper="import no_such_thing\n",
        msgspec_in_hidden="",
    )
    facts = look(tmp_path)
    assert set(facts["code"]["files"]) == {"train.py", "utils/helper.py"}
    assert set(facts["modules"]) == {"msgspec", "no_such_thing"}


@pytest.mark.parametrize("root", ["proj/.", "proj/pkg/..", "proj/"])
def test_a_folder_that_is_written_in_another_way_is_the_same(tmp_path: Path, root: str) -> None:
    package = tmp_path / "proj" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import inner")
    (package / "inner.py").write_text("")
    script = tmp_path / "proj" / "train.py"
    script.write_text("import pkg")
    told = look(tmp_path, path=str(script), root=f"{tmp_path}/{root}")
    assert set(told["code"]["files"]) == {"train.py", "pkg/__init__.py", "pkg/inner.py"}


@pytest.mark.parametrize(
    ("text", "own"),
    [("import sys\nsys.path.insert(0, 'lib')\n", True), ("import os\nos.path.join('a')\n", False)],
)
def test_a_script_that_changes_sys_path_says_so(tmp_path: Path, text: str, own: bool) -> None:
    write(tmp_path, train=text)
    assert look(tmp_path)["code"]["own_path"] is own


def test_a_module_is_found_below_the_working_folder_with_its_packages(tmp_path: Path) -> None:
    write(tmp_path, pkg_in_init="import a_first\n", pkg_in_train="x = 1\n")
    facts = look(tmp_path, path="pkg.train", module=True)
    assert set(facts["code"]["files"]) == {"pkg/__init__.py", "pkg/train.py"}
    assert facts["modules"]["a_first"]["found"] is False
    assert look(tmp_path, path="msgspec", module=True)["script"]["installed"] is True
    assert look(tmp_path, path="no_such", module=True)["script"]["installed"] is False


def test_code_that_is_not_on_the_disk_yet_is_looked_at_all_the_same(tmp_path: Path) -> None:
    sources = {"/nowhere/train.py": "import model\n", "/nowhere/model.py": "import gone\nx = (\n"}
    facts = look(tmp_path, path="/nowhere/train.py", root="/nowhere", sources=sources)
    assert set(facts["code"]["files"]) == {"train.py", "model.py"}
    assert facts["code"]["problem"]["file"] == "model.py"


@pytest.mark.parametrize(
    ("content", "key", "value"),
    [
        (b"x = (\n", "problem", "was never closed"),
        (b"def f():\n  return 1\nreturn 2\n", "problem", "outside function"),
        (b"\x7fELF\0\0", "script", "binary"),
        (b"#!/usr/bin/env python\r\nx = 1\r\n", "script", "crlf"),
    ],
)
def test_what_is_no_script_is_named(tmp_path: Path, content: bytes, key: str, value: str) -> None:
    (tmp_path / "train.py").write_bytes(content)
    facts = look(tmp_path)
    if key == "script":
        assert facts["script"][value] is True
    else:
        assert value in facts["code"]["problem"]["what"]


def test_paths_variables_and_a_wrong_interpreter(tmp_path: Path) -> None:
    write(tmp_path, train="import from_pythonpath\n")
    write(tmp_path / "lib", from_pythonpath="")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one").touch()
    paths = [str(tmp_path / "data"), str(tmp_path / "absent/out")]
    facts = look(tmp_path, paths=paths, env={"PYTHONPATH": "lib"}, address="localhost")
    assert facts["modules"]["from_pythonpath"]["found"] is True
    assert (facts["paths"][paths[0]]["kind"], facts["paths"][paths[0]]["entries"]) == ("folder", 1)
    assert facts["paths"][paths[1]]["above"] == str(tmp_path)
    assert "127.0.0.1" in facts["address"]["addresses"]
    wrong = look(tmp_path, python="/nowhere/python")
    assert "/nowhere/python cannot be started" in wrong["python"]["error"]
    assert (wrong["script"]["kind"], wrong["modules"]) == ("file", None)
    assert look(tmp_path, workdir=str(tmp_path / "no"))["workdir"]["code"] == "ENOENT"


@pytest.mark.parametrize(
    "args",
    [{"env": {"A B": "1"}}, {"env": {"A": 1}}, {"env": []}, {"sources": {"a": 1}}, {"paths": [1]}],
)
def test_arguments_that_mean_nothing_are_refused(tmp_path: Path, args: dict[str, Any]) -> None:
    with pytest.raises(ProbeError):
        look(tmp_path, **args)


def test_folders_are_measured_and_nothing_is_left_in_them(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(2 << 20))
    asked = {"touch": True, "write_bytes": 1 << 20, "read_bytes": 1 << 20, "seconds": 5.0}
    absent = str(tmp_path / "absent")
    facts = run(
        "folders",
        {"folders": [{"path": str(tmp_path), **asked}, {"path": absent, "touch": True}]},
        SECONDS,
    )["folders"]
    found = facts[str(tmp_path)]
    assert found["touch"] == {"error": "", "code": ""}
    assert (found["write"]["bytes"], found["small"]["count"]) == (1 << 20, 8)
    assert found["write"]["seconds"] > 0
    assert found["look"]["count"] == 1
    assert facts[absent]["touch"]["code"] == "ENOENT"
    assert [path.name for path in tmp_path.iterdir()] == ["shard"]
    usual = run("folders", {"folders": [], "usual": ["temporary"]}, SECONDS)["folders"]
    assert [each["touch"]["error"] for each in usual.values()] == [""]


@pytest.mark.parametrize("name", ["csv", "email", "zipfile", "importlib_metadata"])
def test_a_module_of_the_script_is_not_taken_for_the_probes(tmp_path: Path, name: str) -> None:
    write(
        tmp_path, train="import torch, nosuch", **{name: f"open({str(tmp_path / 'mark')!r}, 'w')"}
    )
    found = look(tmp_path, imports=True)["modules"]
    assert found["nosuch"]["found"] is False
    assert not (tmp_path / "mark").exists()


def test_the_commit_is_told_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    write(tmp_path, train="import json")
    who = ("-c", "user.name=n", "-c", "user.email=n@x")
    inner = tmp_path / "inner"  # a submodule
    inner.mkdir()
    write(inner, part="import json")
    for folder in (inner, tmp_path):
        for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x")):
            subprocess.run(["git", *words], cwd=folder, check=True)
    assert look(tmp_path)["git"]["dirty"] is False
    write(inner, part="import os")
    assert look(tmp_path)["git"]["dirty"] is True
    write(inner, part="import json")
    write(tmp_path, train="import os")
    assert look(tmp_path)["git"]["dirty"] is True
    subprocess.run(["git", "config", "filter.own.clean", "false"], cwd=tmp_path, check=True)
    told = look(tmp_path)["git"]
    assert (len(told["head"]), told["dirty"]) == (40, None)
