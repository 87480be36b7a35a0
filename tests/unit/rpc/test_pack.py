"""The agent's file: the same bytes everywhere, and it runs where nothing is installed."""

import io
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from distconsole.rpc.pack import INSTALLER, agent_pack, pack
from suite.programs import run_to_end

PYTHONS = [
    path
    for version in ("3.9.18", "3.13.0")
    if (path := Path(f"~root/.pyenv/versions/{version}/bin/python").expanduser()).exists()
]


def test_the_same_members_are_the_same_bytes() -> None:
    one = pack({"b.py": b"2", "a.py": b"1"})
    assert one.content == pack({"a.py": b"1", "b.py": b"2"}).content
    assert one.sha256 != pack({"a.py": b"1", "b.py": b"3"}).sha256
    assert one.name == f"agent-{one.sha256[:16]}.pyz"


def test_it_holds_agent_hook_and_pynvml_as_sources_only() -> None:
    names = zipfile.ZipFile(io.BytesIO(agent_pack().content)).namelist()
    assert {"__main__.py", "pynvml.py", "distconsole_agent/contract/protocol.py"} <= set(names)
    assert "distconsole_training/records.py" in names
    assert names == sorted(names)
    assert all(name.endswith(".py") for name in names)


def test_nothing_of_the_place_where_it_was_built_is_in_it(tmp_path: Path) -> None:
    """As an editable install and as a wheel's copy in another folder."""
    site = tmp_path / "site-packages"
    for package in ("distconsole", "distconsole_agent", "distconsole_training"):
        source = Path(sys.modules[package].__file__ or "").parent
        shutil.copytree(source, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import distconsole_agent; from distconsole.rpc.pack import agent_pack; print(agent_pack().sha256, distconsole_agent.__file__)"
    done = run_to_end(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    digest, file = done.stdout.split()
    assert file.startswith(str(site))
    assert digest == agent_pack().sha256


def test_nothing_in_it_asks_for_more_rights() -> None:
    with zipfile.ZipFile(io.BytesIO(agent_pack().content)) as archive:
        found = [
            name
            for name in archive.namelist()
            if re.search(rb"sudo|set\w*uid", archive.read(name))
        ]
    assert found == []


@pytest.mark.parametrize("python", [Path(sys.executable), *PYTHONS], ids=str)
def test_it_runs_with_nothing_installed(python: Path, tmp_path: Path) -> None:
    file = tmp_path / "agent-x.pyz"
    file.write_bytes(agent_pack().content)
    done = subprocess.run(
        [str(python), "-E", "-S", str(file), "nonsense"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"usage: agent.pyz bridge" in done.stderr


@pytest.mark.parametrize(
    ("name", "cut", "said"), [("c/agent-1.pyz", 2, b""), ("agent-1.pyz", 0, b"arrived damaged")]
)
def test_a_transfer_that_breaks_off_or_is_damaged_leaves_nothing(
    tmp_path: Path, name: str, cut: int, said: bytes
) -> None:
    body = zlib.compress(b"content")
    done = subprocess.run(
        [sys.executable, "-E", "-c", INSTALLER, str(tmp_path / name), "0" * 64],
        input=b"%d\n" % len(body) + body[: len(body) - cut],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 or not cut
    assert said in done.stdout
    assert list(tmp_path.iterdir()) == []
