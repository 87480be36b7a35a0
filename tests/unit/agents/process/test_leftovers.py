"""What other versions left in the node folder: removed once it is old and nobody uses it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from distconsole_agent.folders import NodeFolders
from distconsole_agent.leftovers import remove_leftovers
from distconsole_agent.limits import KEEP_LEFTOVER_SECONDS

NOW = 2_000_000_000.0
OLD, FRESH = NOW - KEEP_LEFTOVER_SECONDS - 1, NOW - KEEP_LEFTOVER_SECONDS + 1


@pytest.fixture
def node(tmp_path: Path) -> NodeFolders:
    (tmp_path / "runs").mkdir()
    node = NodeFolders(str(tmp_path), "0123")
    leave(node, "agent-0123.lock", OLD)
    return node


def leave(node: NodeFolders, name: str, used: float) -> Path:
    path = Path(node.node_dir, name)
    if name.startswith("hook-"):
        (path / "distconsole_training").mkdir(parents=True)
        (path / "sitecustomize.py").touch()
    else:
        path.touch()
    os.utime(path, (used, used))
    return path


def names(node: NodeFolders) -> set[str]:
    return {each.name for each in Path(node.node_dir).iterdir()} - {"runs", "agent-0123.lock"}


def run_with(node: NodeFolders, hook: Path, *, over: bool) -> None:
    folder = Path(node.run("a-run"))
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps({"hook": str(hook)}))
    if over:
        (folder / "ended.json").touch()


def test_old_files_and_hooks_of_other_versions_go(node: NodeFolders) -> None:
    for name in ("agent-abc.lock", "agent-abc.log", "agent-abc.sock", "hook-abc", "hook-abc.4711"):
        leave(node, name, OLD)
    remove_leftovers(node, NOW)
    assert names(node) == set()


def test_what_was_used_lately_and_what_is_not_ours_stays(node: NodeFolders) -> None:
    for name in ("agent-abc.lock", "agent-abc.log", "hook-abc"):
        leave(node, name, FRESH)
    for name in ("agent-0123.log", "agent-0123.sock", "mine", "agent-abc.txt", "agent-abc"):
        leave(node, name, OLD)
    before = names(node)
    remove_leftovers(node, NOW)
    assert names(node) == before


def test_the_log_of_an_agent_that_lives_stays(node: NodeFolders) -> None:
    lock, log = leave(node, "agent-abc.lock", OLD), leave(node, "agent-abc.log", OLD)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        remove_leftovers(node, NOW)
        assert names(node) == {lock.name, log.name}
    remove_leftovers(node, NOW)
    assert names(node) == set()


def test_the_log_of_an_agent_that_lived_lately_stays(node: NodeFolders) -> None:
    leave(node, "agent-abc.lock", FRESH)
    leave(node, "agent-abc.log", OLD)
    remove_leftovers(node, NOW)
    assert names(node) == {"agent-abc.lock", "agent-abc.log"}


@pytest.mark.parametrize("over", [False, True])
def test_the_hook_of_a_run_stays_as_long_as_the_run(node: NodeFolders, over: bool) -> None:
    hook = leave(node, "hook-abc", OLD)
    run_with(node, hook, over=over)
    remove_leftovers(node, NOW)
    assert hook.exists() is not over


def test_an_agent_that_keeps_house_has_used_its_lock(node: NodeFolders) -> None:
    remove_leftovers(node, NOW)
    assert Path(node.lock).stat().st_mtime != OLD


def test_a_link_is_removed_and_not_followed(node: NodeFolders, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    link = tmp_path / "hook-abc"
    link.symlink_to(kept)
    os.utime(link, (OLD, OLD), follow_symlinks=False)
    remove_leftovers(node, NOW)
    assert names(node) == {"kept"}
    assert (kept / "file").exists()
