"""Runs on one node: prepared, started, followed, stopped and forgotten, with the real shim."""

import json
import os
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from distconsole_agent.contract import protocol
from distconsole_agent.node_folder.proofs import boottime
from distconsole_agent.system.kernel_files import boot_id
from fakes.agents import AgentNode, Bridge, launch, spec_of
from fakes.ring_writer import RingWriter
from fakes.shims import gone, wait_until

SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def states(entries: list[dict[str, Any]], rank: int = 0) -> list[str]:
    return [e["state"] for e in entries if e["kind"] == "state" and e["rank"] == rank]


def text(entries: list[dict[str, Any]], rank: int | None = 0, stream: str = "out") -> str:
    slices = [
        e for e in entries if e["kind"] == "log" and (e["rank"], e["stream"]) == (rank, stream)
    ]
    assert [e["offset"] for e in slices[1:]] == [
        e["offset"] + len(e["text"].encode()) for e in slices[:-1]
    ]
    return "".join(e["text"] for e in slices)


def test_a_run_is_followed_to_its_end_and_then_from_any_cursor(bridge: Bridge) -> None:
    launch(
        bridge, spec_of("good-run", ["print('hello')", "import sys; print('é', file=sys.stderr)"])
    )
    entries = bridge.entries("good-run")
    assert [e["seq"] for e in entries] == list(range(1, len(entries) + 1))
    assert text(entries) == "hello\n"
    assert text(entries, 1, "err") == "é\n"
    assert states(entries)[0] == "starting"
    assert states(entries)[-1] == "exited"
    assert (entries[-1]["kind"], entries[-1]["state"], entries[-1]["exit_code"]) == ("end", "succeeded", 0)  # fmt: skip
    assert bridge.entries("good-run", after=2) == entries[2:]
    assert bridge.entries("good-run", after=len(entries)) == []
    assert bridge.refused("follow", run="good-run", after=len(entries) + 1) == "bad_request"


def test_the_first_failure_is_told(bridge: Bridge) -> None:
    launch(bridge, spec_of("bad-run", ["raise ValueError('broken')", SLEEP]))
    entries = bridge.entries("bad-run")
    failure = next(e for e in entries if e["kind"] == "failure")
    assert (failure["rank"], failure["exit_code"]) == (0, 1)
    assert "ValueError: broken" in failure["error"]
    assert "Traceback" in failure["traceback"]
    verdict = next(e for e in entries if e["kind"] == "verdict")
    assert verdict["first_failure"]["rank"] == 0
    assert states(entries, 0)[-1] == "failed"
    assert states(entries, 1)[-1] == "killed"
    assert entries[-1]["state"] == "failed"


def test_a_run_is_listed_through_its_life(node: AgentNode, bridge: Bridge) -> None:
    def listed() -> dict[str, Any]:
        (run,) = bridge.done("runs")["runs"]
        assert set(run) == set(protocol.RUN_FIELDS)
        return dict(run)

    spec = spec_of("one-run", [SLEEP])
    bridge.done("prepare", run="one-run", spec=spec)
    assert listed()["state"] == "prepared"
    assert bridge.refused("prepare", run="one-run", spec=spec) == "run_exists"
    bridge.done("start", run="one-run", coordinator=None, coordinator_secret="", master_port=None)
    wait_until("running", lambda: listed()["state"] == "running")
    assert bridge.done("forget", run="one-run") == {"forgotten": False}
    assert bridge.done("stop", run="one-run", grace=5, reason="user") == {"stopping": True}
    end = bridge.entries("one-run")[-1]
    assert (end["state"], end["exit_code"]) == ("stopped", 143)
    assert listed()["state"] == "stopped"
    assert listed()["last_seq"] == end["seq"]
    assert bridge.done("stop", run="one-run", reason="user") == {"stopping": False}
    assert bridge.done("kill", run="one-run") == {"killing": False}
    assert bridge.done("forget", run="one-run") == {"forgotten": True}
    assert bridge.done("runs") == {"runs": []}
    assert not (node.node_dir / "runs" / "one-run").exists()


def test_a_shim_that_cannot_start_leaves_nothing(node: AgentNode, bridge: Bridge) -> None:
    spec = spec_of("no-address", [SLEEP])
    spec["nodes"] = [
        {"host": "here", "address": "203.0.113.7", "ranks": [0]},
        {"host": "there", "address": "203.0.113.8", "ranks": [1]},
    ]
    assert bridge.refused("prepare", run="no-address", spec=spec) == "start_failed"
    assert not (node.node_dir / "runs" / "no-address").exists()


