"""What a run on embedded nodes says of a training that goes wrong without failing."""

from pathlib import Path

import pytest

from distconsole.model.requests import Attach, Run
from distconsole.model.run_events import EndState, Metric, RunFinding
from distconsole.operations import SessionSource
from suite.driving import Operator, answered, write_script
from suite.lean_torch import LEAN_TORCH

pytestmark = pytest.mark.torch_ranks

NAN_ON_ONE_RANK = f"""{LEAN_TORCH}
import time, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    loss = model(torch.ones(8, 4)).square().mean()
    if rank == 1 and step == 7:
        loss = loss * float("nan")
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    time.sleep(0.02)
dist.destroy_process_group()
"""

DATA_PARALLEL = f"""{LEAN_TORCH}
import os, time, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
faults = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
wrapped = nn.parallel.DistributedDataParallel(model) if "broadcast" not in faults else model
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
shared = torch.Generator().manual_seed(1)
data = TensorDataset(
    torch.randn(96, 8, generator=shared), torch.randn(96, 1, generator=shared)
)
sampler = None if "sampler" in faults else DistributedSampler(data)
for epoch in range(3):
    if sampler is not None and "epoch" not in faults:
        sampler.set_epoch(epoch)
    for inputs, wanted in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(wrapped(inputs), wanted)
        if "gradient" in faults and epoch == 1:
            loss = loss + torch.sqrt(model[2].weight.sum() * 0)
        loss.backward()
        if wrapped is model:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
dist.destroy_process_group()
time.sleep(0.5)  # gloo's threads abort if they let go of a gradient while Python is ending
"""


def findings(run: Operator) -> list[RunFinding]:
    """Return what was found, but for what a busy machine may do to any run."""
    slow = ("run.straggler", "run.stall", "run.rare_looks")
    return [finding for finding in run.of(RunFinding) if finding.check not in slow]


def test_a_loss_that_is_nan_in_one_step_is_found_and_kept(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    request = Run(write_script(tmp_path, NAN_ON_ONE_RANK), nproc="1", name="diverges")
    with Operator(request, standing_sessions) as run:
        assert run.end(150).state is EndState.SUCCEEDED, run.lines()
        run.finish()
    found = findings(run)
    assert [each.check for each in found] == ["run.not_finite"], found
    finding = found[0]
    assert (finding.check, finding.rank, finding.hosts) == ("run.not_finite", 1, ("node2",))
    assert finding.summary == "loss is nan at step 7 on rank 1"
    unlike = [metric.step for metric in run.of(Metric) if metric.value != metric.value]
    assert unlike in ([7], [])  # thinned away where the steps came faster than they can be shown
    again = answered(Attach("diverges"), standing_sessions)
    assert findings(again) == [finding]


# What is wrong in one run is right in the other.
@pytest.mark.parametrize(
    ("faults", "found"),
    [
        pytest.param((), {}, marks=pytest.mark.campaign),
        (
            ("broadcast", "sampler"),
            {
                "run.desync": "rank 1 and rank 0 have different parameters after step 0; "
                "first in 0.weight",
                "run.same_batch": "ranks 0, 1 read the same batches",
            },
        ),
        (
            ("epoch", "gradient"),
            {
                "run.same_epoch": "two passes over the data were in the same order",
                "run.not_finite": "",
            },
        ),
    ],
    ids=["healthy", "no broadcast, no sampler", "no epoch, bad gradient"],
)
def test_two_ranks_that_check_themselves(
    standing_sessions: SessionSource,
    tmp_path: Path,
    faults: tuple[str, ...],
    found: dict[str, str],
) -> None:
    request = Run(
        write_script(tmp_path, DATA_PARALLEL), faults, nproc="1", verify_sync=2, name="v"
    )
    with Operator(request, standing_sessions) as run:
        assert run.end(150).state is EndState.SUCCEEDED, run.lines()
        run.finish()
    seen = findings(run)
    assert {finding.check for finding in seen} == set(found), seen
    for finding in seen:
        assert found[finding.check] in finding.summary
    if "gradient" in faults:
        told = [finding.summary for finding in seen if finding.check == "run.not_finite"]
        assert any("the gradient of 2.weight is not finite" in summary for summary in told)
        assert any("loss is nan" in summary for summary in told)
    again = answered(Attach("v"), standing_sessions)
    # Of ranks that tell the same, the first is another one in the order of the stored entries.
    assert {finding.check for finding in findings(again)} == set(found)
