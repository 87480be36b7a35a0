"""The compiled program beside the zipapp: made by an agent, used by what starts next, never trusted blindly."""

import os
import sys
from pathlib import Path

import pytest

from distconsole.rpc.pack import agent_pack
from distconsole_agent.node_folder import compiled
from fakes.agents import AgentNode
from fakes.shims import wait_until
from suite.programs import run_to_end

WHERE_FROM = "import atexit, sys; atexit.register(lambda: print(sys.modules['distconsole_agent.__main__'].__file__))"
"""Of a ``sitecustomize``: has a program say at its end where its modules came from."""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    pack = agent_pack()
    path = tmp_path / "cache" / pack.name
    path.parent.mkdir(mode=0o700)
    path.write_bytes(pack.content)
    return path


def loaded_from(archive: Path, tmp_path: Path) -> str:
    """Return the file or zip that the program's modules come from."""
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(WHERE_FROM)
    done = run_to_end(
        [sys.executable, str(archive), "nonsense"],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 2
    return str(Path(done.stdout.strip()).parent.parent)


def test_an_agent_compiles_its_program_once_for_all_starts(archive: Path, tmp_path: Path) -> None:
    assert loaded_from(archive, tmp_path) == str(archive)
    node = AgentNode(tmp_path / "node", [sys.executable, "-E", str(archive)])
    path = Path(compiled.compiled_path(str(archive)))
    with node.bridge() as bridge:
        first = bridge.done("hello", protocol=1)["agent_pid"]
        wait_until("the program is compiled", path.exists)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == sorted([archive.name, path.name])
    assert loaded_from(archive, tmp_path) == str(path)
    node.kill_agent()
    with node.bridge() as bridge:
        assert bridge.done("hello", protocol=1)["agent_pid"] != first
    node.close()


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def open_to_others(path: Path) -> None:
    path.chmod(0o622)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def give_away(path: Path) -> None:
    os.chown(path, 12345, 12345)


CHANGES = [spoil, shorten, open_to_others, link, *([give_away] if os.getuid() == 0 else [])]


def test_a_foreign_or_cut_compiled_program_is_not_used(archive: Path, tmp_path: Path) -> None:
    path = Path(compiled.compiled_path(str(archive)))
    compiled.keep_compiled(str(archive))
    content = path.read_bytes()
    for change in CHANGES:
        path.unlink()
        path.touch(mode=0o600)
        path.write_bytes(content)
        assert loaded_from(archive, tmp_path) == str(path)
        change(path)
        assert loaded_from(archive, tmp_path) == str(archive), change


def test_a_damaged_one_is_written_anew_and_a_whole_one_kept(archive: Path, tmp_path: Path) -> None:
    path = Path(compiled.compiled_path(str(archive)))
    compiled.keep_compiled(str(archive))
    made = path.stat().st_ino
    compiled.keep_compiled(str(archive))
    assert path.stat().st_ino == made
    spoil(path)
    compiled.keep_compiled(str(archive))
    assert loaded_from(archive, tmp_path) == str(path)
