"""What an import of torch brings is looked at in a process of its own, with an end."""

import os
import site
import sys
import time
from pathlib import Path

import pytest

from distconsole_agent import probes
from distconsole_agent.probes.standalone import inspect_python


def setup_with(folder: Path) -> str:
    return f"export PYTHONPATH={folder}"


@pytest.mark.parametrize(
    ("source", "present", "error"),
    [
        ("raise ModuleNotFoundError(name='torch')", False, ""),
        (
            "raise OSError('libcudart.so.12: cannot open shared object file')",
            True,
            "OSError: libcu",
        ),
        ("import no_such_module_at_all", True, "No module named 'no_such_module_at_all'"),
        ("def broken(:", True, "SyntaxError"),
    ],
)
def test_a_failed_import_says_why(source: str, present: bool, error: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(source)
    facts = probes.run("import", {"setup": setup_with(tmp_path)}, 20.0)
    assert facts["present"] is present
    assert facts["error"].startswith(error)


def test_what_torch_was_built_for_and_its_nccl_are_told(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "__version__ = '9.9+cu'\n"
        "class _C:\n"
        "    _cuda_getArchFlags = staticmethod(lambda: 'sm_80 sm_90 compute_90')\n"
        "    _nccl_version = staticmethod(lambda: (2 << 32) | (27 << 16) | 5)\n"
        "print('noise', flush=True)\n"
    )
    facts = probes.run("import", {"setup": setup_with(tmp_path)}, 20.0)
    assert (facts["version"], facts["nccl"]) == ("9.9+cu", "2.27.5")
    assert facts["architectures"] == ["sm_80", "sm_90", "compute_90"]
    assert 0 <= facts["seconds"] < 20


def test_an_import_without_an_end_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")
    began = time.monotonic()
    facts = probes.run("import", {"setup": setup_with(tmp_path)}, 1.0)
    assert facts["late"] is True
    assert time.monotonic() - began < 30


def test_copies_of_nccl_that_the_loader_finds_first_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wheel/nvidia/nccl/lib", "hpcx"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "libnccl.so.2").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/none:{tmp_path}/hpcx:{tmp_path}/hpcx")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert inspect_python.nccl_on_path() == [os.path.realpath(tmp_path / "hpcx/libnccl.so.2")]
    assert inspect_python.nccl_library(f"{tmp_path}/wheel/torch") == os.path.realpath(
        tmp_path / "wheel/nvidia/nccl/lib/libnccl.so.2"
    )
    assert inspect_python.nccl_library(f"{tmp_path}/other/torch") is None


def test_pythonpath_hides_no_module_that_a_program_of_ours_loads(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for name in ("json", "signal", "threading"):
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write(__name__)\n")
    (tmp_path / "own-1.0.dist-info").mkdir()
    facts = probes.run("python_env", {"setup": setup_with(tmp_path)}, 20.0)
    assert facts["python"]["packages"]["own"] == "1.0"  # what ranks import is still found
    assert not mark.exists()


AT_START = {"encodings", "codecs", "io", "abc", "site", "os", "stat", "posixpath", "genericpath"}
"""Modules without which a Python does not begin at all."""


def test_modules_of_a_path_stand_in_front_of_none_that_a_probe_needs(tmp_path: Path) -> None:
    fails = "raise ImportError(f'not the {__name__} of Python')"
    for name in sys.stdlib_module_names - AT_START:
        if not name.startswith("_"):
            (tmp_path / f"{name}.py").write_text(fails)
    egg = tmp_path / "mine.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 7\n")
    facts = probes.run("python_env", {"setup": setup_with(tmp_path)}, 20.0)
    assert facts["python"]["packages"]["mine"] == "7"
    (tmp_path / "torch.py").write_text("import csv\n")
    facts = probes.run("import", {"setup": setup_with(tmp_path)}, 20.0)
    assert "not the csv of Python" in facts["error"]


def test_what_a_users_site_hides_or_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"before": {"six": 1}, "user": {"six": 2, "numpy": 2, "torch": 2, "click": 8}}
    places["environment"] = {"six": 3, "numpy": 1, "click": 8}
    for place, packages in places.items():
        for name, version in packages.items():
            (tmp_path / place / f"{name}-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / place) for place in places])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "USER_SITE", str(tmp_path / "user"))
    facts = inspect_python.python_facts()
    assert facts["shadowed"] == {"numpy": "1"}
    assert facts["user_only"] == ["torch"]
