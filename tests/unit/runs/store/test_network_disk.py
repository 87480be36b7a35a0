"""A store on a network disk: one console keeps a run, the others only show it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import RunEnded, RunFinding
from distconsole.runs.following.follow import follow
from distconsole.runs.store.network_disk import STALE_SECONDS, KeeperLock
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from fakes.streams import PlayedJournal


def journal() -> PlayedJournal:
    verdict = {"state": "succeeded", "exit_code": 0, "first_failure": None}
    end = {"state": "succeeded", "exit_code": 0, "seconds": 1.0}
    entries = [
        {"seq": 1, "t": 1.0, "kind": "verdict", **verdict},
        {"seq": 2, "t": 1.0, "kind": "end", **end},
    ]
    return PlayedJournal([{"entries": entries}])


def test_a_run_that_somebody_else_keeps_is_shown_and_not_kept_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distconsole.runs.store.network_disk.filesystem_type", lambda _path: 0x6969
    )
    store, record = RunStore(tmp_path), RunRecord(RunId("run-1"), hosts=("a",))
    other = KeeperLock(tmp_path / "run-1.db")
    assert not other.holder
    events = list(follow(store, record, lambda _host, _after, _journal: journal()))
    (finding,) = [event for event in events if isinstance(event, RunFinding)]
    assert f"{socket.gethostname()} (pid {os.getpid()}) keeps this run in" in finding.seen
    assert any(isinstance(event, RunEnded) for event in events)
    with store.open(RunId("run-1")) as run_file:
        assert (run_file.count(), run_file.record().end) == (0, b"")
    other.close()
    list(follow(store, record, lambda _host, _after, _journal: journal()))
    with store.open(RunId("run-1")) as run_file:
        assert run_file.count() == 2
        assert run_file.record().end
        assert run_file.last_seq(HostName("a")) == 2
    assert not list(tmp_path.glob("*-keeper"))


def test_a_keeper_that_is_gone_is_followed_by_the_next(tmp_path: Path) -> None:
    path, file = tmp_path / "run-1.db", tmp_path / "run-1.db-keeper"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    file.write_text(f"{socket.gethostname()} {dead.pid}")
    lock = KeeperLock(path)
    assert not lock.holder
    lock.close()
    file.write_text("login2 4711")
    assert KeeperLock(path).holder == "login2 (pid 4711)"
    before = file.stat().st_mtime - STALE_SECONDS - 1
    os.utime(file, (before, before))
    lock = KeeperLock(path)
    assert not lock.holder
    lock.close()
