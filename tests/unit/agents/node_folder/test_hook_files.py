"""What other versions left in the node folder: removed once it is old and nobody uses it."""

import fcntl
import json
import os
import shutil
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import distconsole_training
from distconsole_agent.contract.limits import KEEP_LEFTOVER_SECONDS
from distconsole_agent.node_folder.folders import NodeFolders, this_program
from distconsole_agent.node_folder.hook_files import remove_leftovers, unpack_hook
from suite.programs import run_to_end


@pytest.fixture
def node(tmp_path: Path) -> NodeFolders:
    (tmp_path / "runs").mkdir()
    node = NodeFolders(str(tmp_path), "0123")
    leave(node, "agent-0123.lock")
    return node


def keep_house(node: NodeFolders, *, after: float = KEEP_LEFTOVER_SECONDS + 1) -> None:
    """Look what there is, and once more so many seconds of the machine's life later."""
    for now in (1000.0, 1000.0 + after):
        remove_leftovers(node, lambda now=now: now)


def leave(node: NodeFolders, name: str) -> Path:
    path = Path(node.node_dir, name)
    if name.startswith("hook-"):
        (path / "distconsole_training").mkdir(parents=True)
        (path / "sitecustomize.py").touch()
    else:
        path.touch()
    os.utime(path, (0, 0))
    return path


def names(node: NodeFolders) -> set[str]:
    return {each.name for each in Path(node.node_dir).iterdir()} - {
        *("runs", "agent-0123.lock", "leftovers_since.json")
    }


@pytest.mark.parametrize(
    ("left", "after", "stays"),
    [
        ("agent-abc.lock agent-abc.log agent-abc.sock hook-abc hook-abc.4711", 1, False),
        ("agent-abc.lock agent-abc.log hook-abc", -1, True),
        ("agent-0123.log agent-0123.sock mine agent-abc.txt agent-abc", 1, True),
    ],
    ids=["of other versions", "used lately", "not ours"],
)
def test_only_old_foreign_files_go(node: NodeFolders, left: str, after: int, stays: bool) -> None:
    for name in left.split():
        leave(node, name)
    before = names(node)
    keep_house(node, after=KEEP_LEFTOVER_SECONDS + after)
    assert Path(node.lock).stat().st_mtime != 0, "who keeps house has used its lock"
    assert names(node) == (before if stays else set())


def test_the_log_of_an_agent_that_lives_or_lived_lately_stays(node: NodeFolders) -> None:
    lock, log = leave(node, "agent-abc.lock"), leave(node, "agent-abc.log")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        keep_house(node)
        assert names(node) == {lock.name, log.name}
    os.utime(lock, (1, 1))  # an agent of that version kept house
    keep_house(node, after=KEEP_LEFTOVER_SECONDS - 1)
    os.utime(lock, (2, 2))
    remove_leftovers(node, lambda: 1002.0 + KEEP_LEFTOVER_SECONDS)
    assert names(node) == {lock.name, log.name}
    keep_house(node)
    assert names(node) == set()


@pytest.mark.parametrize("over", [False, True])
def test_the_hook_of_a_run_stays_as_long_as_the_run(node: NodeFolders, over: bool) -> None:
    hook = leave(node, "hook-abc")
    folder = Path(node.run("a-run"))
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps({"hook": str(hook)}))
    if over:
        (folder / "ended.json").touch()
    keep_house(node)
    assert hook.exists() is not over


def test_a_link_is_removed_and_not_followed(node: NodeFolders, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    link = tmp_path / "hook-abc"
    link.symlink_to(kept)
    keep_house(node)
    assert names(node) == {"kept"}
    assert (kept / "file").exists()


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 100 * 86400.0])
def test_a_clock_that_is_set_removes_nothing_and_keeps_nothing(
    node: NodeFolders, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    hook = leave(node, "hook-abc")
    remove_leftovers(node, lambda: 1000.0)
    shown = time.time() + step
    monkeypatch.setattr(time, "time", lambda: shown)
    remove_leftovers(node, lambda: 1000.0 + KEEP_LEFTOVER_SECONDS - 1)
    assert hook.exists()
    remove_leftovers(node, lambda: 1000.0 + KEEP_LEFTOVER_SECONDS + 1)
    assert not hook.exists()


@pytest.mark.parametrize("packed", [False, True])
def test_a_hook_that_was_cut_is_rewritten(packed: bool, node: NodeFolders, tmp_path: Path) -> None:
    program, package = this_program(), Path(distconsole_training.__file__).parent
    if packed:
        archive = tmp_path / "agent.pyz"
        with zipfile.ZipFile(archive, "w") as made:
            for file in package.rglob("*.py"):
                made.write(file, Path(package.name, file.relative_to(package)))
        program = program._replace(archive=str(archive))
    path = Path(unpack_hook(node, program))
    whole = {each: each.read_bytes() for each in path.rglob("*.*") if each.is_file()}
    assert whole[path / "sitecustomize.py"]
    inode = (path / "sitecustomize.py").stat().st_ino
    assert unpack_hook(node, program) == str(path)
    assert (path / "sitecustomize.py").stat().st_ino == inode, "it is unpacked once"
    (path / "sitecustomize.py").unlink()
    (path / package.name / "records.py").write_bytes(b"")
    shutil.rmtree(path / package.name / "torch_hook")
    kept = (path / package.name / "loss.py").stat()
    assert unpack_hook(node, program) == str(path)
    assert {each: each.read_bytes() for each in path.rglob("*.*") if each.is_file()} == whole
    assert (path / package.name / "loss.py").stat().st_ino == kept.st_ino


def test_a_whole_hook_in_a_read_only_folder_is_used(node: NodeFolders) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a folder read-only in a namespace of its own")
    path = unpack_hook(node, this_program())
    asks = (
        "import sys; from distconsole_agent.node_folder.folders import NodeFolders, this_program\n"
        "from distconsole_agent.node_folder.hook_files import unpack_hook\n"
        "print(unpack_hook(NodeFolders(sys.argv[1], '0123'), this_program()))"
    )
    mounted = f'mount --bind -o ro {path} {path} && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mounted, "sh"]
    done = run_to_end([*words, sys.executable, "-c", asks, node.node_dir])
    assert (done.stdout.strip(), done.stderr) == (path, "")


def test_runs_that_begin_at_once_write_the_hook_together(tmp_path: Path) -> None:
    program = this_program()
    for each in range(20):
        folder = tmp_path / str(each)
        (folder / "runs").mkdir(parents=True)
        node = NodeFolders(str(folder), "0123")
        with ThreadPoolExecutor(8) as pool:
            hooks = set(pool.map(lambda _, at=node: unpack_hook(at, program), range(8)))
        (hook,) = map(Path, hooks)
        assert (hook / "sitecustomize.py").is_file()
        written = {each.name for each in (hook / "distconsole_training").iterdir()}
        assert {name for name in written if name.startswith(".") or ".py." in name} == set()
