"""A node that loses its power, and the end of its journal with it, while somebody looks on."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from distconsole.config.paths import runs_dir
from distconsole.model.requests import Attach, LauncherName, Run
from distconsole.model.run_events import LogLine, RunEnded, RunFinding
from distconsole.operations import SessionSource
from distconsole.runs.store.store import RunStore
from distconsole.ssh.embedded import EmbeddedCluster
from distconsole_agent.supervisor import proctree
from fakes.agents import AgentNode
from suite.driving import Operator

PRINTING = """\
import os, time

for number in range(600):
    print("rank", os.environ["RANK"], "line", number, flush=True)
    time.sleep(0.1)
"""


def cut_power(node: AgentNode, run: str, kept_bytes: int) -> int:
    """Kill all of a run on a node and its agent; of the journal zeros are left behind ``kept_bytes``."""
    folder = node.node_dir / "runs" / run
    agent = node.agent()
    agent.send_signal(signal.SIGSTOP)  # the console brings another as soon as it is gone
    os.kill(int((folder / "shim.pid").read_text().split()[0]), signal.SIGKILL)
    proctree.kill_run(str(folder))
    journal = folder / "journal" / "000001.jsonl"
    whole = journal.read_bytes()
    size = whole.index(b"\n", min(kept_bytes, len(whole) // 2)) + 20
    journal.write_bytes(whole[:size] + bytes(len(whole) - size))
    agent.kill()
    return len(whole) - size


@pytest.mark.timeout(170)
def test_a_node_that_lost_the_end_of_its_journal_is_noticed_and_no_line_is_lost_or_doubled(
    cluster: EmbeddedCluster, sessions: SessionSource, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(PRINTING)
    node = AgentNode(cluster.folder / "node2" / "node")
    with Operator(Run(str(job), nproc="1", launcher=LauncherName.TORCH), sessions) as run:
        run.see(LogLine, lambda line: line.line == "rank 1 line 30")
        cut_power(node, run.run, kept_bytes=2000)
        end = run.end(150)
        run.finish()
        name = run.run
    assert (end.state, end.exit_code != 0) == ("failed", True)
    findings = {finding.check: finding for finding in run.of(RunFinding)}
    assert findings["run.journal_lost"].hosts == ("node2",)
    assert "what it told is kept here" in findings["run.journal_lost"].summary
    assert "bytes behind entry" in findings["run.journal_cut"].summary
    seen = Counter(run.lines())
    assert set(seen.values()) == {1}
    assert {f"rank 1 line {number}" for number in range(31)} <= set(seen)
    with Operator(Attach(name), sessions) as again:
        events = again.finish()
    assert Counter(again.lines()) == seen
    assert isinstance(events[-1], RunEnded)
    with RunStore(runs_dir()).open(RunStore(runs_dir()).resolve(name)) as run_file:
        place = run_file.places()["node2"]
    assert place.lost_last >= place.lost_first > 0
