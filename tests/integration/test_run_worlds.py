"""What a run on embedded nodes says of ranks that do not come together to the world that was planned."""

from pathlib import Path

import pytest

from distconsole.model.findings import Severity
from distconsole.model.requests import LauncherName, Run
from distconsole.model.run_events import (
    EndState,
    LogLine,
    PlanMade,
    RankChanged,
    RankState,
    RunFinding,
    Window,
)
from distconsole.operations import SessionSource
from suite.driving import Operator, write_script
from suite.lean_torch import LEAN_TORCH

pytestmark = pytest.mark.torch_ranks

COPIES = f"""{LEAN_TORCH}
import torch.distributed
from torch.utils.data.distributed import DistributedSampler
model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
print("done")
"""

OTHER_WORLD = f"""{LEAN_TORCH}
import datetime, os, torch.distributed as dist
dist.init_process_group(
    "gloo", rank=int(os.environ["RANK"]), world_size=4, timeout=datetime.timedelta(seconds=40)
)
"""


def found(run: Operator, check: str) -> list[RunFinding]:
    return [finding for finding in run.of(RunFinding) if finding.check == check]


def test_copies_of_a_data_parallel_script_train_alone_and_are_not_one_training(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    with Operator(Run(write_script(tmp_path, COPIES)), standing_sessions) as run:
        assert run.end(150).state is EndState.SUCCEEDED, run.lines()
        run.finish()
    assert run.of(PlanMade)[0].launcher == "single"
    assert sorted((e.host, e.rank, e.line) for e in run.of(LogLine) if e.line == "done") == [
        ("node1", 0, "done"),
        ("node2", 1, "done"),
    ]
    (finding,) = found(run, "run.alone")
    assert finding.severity is Severity.WARN
    assert finding.hosts == ("node1", "node2")
    assert finding.summary.startswith(
        "ranks 0, 1 made their first steps without torch.distributed"
    )


def test_a_world_that_is_not_the_plans_is_told_while_the_ranks_wait_for_it(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    with Operator(Run(write_script(tmp_path, OTHER_WORLD), nproc="1"), standing_sessions) as run:
        run.end(150)
        run.finish()
    (finding,) = found(run, "run.world")
    assert finding.summary == "ranks 0, 1 ask for a world of 4 ranks, and the run has 2"
    failed = [one.t for one in run.of(RunFinding) if one.check == "run.first_failure"]
    assert finding.t < min(failed) - 5


OWN_NUMBERS = f"""{LEAN_TORCH}
import os, torch.distributed as dist
rank = 1 - int(os.environ["NODE_RANK"])
store = dist.TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, os.environ["NODE_RANK"] == "0"
)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = torch.zeros(1)
while not seen:
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    seen[0] = os.path.exists(os.path.join(os.path.dirname(__file__), "go"))
    dist.all_reduce(seen)
print("I am rank", rank, flush=True)
dist.barrier()
if rank == 0:
    raise ValueError("rank zero gives up")
"""


def test_under_single_a_rank_has_the_number_of_its_process_group(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    request = Run(write_script(tmp_path, OWN_NUMBERS), launcher=LauncherName.SINGLE)
    with Operator(request, standing_sessions) as run:
        for place in (("node1", 1), ("node2", 0)):
            run.see(Window, lambda window, place=place: (window.host, window.rank) == place, 150)
        (tmp_path / "go").touch()
        end = run.end(150)
        run.finish()
    assert (end.first_failure.rank, end.first_failure.host) == (0, "node2")
    last = {(event.host, event.rank): event.state for event in run.of(RankChanged)}
    assert last["node2", 0] is RankState.FAILED
    assert last["node1", 1] in (RankState.EXITED, RankState.FAILED, RankState.KILLED)
    stepped = {(window.host, window.rank) for window in run.of(Window) if window.steps}
    assert stepped == {("node1", 1), ("node2", 0)}
    said = [(line.host, line.rank) for line in run.of(LogLine) if line.line.startswith("I am")]
    assert sorted(said) == [("node1", 1), ("node2", 0)]
