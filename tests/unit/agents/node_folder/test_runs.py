"""The runs of a node: nothing goes without proof from the disk that it is over."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.contract.limits import KEEP_RUN_SECONDS
from distconsole_agent.contract.protocol import RUN_FIELDS
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.node_folder import folders
from distconsole_agent.node_folder.folders import (
    NodeFolders,
    Program,
    open_node_dir,
    ring_folder,
    this_program,
)
from distconsole_agent.node_folder.runs import STILL_PREPARING_SECONDS, NodeRuns
from distconsole_agent.server.shim_calls import shim_words
from distconsole_agent.supervisor.runlog import claim, keep_endpoint
from fakes.agents import spec_of

END = {"seq": 9, "t": 1.0, "kind": "end", "state": "succeeded", "exit_code": 0, "seconds": 1.0}


class Node:
    """A node folder, with agents of any version that share it, and a clock."""

    def __init__(self, path: Path) -> None:
        self.path = open_node_dir(str(path))
        self.opened: list[NodeRuns] = []
        self.now = 1000.0
        self.claims: list[int] = []

    def runs(self, tag: str = "dev") -> NodeRuns:
        self.opened.append(
            NodeRuns(NodeFolders(self.path, tag), this_program(), boottime=lambda: self.now)
        )
        return self.opened[-1]

    def seen_for_long(self) -> NodeRuns:
        """Return an agent that has seen the folders for longer than a run is prepared."""
        agent = self.runs()
        agent.describe_all()
        self.now += STILL_PREPARING_SECONDS + 1
        return agent

    def after(self, seconds: float = 0.0, tag: str = "dev") -> None:
        """Have an agent keep house, so much later."""
        self.now += seconds
        self.runs(tag).housekeep()

    def ended(self, run: str) -> Path:
        folder = self.folder(run, json.dumps(spec_of(run, [""])))
        (folder / "ended.json").write_text(json.dumps(END))
        return folder

    def folder(self, run: str, spec: str | None = None) -> Path:
        """Make what ``prepare`` makes, with a file of the user's in it."""
        folder = Path(self.path, "runs", run)
        for name in ("logs", "errors", "journal"):
            (folder / name).mkdir(mode=0o700, parents=True)
        if spec is not None:
            (folder / "spec.json").write_text(spec)
        return folder

    def prepared(self, run: str) -> Path:
        rings = ring_folder(run, self.path)
        assert rings is not None
        return self.folder(run, json.dumps(spec_of(run, [""], rings=rings)))

    def live(self, run: str) -> Path:
        """Make a run whose shim (this process) lives."""
        folder = self.prepared(run)
        self.claims.append(claim(str(folder)))
        return folder

    def close(self) -> None:
        for each in self.opened:
            each.leave()
        while self.claims:
            os.close(self.claims.pop())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(folders, "SHARED_MEMORY", str(tmp_path / "shm"))
    node = Node(tmp_path / "node")
    yield node
    node.close()


@pytest.mark.parametrize("spec", ["", "{", "[" * 60_000, "[]", "{}", '{"run": "a-run"'])
def test_a_run_whose_spec_cannot_be_read_stays_and_is_told(
    node: Node, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node.folder("a-run", spec)
    (folder / "logs" / "rank-0.out").write_text("epoch 1\n")
    (folder / "code").mkdir()
    (folder / "code" / "model.pt").write_text("weights")
    tomorrow = time.time() + 86400.0
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    agent = node.seen_for_long()
    listed = agent.describe_all()
    assert (folder / "code" / "model.pt").exists()
    (told,) = listed
    assert set(told) == set(RUN_FIELDS)
    assert (told["run"], told["state"]) == ("a-run", "unreadable")
    assert f"{folder}/spec.json: " in told["trouble"]


@pytest.mark.parametrize(
    "what", ["shim.pid", "logs/rank-0.out", "journal/000001.jsonl", "code/train.py", "mine"]
)
def test_a_run_without_a_spec_stays_while_anything_is_in_it(node: Node, what: str) -> None:
    folder = node.folder("a-run")
    (folder / what).parent.mkdir(exist_ok=True)
    (folder / what).write_text("1 1\n")
    agent = node.seen_for_long()
    (told,) = agent.describe_all()
    assert (folder / what).exists()
    assert told["state"] == "unreadable"


def test_what_was_never_prepared_goes_once_it_was_seen_for_long(node: Node) -> None:
    folder = node.folder("a-run")
    (folder / "spec.json.new").write_text("{")
    agent = node.runs()
    assert agent.describe_all() == []
    node.now += STILL_PREPARING_SECONDS - 1
    agent.describe_all()
    assert folder.exists()
    node.now += 2
    agent.describe_all()
    assert not folder.exists()


def test_a_run_in_an_unlistable_folder_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = node.folder("a-run")
    agent = node.seen_for_long()
    listdir = os.listdir

    def fails(path: str) -> list[str]:
        if path.startswith(f"{folder}/"):
            raise OSError(5, "Input/output error", path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", fails)
    agent.describe_all()
    assert (folder / "journal").is_dir()


def test_a_run_that_cannot_be_read_is_not_followed_for_ever(node: Node) -> None:
    node.folder("a-run", "")
    with pytest.raises(Refusal, match=r"spec\.json") as caught:
        node.runs().journal("a-run")
    assert caught.value.code == "storage"


def test_no_end_is_made_up_without_an_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = node.live("a-run")
    (folder / "journal" / "000001.jsonl").write_text("")

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    agent = node.runs()
    (told,) = agent.describe_all()
    assert told["state"] == "unreadable"
    assert not (folder / "ended.json").exists()


@pytest.mark.parametrize("end", ["", "{", "[" * 60_000, json.dumps({**END, "kind": "log"})])
def test_a_torn_summary_is_no_proof_that_a_run_is_over(node: Node, end: str) -> None:
    folder = node.live("a-run")
    (folder / "ended.json").write_text(end)
    agent = node.runs()
    assert agent.forget("a-run") is False
    agent.pick_up()
    assert [each.run for each in agent.active] == ["a-run"]
    assert agent.forget("a-run") is False
    agent.housekeep()
    node.now += 1000 * 86400.0
    agent.housekeep()
    assert folder.exists()


def test_the_rings_of_a_run_stay_until_the_disk_says_that_it_is_over(node: Node) -> None:
    """Whichever agent started it: one of before an upgrade keeps house beside the newer one."""
    folder = node.live("a-run")
    rings = Path(json.loads((folder / "spec.json").read_text())["rings"])
    stray = Path(str(ring_folder("forgotten", node.path)))
    before = node.runs("before")
    before.housekeep()
    assert rings.is_dir()
    assert not stray.exists()
    (folder / "ended.json").write_text(json.dumps(END))
    before.housekeep()
    assert not rings.exists()


def test_an_unreadable_run_is_forgotten_once_nothing_of_it_lives(node: Node) -> None:
    folder = node.folder("a-run", "")
    held = claim(str(folder))
    agent = node.runs()
    assert agent.forget("a-run") is False
    os.close(held)
    (folder / "shim.pid").unlink()
    rank = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, "DISTCONSOLE_RUN_DIR": str(folder)},
    )
    assert agent.forget("a-run") is False
    rank.communicate(b"\n")
    assert agent.forget("a-run") is True
    assert not folder.exists()


