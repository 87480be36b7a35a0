"""A killed agent costs nothing: what it journalled stays, what it had not read is read by the next."""

import json
import os
import random
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from distconsole.rpc.pack import agent_pack
from fakes.agents import AgentNode, launch, spec_of
from fakes.ring_writer import RingWriter
from fakes.shims import wait_until

KILLS = 8
PRINTING = """
import os, sys, time
n = 0
while not os.path.exists({stop!r}):
    sys.stdout.write("line %d of é\\n" % n if n % 7 else "part %d " % n)
    n += 1
    if n % 50 == 0:
        time.sleep(0.01)
print("printed", n)
"""


def pythons() -> list[Any]:
    """Return the interpreters here that a node might have; the oldest, ours and the newest are for each day."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = versions.glob("3.*/bin/python3")
    found = dict(sorted((int(path.parts[-3].split(".")[1]), str(path)) for path in paths))
    others = [path for minor, path in found.items() if minor >= 9 and minor != sys.version_info[1]]
    between = {path: [pytest.mark.campaign] for path in others[1:-1]}
    return [sys.executable, *(pytest.param(path, marks=between.get(path, [])) for path in others)]


class Recording(threading.Thread):
    """Records steps into a ring until told to stop; reports a metric with every tenth."""

    def __init__(self, folder: Path, rank: int, pid: int) -> None:
        super().__init__(name=f"recording {rank}")
        self.ring = RingWriter(folder, rank, pid=pid, capacity=16384)
        self.stop = threading.Event()
        self.steps = 0

    def run(self) -> None:
        while not self.stop.wait(0.01):
            for _ in range(3):
                self.ring.step(self.steps, 1.0 / (1 + self.steps), samples=4)
                if self.steps % 10 == 0:
                    self.ring.report("accuracy", self.steps, 0.5)
                self.steps += 1
        self.ring.close()


@pytest.mark.timeout(170)
def test_agents_killed_at_random_lose_and_double_nothing(node: AgentNode, tmp_path: Path) -> None:
    chance = random.Random(7)
    stop = tmp_path / "stop"
    bridge = node.bridge()
    launch(bridge, spec_of("survivor", [PRINTING.format(stop=str(stop))] * 2))
    folder = node.node_dir / "runs" / "survivor"
    started = wait_until("both ranks", lambda: ranks_of(folder))
    rings = Path(json.loads((folder / "spec.json").read_text())["rings"])
    recordings = [Recording(rings, rank, pid) for rank, pid in sorted(started.items())]
    for recording in recordings:
        recording.start()
    seen: list[dict[str, Any]] = []
    kills = 0
    while True:
        end = time.monotonic() + chance.uniform(0.0, 1.5)
        for entry in bridge.follow("survivor", after=len(seen)):
            seen.append(entry)
            if kills < KILLS and time.monotonic() > end:
                node.kill_agent()
                kills += 1
                end = float("inf")
                if kills == KILLS:
                    finish(recordings, stop)
        if seen and seen[-1]["kind"] == "end":
            break
        bridge.close()
        bridge = node.bridge()
    assert kills == KILLS
    assert [entry["seq"] for entry in seen] == list(range(1, len(seen) + 1))
    for rank, recording in enumerate(recordings):
        windows = [e for e in seen if e["kind"] == "window" and e["rank"] == rank]
        assert sum(w["steps"] for w in windows) == recording.steps
        assert sum(w["dropped"] for w in windows) == 0
        assert windows[-1]["step"] == recording.steps - 1
        slices = [e for e in seen if e["kind"] == "log" and e["rank"] == rank]
        printed = (folder / "logs" / f"rank-{rank}.out").read_text()
        assert "".join(s["text"] for s in slices) == printed
        assert "printed " in printed
        states = [e["state"] for e in seen if e["kind"] == "state" and e["rank"] == rank]
        assert states == ["starting", "running", "exited"]
    assert [e["state"] for e in seen if e["kind"] in ("verdict", "end")] == ["succeeded"] * 2


def test_a_run_goes_on_and_ends_while_no_agent_lives(node: AgentNode, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    bridge = node.bridge()
    launch(bridge, spec_of("unattended", [PRINTING.format(stop=str(stop))]))
    folder = node.node_dir / "runs" / "unattended"
    wait_until("the rank", lambda: ranks_of(folder))
    node.kill_agent()
    stop.touch()
    wait_until("the end", lambda: '"ended"' in (folder / "shim.jsonl").read_text())
    with node.bridge() as other:
        entries = other.entries("unattended")
        assert entries[-1]["state"] == "succeeded"
        text = "".join(e["text"] for e in entries if e["kind"] == "log")
        assert text == (folder / "logs" / "rank-0.out").read_text()
        assert other.done("runs")["runs"][0]["state"] == "succeeded"


def test_an_agent_of_another_version_takes_over(node: AgentNode, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    bridge = node.bridge()
    launch(bridge, spec_of("two-versions", [PRINTING.format(stop=str(stop))]))
    first = node.agent()
    newer = AgentNode(node.node_dir, packed(tmp_path))
    other = newer.bridge()
    assert other.done("hello", protocol=1)["agent_pid"] != first.pid
    follow = other.follow("two-versions")
    seen = [next(entry for entry in follow if entry["kind"] == "log")]
    (call,) = other.done("roll_call", run="two-versions", seconds=1.0)["ranks"]
    assert (call["rank"], call["alive"], call["stage"]) == (0, True, "starting")
    first.kill()
    last = max(entry["seq"] for entry in seen)
    seen += islice((entry for entry in follow if entry["kind"] == "log"), 30)
    stop.touch()
    seen += follow
    assert seen[-1]["state"] == "succeeded"
    log = (node.node_dir / "runs" / "two-versions" / "logs" / "rank-0.out").read_bytes()
    slices = [entry for entry in seen if entry["kind"] == "log"]
    assert last < slices[-1]["seq"]
    assert "".join(s["text"] for s in slices) == log.decode()
    other.close()
    bridge.close()


@pytest.mark.parametrize("python", pythons())
def test_the_packed_agent_serves_on_every_python(tmp_path: Path, python: str) -> None:
    node = AgentNode(tmp_path / "node", packed(tmp_path, python))
    with node.bridge() as bridge:
        assert bridge.done("hello", protocol=1)["python"] == python
        launch(bridge, spec_of("packed", ["print('hello')"], watch=True))
        entries = bridge.entries("packed")
        assert [e["text"] for e in entries if e["kind"] == "log"] == ["hello\n"]
        assert entries[-1]["state"] == "succeeded"
    node.close()


def packed(tmp_path: Path, python: str = sys.executable) -> list[str]:
    """Return the words that start the agent as it comes to a node."""
    pack = agent_pack()
    path = tmp_path / pack.name
    path.write_bytes(pack.content)
    return [python, "-E", str(path)]


def ranks_of(folder: Path) -> dict[int, int]:
    """Return rank -> pid once all ranks have started."""
    path = folder / "shim.jsonl"
    events = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    found = {e["rank"]: e["pid"] for e in events if e["event"] == "started"}
    return found if len(found) == len(json.loads((folder / "spec.json").read_text())["ranks"]) else {}  # fmt: skip


def finish(recordings: list[Recording], stop: Path) -> None:
    for recording in recordings:
        recording.stop.set()
        recording.join()
    stop.touch()