def test_several_followers_see_the_same(node: AgentNode, bridge: Bridge) -> None:
    launch(bridge, spec_of("seen-by-many", ["for n in range(20000): print(n)"]))
    wait_until("two entries", lambda: bridge.done("runs")["runs"][0]["last_seq"] >= 2)
    seen: list[list[int]] = []

    def follow(after: int) -> None:
        with node.bridge() as other:
            seen.append([after, *(e["seq"] for e in other.follow("seen-by-many", after))])

    threads = [threading.Thread(target=follow, args=(after,)) for after in (0, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    last = bridge.done("runs")["runs"][0]["last_seq"]
    assert sorted(seen) == [list(range(after, last + 1)) for after in (0, 1, 2)]


def test_samples_go_into_the_journal_and_a_cancelled_follow_ends(bridge: Bridge) -> None:
    launch(bridge, spec_of("followed", [SLEEP]))
    number = bridge.send("follow", run="followed", after=0)
    messages = bridge.messages(number)
    entries = (entry for message in messages for entry in message["item"]["entries"])
    sample = next(entry for entry in entries if entry["kind"] == "sample")
    assert set(sample["node"]) == set(protocol.NODE_FIELDS)
    assert isinstance(sample["gpus"], list)
    bridge.send("cancel", target=number)
    assert list(messages)[-1]["result"] == {"cancelled": True}


def test_recorded_steps_become_windows(node: AgentNode, bridge: Bridge) -> None:
    launch(bridge, spec_of("recorded", [SLEEP]))
    rings, pid = placed(node, "recorded")
    ring = RingWriter(rings, 0, pid=pid)
    ring.phase("interpreter")
    for step in range(100):
        ring.step(step, 1.0, samples=8)
    entries: list[dict[str, Any]] = []
    for entry in bridge.follow("recorded"):
        entries.append(entry)
        if entry["kind"] == "window":
            bridge.send("kill", run="recorded")
    ring.close()
    assert sum(e["steps"] for e in entries if e["kind"] == "window") == 100
    assert [e["phase"] for e in entries if e["kind"] == "phase"] == ["interpreter"]
    assert states(entries) == ["starting", "running", "killed"]
    wait_until("the rings are given back", lambda: not rings.exists())


def test_a_flood_costs_no_memory(node: AgentNode, bridge: Bridge) -> None:
    """A million lines, a follower that reads and one that does not."""
    flood = "import sys; [sys.stdout.write('line %d of a flood of lines\\n' % n) for n in range(1_000_000)]"  # fmt: skip
    lazy = node.bridge()
    launch(bridge, spec_of("flood", [flood]))
    lazy.send("follow", run="flood", after=0)
    agent = node.agent()
    read, most = 0, 0
    last: dict[str, Any] = {}
    for entry in bridge.follow("flood"):
        last = entry
        if entry["kind"] == "log":
            read += len(entry["text"])
            most = max(most, agent.memory_info().rss)
    assert last["kind"] == "end"
    assert read == sum(len(f"line {n} of a flood of lines\n") for n in range(1_000_000))
    assert most < 80 * 2**20


def test_a_dead_shim_leaves_nothing_running(node: AgentNode, bridge: Bridge) -> None:
    spawner = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); " + SLEEP  # fmt: skip
    launch(bridge, spec_of("orphaned", [spawner]))
    follow = bridge.follow("orphaned")
    entries = []
    for entry in follow:
        entries.append(entry)
        if entry["kind"] == "log":
            break
    rank = psutil.Process(next(e["pid"] for e in entries if e["kind"] == "state"))
    children = rank.children()
    assert children
    shim = int((node.node_dir / "runs" / "orphaned" / "shim.pid").read_text().split()[0])
    os.kill(shim, 9)
    entries += follow
    *_, verdict, end = entries
    assert (end["kind"], end["state"], end["exit_code"]) == ("end", "failed", 1)
    assert (verdict["kind"], verdict["state"], verdict["exit_code"]) == ("verdict", "failed", 1)
    first = verdict["first_failure"]
    assert first["rank"] == 0
    assert first["error"] == f"node {first['host']} lost: its shim is gone"
    assert [e["check"] for e in entries if e["kind"] == "note"] == ["run.supervisor_lost"]
    assert states(entries)[-1] == "killed"
    left = [each.pid for each in (rank, *children)]
    wait_until("nothing is left", lambda: all(map(gone, left)))
    assert bridge.done("runs")["runs"][0]["state"] == "failed"


def test_what_a_run_leaves_is_its_owners_alone(node: AgentNode, bridge: Bridge) -> None:
    launch(bridge, spec_of("private", ["raise ValueError('secret')"], watch=True))
    assert bridge.entries("private")[-1]["state"] == "failed"
    folder = node.node_dir / "runs" / "private"
    wait_until("its summary", (folder / "ended.json").exists)
    modes = {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir() if each.is_file()}
    assert {"spec.json", "shim.jsonl", "verdict.json", "ended.json"} <= set(modes)
    assert {name: mode for name, mode in modes.items() if mode != 0o600} == {}
    assert folder.stat().st_mode & 0o777 == 0o700
    (hook,) = node.node_dir.glob("hook-*")
    written = hook / "distconsole_training" / "_sitecustomize.py"
    assert (hook / "sitecustomize.py").read_bytes() == written.read_bytes()


def test_old_runs_are_removed_and_others_kept(node: AgentNode, bridge: Bridge) -> None:
    for run in ("old-run", "new-run"):
        launch(bridge, spec_of(run, [""]))
        bridge.entries(run)
    bridge.close()
    ended = node.node_dir / "runs" / "old-run" / "ended.json"
    wait_until("the summary", ended.exists)
    node.kill_agent()
    long_ago = boottime() - 15 * 86400
    noted = {"boot": boot_id(), "boottime": long_ago, "time": 0.0, "since": {"old-run": 0.0}}
    (node.node_dir / "ended_since.json").write_text(json.dumps(noted))
    with node.bridge() as other:
        wait_until("the old run is gone", lambda: not ended.parent.exists())
        assert [run["run"] for run in other.done("runs")["runs"]] == ["new-run"]


def placed(node: AgentNode, run: str) -> tuple[Path, int]:
    """Wait until a run's first rank was started; return the folder for its rings, and its pid."""

    folder = node.node_dir / "runs" / run
    shim = folder / "shim.jsonl"
    wait_until("a rank", lambda: shim.exists() and "started" in shim.read_text())
    spec = json.loads((folder / "spec.json").read_text())
    lines = map(json.loads, shim.read_text().splitlines())
    started = next(islice((line for line in lines if line["event"] == "started"), 1))
    return Path(spec["rings"]), int(started["pid"])
