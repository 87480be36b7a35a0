"""Real runs on embedded nodes, looked back at: at their moments, and beside each other."""

import shlex
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from distconsole.config.paths import runs_dir
from distconsole.model.events import Narration, RunListed, RunsCompared
from distconsole.model.findings import Severity
from distconsole.model.requests import Attach, Compare, Run, Runs, Where
from distconsole.model.run_events import LogLine, RunEvent, RunFinding, Window
from distconsole.operations import SessionSource, perform
from distconsole.operations.control import StopReason
from distconsole.operations.stored.history import open_kept
from distconsole.runs.replay.recording import Recording
from distconsole.runs.store.store import RunStore
from distconsole.runs.timeline import RunTimeline
from distconsole.ssh.embedded import EmbeddedCluster
from fakes.journals import Journal
from suite.driving import Operator, answered
from suite.lean_torch import LEAN_TORCH

SCRIPT = f"""{LEAN_TORCH}
import sys, time
from torch.utils.data import DataLoader
from distconsole_training import report

wait = float(sys.argv[sys.argv.index("--wait") + 1])

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        time.sleep(wait)
        return torch.ones(4)

weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.05)
for step, batch in enumerate(DataLoader(Slow(), batch_size=1)):
    loss = ((weight - batch) ** 2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(loss=loss.item(), samples=1, step=step)
    print("step", step, flush=True)
    time.sleep(0.01)
"""


@pytest.mark.torch_ranks
def test_replaying_and_comparing_two_runs(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(SCRIPT)
    told: list[list[RunEvent]] = []
    for name, wait in (("quick", "0.005"), ("late", "0.03")):
        with Operator(
            Run(str(job), ("--wait", wait), nproc="1", name=name), standing_sessions
        ) as run:
            assert run.end().exit_code == 0
            run.finish()
            told.append([event for event in run.events if isinstance(event, RunEvent)])
    _replay(told[1])
    _compare(standing_sessions)
    endless = Run(str(job), ("--wait", "9"), nproc="1", name="endless")
    with Operator(endless, standing_sessions) as run:
        run.see(LogLine)
        made = list(perform(Compare(("quick", "endless")), standing_sessions))[-1]
        assert isinstance(made, RunsCompared)
        assert made.comparison.words[0] == "A succeeded, B goes on"
        run.control.stop(StopReason.INTERRUPT)
        run.finish()


def _replay(told: list[RunEvent]) -> None:
    """The run at its end is what was seen live, and at each window what was known then."""
    live = RunTimeline()
    for event in told:
        live.apply(event)  # type: ignore[arg-type]
    with open_kept("late") as run_file, closing(Recording(run_file)) as recording:
        while recording.read(64):
            pass
        last = recording.head.timeline
        assert last.steps == live.steps
        # Of several hosts the lines come live as their journals are read.
        assert {(each.host, each.line) for each in last.logs} == {
            (each.host, each.line) for each in live.logs
        }
        assert (last.end.state, last.end.seconds) == (live.end.state, live.end.seconds)
        assert [mark.kind for mark in recording.marks][:1] == ["begin"]
        assert recording.marks[-1].kind == "end"
        windows = [event for event in told if isinstance(event, Window) and event.steps]
        for window in windows:
            # What a node writes is in order of time but for a second or so.
            then = recording.at(window.t + 2.0).state.timeline
            assert (then.ranks[window.rank].step or 0) >= window.step
            before = recording.at(window.t - 2.0).state.timeline
            assert (before.ranks[window.rank].step or -1) < window.step
        assert recording.at(recording.start).state.timeline.steps is None


def _compare(sessions: SessionSource) -> None:
    events = list(perform(Compare(("quick", "late")), sessions))
    assert {type(event) for event in events} == {Narration, RunsCompared}
    made = events[-1]
    assert isinstance(made, RunsCompared)
    slower = next(
        words
        for words in made.comparison.words
        if "longer per step" in words or "as long per step" in words
    )
    assert "data wait" in slower
    differs = {each.name: each.values for each in made.comparison.differs}
    assert differs == {"arg --wait": ("0.005", "0.03")}
    assert "python.version" in made.comparison.same
    assert {each.title for each in made.curves if each.axis == "step"} == {"loss"}
    assert len(RunStore(runs_dir()).names()) == 2


def test_a_run_that_a_host_cannot_read_is_told_and_stays(
    standing_sessions: SessionSource, standing_nodes: EmbeddedCluster
) -> None:
    host = standing_nodes.cluster.hosts[0]
    assert host.node_dir is not None
    asked = Runs(where=Where(hosts=host.name))
    list(perform(asked, standing_sessions))  # the node folder is there now
    folder = Path(host.node_dir, "runs", "torn-run")
    (folder / "logs").mkdir(parents=True)
    (folder / "spec.json").touch()
    (folder / "logs" / "rank-0.out").write_text("step 1\n")
    told = list(perform(asked, standing_sessions))
    warned = [e.text for e in told if isinstance(e, Narration) and e.severity == Severity.WARN]
    assert [text for text in warned if f"{host.name}: " in text and f"{folder}/spec.json" in text]
    listed = {e.summary.run: e.summary.state for e in told if isinstance(e, RunListed)}
    assert listed["torn-run"] == "unreadable"
    assert (folder / "logs" / "rank-0.out").exists()
    shutil.rmtree(folder)


def test_what_is_said_of_a_damaged_record_brings_it_back(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text("print('well')")
    with Operator(Run(str(job), nproc="1", watch=False), standing_sessions) as run:
        run.finish()
        name, whole = run.run, run.lines()
    path = RunStore(runs_dir()).folder / f"{name}.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE entries SET body = x'00' WHERE instr(body, ?)", (b'"kind":"log"',))
    again = answered(Attach(name), standing_sessions)
    (finding,) = again.of(RunFinding)
    assert (finding.check, again.lines()) == ("run.record_damaged", [])
    move, attach = finding.hint.rsplit(": ", 1)[1].split("; ")
    subprocess.run(shlex.split(move), check=True)
    words = shlex.split(attach)
    assert words[:3] == ["distconsole", "attach", name]
    anew = answered(Attach(name, where=Where(hosts=words[-1])), standing_sessions)
    assert sorted(anew.lines()) == sorted(whole) == ["well"] * 2
    Journal("elsewhere-1123-b7c1", odd_t=time.time()).write(RunStore(runs_dir()))
    newest = answered(Attach("last", where=Where(hosts=words[-1])), standing_sessions)
    assert newest.run == name, "not the newest that is stored here, which was on other hosts"
