"""The thread that attends a run: who follows it hears why nothing can be written for now."""

import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.journal import active
from distconsole_agent.journal.active import ActiveRun
from distconsole_agent.journal.journal import Journal
from distconsole_agent.server.answers import follow
from distconsole_agent.system.procfs import read_process
from fakes.askers import Asker
from fakes.specs import run_spec

WAIT_SECONDS = 20.0


def make_run(folder: Path) -> RunSpec:
    """Make the folder of a run whose shim is this process, and return its specification."""
    for name in ("logs", "errors", "journal", "rings"):
        (folder / name).mkdir()
    stat = read_process(os.getpid())
    (folder / "shim.pid").write_text(f"{os.getpid()} {stat.starttime}\n")
    return run_spec(rings=str(folder / "rings"))


@pytest.mark.parametrize(
    "refusal", [OSError(30, "Read-only file system"), MemoryError()], ids=["disk", "memory"]
)
def test_an_end_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    spec = make_run(tmp_path)
    refused, over = threading.Event(), threading.Event()
    write = active.write_summary

    def write_the_second_time(folder: str, journal: Journal) -> None:
        if not refused.is_set():
            refused.set()
            raise refusal
        write(folder, journal)

    monkeypatch.setattr(active, "write_summary", write_the_second_time)
    verdict = {"state": "stopped", "exit_code": 130, "first_failure": None}
    events = [{"t_ns": 1, "event": "verdict", **verdict}, {"t_ns": 2, "event": "ended"}]
    (tmp_path / "shim.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    run = ActiveRun(str(tmp_path), spec, lambda _: over.set())
    run.begin()
    assert over.wait(WAIT_SECONDS)
    assert refused.is_set()
    assert json.loads((tmp_path / "ended.json").read_text())["exit_code"] == 130
    assert not (tmp_path / "rings").exists()


def test_a_full_disk_is_noted_until_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_run(tmp_path)
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    has_room = threading.Event()
    append = Journal.append

    def append_if_room(journal: Journal, *batch: Any) -> None:
        if not has_room.is_set():
            raise OSError(28, "No space left on device")
        append(journal, *batch)

    monkeypatch.setattr(Journal, "append", append_if_room)
    run = ActiveRun(str(tmp_path), spec, lambda _: None)
    asker = Asker(send_item=told.put)
    follower = threading.Thread(target=follow, args=(run.journal, str(tmp_path), 0, asker))
    run.begin()
    follower.start()
    try:
        # Of now: the ranks of a start that takes long are called.
        started = {"t_ns": time.time_ns(), "event": "started", "rank": 0, "pid": os.getpid()}
        (tmp_path / "shim.jsonl").write_text(json.dumps(started) + "\n")
        assert told.get(timeout=WAIT_SECONDS)["trouble"] == f"No space left on device: {tmp_path}"
        has_room.set()
        assert told.get(timeout=WAIT_SECONDS)["trouble"] == ""
    finally:
        asker.cancelled.set()
        run.journal.wake()
        follower.join()
        run.leave()
        run.journal.close()
