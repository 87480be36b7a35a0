"""Journals after a power cut, and those that the first version wrote, as a real agent reads them."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.supervisor import proctree
from fakes.agents import AgentNode, Bridge, launch, spec_of
from fakes.shims import wait_until
from suite.first_version import ENTRIES, RUN, unpack_first_version

PRINTING = "import time; print('first', flush=True); time.sleep(600)"


def items(bridge: Bridge, run: str, **arguments: Any) -> list[dict[str, Any]]:
    """Return the items of a journal that is followed to its end."""
    number = bridge.send("follow", run=run, **arguments)
    return [message["item"] for message in bridge.messages(number) if "item" in message]


def test_a_first_versions_journal_is_read_from_any_entry(node: AgentNode, tmp_path: Path) -> None:
    runs = node.node_dir / "runs"
    runs.mkdir(mode=0o700, parents=True)
    node.node_dir.chmod(0o700)
    (unpack_first_version(tmp_path / "old") / "node1").rename(runs / RUN)
    bridge = node.bridge()
    told = items(bridge, RUN, after=0, journal="")
    entries = [entry for item in told for entry in item["entries"]]
    assert [entry["seq"] for entry in entries] == list(range(1, ENTRIES["node1"] + 1))
    assert entries[-1]["kind"] == "end"
    assert any("accuracy" in entry.get("text", "") for entry in entries)
    later = [item["entries"] for item in items(bridge, RUN, after=40, journal="")]
    assert [entry["seq"] for item in later for entry in item] == [41, 42, 43, 44, 45]


def cut_power(node: AgentNode, run: Path) -> None:
    """Kill the agent, the shim and the ranks; the folders stay as they are."""
    node.kill_agent()
    pid = int((run / "shim.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    proctree.kill_run(str(run))


@pytest.mark.parametrize("tail", ["cut off", "zeros"])
def test_a_run_whose_host_lost_power_and_entries_ends(node: AgentNode, tail: str) -> None:
    bridge = node.bridge()
    launch(bridge, spec_of("cut-1", [PRINTING]))
    known: list[dict[str, Any]] = []
    writer = ""
    for message in bridge.messages(bridge.send("follow", run="cut-1", after=0, journal="")):
        known += message["item"]["entries"]
        writer = message["item"].get("journal", writer)
        if any(entry["kind"] == "log" for entry in known):
            break
    assert writer
    run = node.node_dir / "runs" / "cut-1"
    cut_power(node, run)
    journal = run / "journal" / "000001.jsonl"
    whole = journal.read_bytes()
    size = whole.index(b"\n") + 1  # no batch is left
    journal.write_bytes(whole[:size] + (bytes(len(whole) - size) if tail == "zeros" else b""))
    back = node.bridge()
    told = items(back, "cut-1", after=known[-1]["seq"], journal=writer)
    assert told[0] == {"entries": [], "after": 0}
    entries = [entry for item in told for entry in item["entries"]]
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[-1]["kind"] == "end"
    (listed,) = back.ask("runs")["result"]["runs"]
    assert (listed["last_seq"], listed["journal"]) == (len(entries), told[-1]["journal"])
    assert listed["journal"] not in ("", writer)
    assert [entry["text"] for entry in entries if entry["kind"] == "log"] == ["first\n"]
    cut = [entry for entry in entries if entry.get("check") == "run.journal_cut"]
    assert len(cut) == (tail == "zeros")
    assert all(f"{len(whole) - size} bytes" in entry["summary"] for entry in cut)
    assert {item["journal"] for item in told[1:]} != {writer}


def test_a_console_that_names_no_writer_and_has_too_much_is_refused(node: AgentNode) -> None:
    bridge = node.bridge()
    launch(bridge, spec_of("ahead-1", [PRINTING]))
    answer = bridge.ask("follow", run="ahead-1", after=1000)
    assert answer["error"]["code"] == "bad_request"
    assert "none after 1000" in answer["error"]["message"]
    assert "follow from 0" in answer["error"]["hint"]
    bridge.done("kill", run="ahead-1")


def test_an_end_that_the_journal_has_lost_is_told_from_the_runs_summary(node: AgentNode) -> None:
    bridge = node.bridge()
    launch(bridge, spec_of("ended-1", ["print('done')"]))
    whole = [entry for item in items(bridge, "ended-1", after=0) for entry in item["entries"]]
    run = node.node_dir / "runs" / "ended-1"
    wait_until("the summary", (run / "ended.json").exists)
    wait_until("the end of the shim", lambda: not (run / "shim.sock").exists())
    journal = run / "journal" / "000001.jsonl"
    content = journal.read_bytes()
    size = content.index(b'{"seq":2')
    journal.write_bytes(content[:size] + bytes(len(content) - size))
    told = [
        entry
        for item in items(bridge, "ended-1", after=0, journal="")
        for entry in item["entries"]
    ]
    assert told[-1] == whole[-1]
    assert told[:-1] == whole[: len(told) - 1]
