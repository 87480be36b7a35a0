"""``bench strategies`` on two embedded nodes: real SSH on loopback, real agents, real torch."""

import pytest

from distconsole.config.paths import runs_dir
from distconsole.model.events import BenchEnded, BenchProgress, BenchRun
from distconsole.model.requests import Bench, StrategyName
from distconsole.model.run_events import EndState, RunEvent
from distconsole.operations import SessionSource
from distconsole.runs.store.store import RunStore
from suite.driving import Operator

pytestmark = [pytest.mark.torch_ranks, pytest.mark.usefixtures("lean_here")]

TINY = {"rounds": 1, "images": 32, "batch": 8, "width": 2}


def test_two_strategies_are_compared_by_two_ordinary_runs(
    standing_sessions: SessionSource,
) -> None:
    only = (StrategyName.SINGLE, StrategyName.DP, StrategyName.DDP)
    request = Bench(only=only, epochs=2, **TINY)
    with Operator(request, standing_sessions) as bench:
        events = bench.finish(120)
    ended = events[-1]
    assert isinstance(ended, BenchEnded)
    assert (ended.state, ended.exit_code, ended.hosts) == (
        EndState.SUCCEEDED,
        0,
        ("node1", "node2"),
    ), bench.of(BenchRun)
    assert [(each.strategy, each.reason.split(",")[0]) for each in ended.skipped] == [
        ("dp", "node1 has no GPU")
    ]
    single, ddp = ended.strategies
    assert [(each.strategy, each.ranks, each.rounds) for each in (single, ddp)] == [
        ("single", 1, 1),
        ("ddp", 2, 1),
    ]
    runs = bench.of(BenchRun)
    for result, run in zip((single, ddp), runs, strict=True):
        assert result.samples_s.median == run.samples_s
        assert run.loss is not None
        assert run.accuracy in {right / 32 for right in range(33)}
    assert single.speedup.median == 1.0
    assert ddp.efficiency.median == ddp.speedup.median / 2
    assert not bench.of(RunEvent)
    kept = {record.run: record.name for record in RunStore(runs_dir()).runs()}
    assert {run.run: f"bench-{run.strategy}" for run in runs} == kept


def test_a_stop_ends_the_run_that_goes_on_and_all_that_were_to_come(
    standing_sessions: SessionSource,
) -> None:
    only = (StrategyName.SINGLE,)
    request = Bench(only=only, epochs=100_000, **{**TINY, "rounds": 3})
    with Operator(request, standing_sessions) as bench:
        bench.see(BenchProgress, lambda progress: progress.step)
        bench.control.stop()
        ended = bench.finish()[-1]
    assert isinstance(ended, BenchEnded)
    assert (ended.state, ended.exit_code) == (EndState.STOPPED, 130)
    assert [run.state for run in bench.of(BenchRun)] == [EndState.STOPPED]