def test_a_run_goes_so_long_after_its_end_by_a_clock_that_nobody_sets(node: Node) -> None:
    folder = node.ended("a-run")
    os.utime(folder / "ended.json", (0, 0))
    node.after()
    node.after(KEEP_RUN_SECONDS - 1, "other")
    assert folder.exists()
    node.after(2)
    assert not folder.exists()


def test_a_boot_in_between_keeps_a_run_longer(node: Node) -> None:
    folder = node.ended("a-run")
    node.after()
    ledger = Path(node.path, "ended_since.json")
    another = json.dumps({**json.loads(ledger.read_text()), "boot": "another"})
    for damaged in (another, "", "[]", '{"time": "x", "since": 3}'):
        ledger.write_text(damaged)
        node.after(1000 * 86400.0 if damaged == another else 0.0)
        assert folder.exists()


def test_a_summary_is_synced_then_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    rename, fsync = os.rename, os.fsync

    def note_rename(old: str, new: str) -> None:
        done.append("rename")
        rename(old, new)

    def note_fsync(fd: int) -> None:
        done.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(os, "fsync", note_fsync)
    folders.write_private(str(tmp_path / "ended.json"), {})
    assert done == ["ended.json.new", "rename", tmp_path.name]


def test_a_run_whose_record_the_disk_does_not_keep_is_not_said_to_be_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node.live("a-run")
    lines = ({"event": "stopping", "reason": "user"}, {"event": "ended"})
    told = "".join(json.dumps({"t_ns": 10**9, **each}) + "\n" for each in lines)
    (folder / "shim.jsonl").write_text(told)
    fsync = os.fsync

    def refuse(fd: int) -> None:
        if f"{folder}/journal" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    def listed(agent: NodeRuns) -> str:
        agent.pick_up()
        for active in agent.active:
            active._thread.join(30)
        return str(agent.describe_all()[0]["state"])

    agent = node.runs()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        assert listed(agent) == "stopped"
    assert listed(agent) == "stopped"
    assert not (folder / "ended.json").exists()
    agent.leave()
    assert listed(node.runs("another")) == "stopped"
    assert (folder / "ended.json").exists()


def test_a_shim_waits_for_no_sync_of_its_spec(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, bool] = {}
    started = Path(node.path, "runs", "a-run", "shim.log")

    def note_fsync(fd: int) -> None:
        synced[Path(f"/proc/self/fd/{fd}").readlink().name] = started.exists()

    monkeypatch.setattr(os, "fsync", note_fsync)
    ends_at_once = Program(("/bin/false",), "dev", None)
    agent = NodeRuns(NodeFolders(node.path, "dev"), ends_at_once)
    with pytest.raises(Refusal):
        agent.prepare("a-run", spec_of("a-run", [""], watch=False))
    assert synced == {"spec.json": True, "a-run": True}


def test_ranks_wait_for_no_disk_that_keeps_where_the_coordinator_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    keep_endpoint(str(tmp_path), ("10.0.0.1", 1))
    assert json.loads((tmp_path / "coordinator.json").read_text()) == ["10.0.0.1", 1]
    assert synced == []


def test_a_shim_starts_without_what_is_installed_beside_its_python() -> None:
    archive = "/home/me/.cache/distconsole/agent-1.pyz"
    program = Program(("python3", "-I", archive), "1", archive)
    assert shim_words(program, "/run") == ["python3", "-S", "-I", archive, "shim", "--run", "/run"]


def test_a_run_whose_supervisor_was_never_started_is_forgotten_at_once(node: Node) -> None:
    """As where srun was refused: nothing says of it that it is over."""
    folder = node.prepared("a-run")
    rings = Path(json.loads((folder / "spec.json").read_text())["rings"])
    agent = node.runs()
    agent.pick_up()
    assert agent.forget("a-run") is True
    assert (agent.active, folder.exists(), rings.exists()) == ([], False, False)
