"""Folders of the node: ours alone, kept apart, and removed without following a link."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.node_folder import folders
from distconsole_agent.node_folder.folders import (
    open_node_dir,
    own_folder,
    remove_tree,
    ring_folder,
    ring_folders,
)
from distconsole_agent.system.addresses import local_addresses


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    monkeypatch.setattr(folders, "SHARED_MEMORY", str(path))
    return path


def test_a_node_folder_is_its_users_alone_or_refused(tmp_path: Path) -> None:
    path = open_node_dir(str(tmp_path / "deep" / "node"))
    assert Path(path).stat().st_mode & 0o777 == 0o700
    assert open_node_dir(path) == path
    (Path(path) / "runs").chmod(0o777)
    with pytest.raises(Refusal, match="open to others"):
        open_node_dir(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal, match="file") as caught:
        open_node_dir(str(tmp_path / "file" / "node"))
    assert caught.value.code == "storage"
    assert "ulimit -f" in folders.storage_refusal(path, OSError(errno.EFBIG, "too large")).hint


def test_removing_a_tree_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "file").write_text("")
    (tree / "link").symlink_to(tmp_path / "kept")
    remove_tree(str(tree))
    assert not tree.exists()
    assert (tmp_path / "kept" / "file").read_text() == "kept"
    remove_tree(str(tree))


def test_two_node_folders_keep_their_rings_apart(shared_memory: Path) -> None:
    one, other = ring_folder("a-run", "/tmp/one"), ring_folder("a-run", "/tmp/other")
    assert one is not None
    assert other is not None
    assert one != other
    assert all(Path(path).stat().st_mode & 0o777 == 0o700 for path in (one, other))
    assert ring_folders("/tmp/one") == [("a-run", one)]


def test_rings_do_not_go_where_there_is_no_room_or_into_anothers_folder(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(folders, "MIN_RING_ROOM_BYTES", 1 << 62)
        assert ring_folder("a-run", "/tmp/one") is None
    (shared_memory / f"distconsole-{os.getuid()}").mkdir(mode=0o777, exist_ok=True)
    (shared_memory / f"distconsole-{os.getuid()}").chmod(0o777)
    assert ring_folder("a-run", "/tmp/one") is None


def test_own_folder_refuses_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(Refusal, match="not a folder"):
        own_folder(str(tmp_path / "link"))


def test_loopback_is_among_the_addresses() -> None:
    (loopback,) = [each for each in local_addresses() if each["address"] == "127.0.0.1"]
    assert loopback == {
        "iface": "lo", "address": "127.0.0.1", "prefix": 8, "family": 4, "up": True, "loopback": True,
    }  # fmt: skip


def test_a_folder_from_which_others_remove_files_meanwhile_goes_too(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(3000):
        place = tree / str(number % 30)
        place.mkdir(parents=True, exist_ok=True)
        (place / str(number)).touch()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(remove_tree, str(tree)) for _ in range(4)]:
            done.result()
    assert not tree.exists()
