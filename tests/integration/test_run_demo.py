"""The demo, as somebody sees it who has just installed the program."""

from __future__ import annotations

import pytest

from distconsole.errors import UsageError
from distconsole.model.events import CheckEnded, Narration, RunShown
from distconsole.model.requests import Demo
from distconsole.model.run_events import Metric, RunEnded, Window
from distconsole.operations import perform
from fakes.sessions import no_session
from suite.driving import Operator


@pytest.mark.torch_ranks
def test_the_demo_checks_trains_live_and_ends_with_the_exact_accuracy() -> None:
    with Operator(Demo(headless=True), no_session) as demo:
        demo.see(CheckEnded, seconds=90)
        demo.see(Window, lambda window: window.rank == 1 and window.steps > 0, seconds=90)
        demo.finish(150)
    (end,) = demo.of(RunEnded)
    assert end.exit_code == 0, demo.lines()
    (shown,) = demo.of(RunShown)
    assert shown.summary.hosts == ("node1", "node2")
    assert shown.summary.metrics["test_accuracy"] > 0.95
    assert shown.summary.samples_s is not None
    assert shown.summary.step_ms_spread is not None
    losses = [metric for metric in demo.of(Metric) if metric.name == "loss"]
    assert {metric.ranks for metric in losses} == {2}
    assert losses[-1].value < losses[0].value
    printed = next(line for line in demo.lines() if line.startswith("test accuracy"))
    told = next(n.text for n in demo.of(Narration) if n.text.startswith("test accuracy"))
    assert printed.split("%")[0] == told.split("%")[0]


def test_a_demo_of_more_nodes_than_a_machine_can_play_is_refused() -> None:
    with pytest.raises(UsageError, match="--nodes 99"):
        list(perform(Demo(nodes=99), no_session))
