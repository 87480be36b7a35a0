"""Today's console with nodes on which an agent and a shim of the first version attend to a run."""

import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.model import requests as ask
from distconsole.model.events import Narration, RunListed, RunShown
from distconsole.model.run_events import LogLine, Metric, RunEnded
from distconsole.operations import SessionSource
from distconsole.ssh.embedded import EmbeddedCluster
from fakes.agents import AgentNode, Bridge, launch, spec_of
from fakes.shims import wait_until
from suite.driving import Operator, answered

AGENT = Path(__file__).parents[1] / "cases" / "first_version_agent.pyz.xz"
"""What commit b6ac660 brought to a node, without pynvml."""

RUN = "old-1"
ON = ask.Where(hosts="node1")
PRINTS = """
import os, time
from distconsole_training import report
print("first", flush=True)
report(loss=0.5, step=0)
while not os.path.exists({go!r}):
    time.sleep(0.01)
report(loss=0.25, step=1)
print("last", flush=True)
"""

pytestmark = pytest.mark.timeout(170)


class OldRun:
    """A run that a first version's agent has started on the first node, and goes on."""

    def __init__(self, node: AgentNode, folder: Path) -> None:
        self.node = node
        self._go = folder / "go"
        self.bridge: Bridge = node.bridge()
        launch(self.bridge, spec_of(RUN, [PRINTS.format(go=str(self._go))], watch=True))
        awaited = {"log", "window"}
        for entry in self.bridge.follow(RUN):
            awaited -= {entry["kind"]}
            if not awaited:
                break
        self.folder = node.node_dir / "runs" / RUN
        self.journal = self.folder / "journal" / "000001.jsonl"

    def go(self) -> None:
        self._go.touch()


@pytest.fixture
def old(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[OldRun]:
    program = tmp_path / "agent-0123456789abcdef.pyz"
    program.write_bytes(lzma.decompress(AGENT.read_bytes()))
    node = AgentNode(cluster.folder / "node1" / "node", [sys.executable, "-E", str(program)])
    try:
        yield OldRun(node, tmp_path)
    finally:
        node.close()


def test_a_run_that_goes_on_there_is_known_followed_to_its_end_and_then_forgotten(
    old: OldRun, sessions: SessionSource
) -> None:
    today = AgentNode(old.node.node_dir)
    bridge = today.bridge()
    with Operator(ask.Attach(RUN, where=ON), sessions) as attached:
        attached.see(LogLine, lambda line: line.line == "first")
        assert answered(ask.Logs(RUN, where=ON), sessions).lines() == ["first"]
        assert answered(ask.Logs(RUN, where=ON), sessions).lines() == ["first"]
        (shown,) = answered(ask.Show(RUN, where=ON), sessions).of(RunShown)
        assert (shown.summary.state, shown.summary.metrics) == ("running", {"loss": 0.5})
        (listed,) = answered(ask.Runs(where=ON), sessions).of(RunListed)
        assert (listed.summary.run, listed.summary.state) == (RUN, "running")
        assert bridge.done("forget", run=RUN) == {"forgotten": False}
        old.go()
        end = attached.end(60)
        attached.finish()
    assert (attached.lines(), end.state, end.exit_code) == (["first", "last"], "succeeded", 0)
    assert answered(ask.Logs(RUN, where=ON), sessions).lines() == ["first", "last"]
    assert bridge.done("forget", run=RUN) == {"forgotten": True}
    assert not old.folder.exists()
    today.close()


def test_a_stop_reaches_a_first_versions_shim(old: OldRun, sessions: SessionSource) -> None:
    told = [e.text for e in answered(ask.Stop(RUN, where=ON, yes=True), sessions).of(Narration)]
    assert told[-1] == f"{RUN} is over: stopped, exit code 143"
    events = answered(ask.Attach(RUN, where=ON), sessions).events
    assert isinstance(events[-1], RunEnded)
    assert events[-1].state == "stopped"


def test_a_run_whose_first_version_agent_is_gone_is_gone_on_with(
    old: OldRun, sessions: SessionSource
) -> None:
    with Operator(ask.Attach(RUN, where=ON), sessions) as attached:
        attached.see(LogLine, lambda line: line.line == "first")
        program = old.node.program[-1]
        Path(program).unlink()  # its shim would start another
        for agent in old.node.agents():
            if program in agent.cmdline():
                agent.kill()
        wait_until("another writer", lambda: b'"journal":' in old.journal.read_bytes())
        old.go()
        end = attached.end(60)
        attached.finish()
    assert (attached.lines(), end.state, end.exit_code) == (["first", "last"], "succeeded", 0)
    assert [metric.value for metric in attached.of(Metric)] == [0.5, 0.25]
