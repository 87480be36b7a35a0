"""The demo, as somebody sees it who has just installed the program."""

import shutil
import tempfile
from pathlib import Path

import pytest

from distconsole.config.paths import baselines_dir
from distconsole.model.events import CheckEnded, DemoEnded, DemoStep, Narration, RunShown
from distconsole.model.requests import Attach, Demo, Run
from distconsole.model.run_events import EndState, LogLine, Metric, RunEnded, RunFinding, Window
from distconsole.operations import SessionSource
from distconsole.session import open_session
from distconsole.ssh.embedded import EmbeddedCluster
from fakes.sessions import no_session
from suite.driving import Operator, answered
from suite.lean_torch import LEAN_TORCH

SHORT_DIGITS = f"""{LEAN_TORCH}
from distconsole_training.recipes import digits
sys.argv += ["--epochs", "4"]
digits.main()
"""
"""The recipe of ``--torch`` for a quarter of its epochs: 98 % of the images are right by then."""


def test_the_demo_finds_its_slow_rank_and_its_failure_and_leaves_only_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    demo = answered(Demo(headless=True), no_session, 150)
    assert [step.title for step in demo.of(DemoStep)] == [
        "check", "training", "slow rank", "failure"
    ]  # fmt: skip
    (report,) = [event.report for event in demo.of(CheckEnded)]
    assert report.ok, report.findings
    found = {finding.check: finding for finding in demo.of(RunFinding)}
    assert found["run.straggler"].rank == 2, demo.lines()
    assert "the forward part" in found["run.straggler"].summary
    assert found["run.first_failure"].rank == 1
    assert found["run.first_failure"].t - found["run.straggler"].t >= 5  # time to look at it
    assert "ValueError: could not convert string to float" in found["run.first_failure"].seen
    # Another job on this machine may have got the port in between.
    assert set(found) - {"run.port"} == {"run.straggler", "run.first_failure"}
    (end,) = demo.of(DemoEnded)
    assert (end.run, end.exit_code) == (demo.run, 0)
    assert not any(tmp_path.iterdir())
    assert not baselines_dir().exists()


def test_the_run_of_a_demo_is_followed_from_elsewhere_until_the_demo_is_gone(
    sessions: SessionSource,
    cluster: EmbeddedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("distconsole.runs.following.follow.GIVE_UP_SECONDS", 0.0)
    script = tmp_path / "job.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    answered(Run(str(script), detach=True), sessions)
    with Operator(Attach("last"), open_session) as other:
        other.see(LogLine, lambda line: line.line == "up")
        cluster.close()
        shutil.rmtree(cluster.folder)
        assert other.end().state is EndState.FAILED


@pytest.mark.torch_ranks
def test_the_demo_with_torch_trains_live_and_ends_with_the_exact_accuracy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "digits.py").write_text(SHORT_DIGITS)
    recipes = "distconsole.operations.demo._recipe"
    monkeypatch.setattr(recipes, lambda name: str(tmp_path / f"{name}.py"))
    with Operator(Demo(headless=True, torch=True), no_session) as demo:
        demo.see(CheckEnded, seconds=90)
        demo.see(Window, lambda window: window.rank == 1 and window.steps > 0, seconds=90)
        demo.finish(150)
    (end,) = demo.of(RunEnded)
    assert end.exit_code == 0, demo.lines()
    (shown,) = demo.of(RunShown)
    assert shown.summary.hosts == ("node1", "node2")
    assert shown.summary.metrics["test_accuracy"] > 0.9
    assert shown.summary.samples_s is not None
    assert shown.summary.step_ms_spread is not None
    losses = [metric for metric in demo.of(Metric) if metric.name == "loss"]
    assert {metric.ranks for metric in losses} == {2}
    assert losses[-1].value < losses[0].value
    printed = next(line for line in demo.lines() if line.startswith("test accuracy"))
    told = next(n.text for n in demo.of(Narration) if n.text.startswith("test accuracy"))
    assert printed.split("%")[0] == told.split("%")[0]
