"""Real scripts that check themselves (``run --verify-sync``): what they say, and that they are as before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from distconsole_training import records
from suite.lean_torch import LEAN_TORCH

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Outcome, Runner

PREAMBLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
def train(model, steps=6, **kinds):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in DataLoader(data, batch_size=24 // steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
"""
JOINED = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def checks(ended: Outcome) -> list[dict[str, Any]]:
    """Return the checks of the only ring."""
    assert ended.code == 0, ended.err
    ring = ended.ring
    (path,) = (ended.folder / "rings").glob("*.ring")
    raw = path.read_bytes()
    found = []
    for index, row in enumerate(ring.rows):
        if row["kind"] == records.CHECK:
            offset = records.RECORDS_OFFSET + index * records.WORDS.size
            *_, flags, details, samples, parameters, state, batch, place = (
                records.WORDS.unpack_from(raw, offset)
            )
            rank, world, layout = records.PLACE.unpack(place.to_bytes(8, "little"))
            found.append(
                {
                    "step": row["step"], "flags": flags, "details": details,
                    "count": samples & 0xFFFF, "bad": samples >> 16, "layout": layout,
                    "parameters": parameters, "state": state, "batch": batch,
                    "place": (rank, world),
                }
            )  # fmt: skip
    return found


def names(folder: Path) -> list[str]:
    (path,) = (folder / "rings").glob("*.checked")
    said: list[str] = json.loads(path.read_text())["names"]
    return said


def test_a_script_checks_itself_every_n_steps_and_says_what_it_is(verifying: Runner) -> None:
    body = """
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
train(model)
"""
    ended = verifying.forked(PREAMBLE + body)
    found = checks(ended)
    assert [check["step"] for check in found] == [0, 2, 4]
    every = records.HAS_PARAMETERS | records.HAS_STATE | records.HAS_BATCH
    assert {check["flags"] for check in found} == {every}
    assert names(ended.folder) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert {(check["details"], check["count"], check["bad"]) for check in found} == {(1, 4, 0)}
    assert len({check["layout"] for check in found}) == 1
    for what in ("parameters", "state", "batch"):
        assert len({check[what] for check in found}) == 3
    assert found[0]["place"] == (records.NOWHERE, records.NOWHERE)
    again = checks(verifying.forked(PREAMBLE + body))
    assert again == found


@pytest.mark.usefixtures("warm")
def test_without_being_asked_nothing_of_it_is_loaded(runner: Runner) -> None:
    ended = runner.forked(
        PREAMBLE
        + """
import sys
from distconsole_training.torch_hook import fast_path
from torch.utils.data.dataloader import _BaseDataLoaderIter as kind
train(nn.Linear(4, 1))
print(sorted(n for n in sys.modules if n.endswith(("_verify", "_sums", "_replicas"))
             and n.startswith("distconsole")), type(vars(kind)["__next__"]).__name__)
"""
    )
    assert ended.out.split() == ["[]", "NextAndTell"]
    assert checks(ended) == []


def test_a_script_that_checks_itself_sees_no_difference(runner: Runner) -> None:
    ended = runner.unchanged(
        LEAN_TORCH
        + PREAMBLE
        + """
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
train(model, steps=12)
print(torch.rand(1).item(), [p.sum().item() for p in model.parameters()])
print(len(list(model.named_buffers())), sorted(vars(model)))
""",
        env={records.ENV_VERIFY: "1"},
    )
    assert len(checks(ended)) == 12


def test_a_gradient_that_is_not_finite_is_named(verifying: Runner) -> None:
    ended = verifying.forked(
        PREAMBLE
        + """
class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        # The value is finite; the slope of the root at 0 is not.
        return self.second(self.first(x).detach() + torch.sqrt(self.second.weight.sum() * 0))
train(Bad())
"""
    )
    # The first step is known to be over when the second has begun, without its gradients.
    assert checks(ended)[1]["bad"] == names(ended.folder).index("second.weight") + 1


def test_the_names_are_those_of_the_script_below_wrappers(verifying: Runner) -> None:
    ended = verifying.forked(
        PREAMBLE
        + JOINED
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        return self.head(x)
train(nn.parallel.DistributedDataParallel(Net()))
"""
    )
    assert names(ended.folder) == ["head.weight", "head.bias"]
    found = checks(ended)
    assert all(check["flags"] & records.WRAPPED for check in found)
    assert found[0]["place"] == (0, 1)


@pytest.mark.parametrize(
    "wrapped",
    [
        "from torch.distributed.fsdp import fully_shard\nmodel = nn.Linear(4, 1)\n"
        "fully_shard(model, mesh=dist.init_device_mesh('cpu', (1,)))",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(nn.Linear(4, 1), device_id=torch.device('cpu'), use_orig_params=True)",
        "weights = torch.zeros(4, 1, requires_grad=True)\n"
        "model = type('F', (), {'parameters': lambda _: [weights],\n"
        "                       '__call__': lambda _, x: x @ weights})()",
    ],
    ids=["fully_shard", "FSDP", "no module"],
)
def test_what_may_be_a_shard_is_not_compared(verifying: Runner, wrapped: str) -> None:
    ended = verifying.forked(PREAMBLE + JOINED + wrapped + "\ntrain(model)")
    found = checks(ended)
    assert len(found) == 3
    assert {check["flags"] & ~records.WRAPPED for check in found} == {0}


def test_an_epoch_that_is_not_set_is_told_once_trained_on(verifying: Runner) -> None:
    body = """
from torch.utils.data.distributed import DistributedSampler
model, held = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = DistributedSampler(data, num_replicas=2, rank=0)
checking = DistributedSampler(data, num_replicas=2, rank=0)
for epoch in range(3):
    if SETS:
        sampler.set_epoch(epoch)
    for batch in DataLoader(data, batch_size=4, sampler=sampler):
        model(batch[0]).mean().backward()
        optimizer.step()
    for batch in DataLoader(data, batch_size=4, sampler=checking):
        held(batch[0])
"""
    for sets in (True, False):
        text = PREAMBLE + body.replace("SETS", str(sets))
        found = checks(verifying.forked(text))
        told = [check["step"] for check in found if check["flags"] & records.SAME_EPOCH]
        assert told == ([] if sets else [3, 6])


def test_many_parameters_share_checksums(verifying: Runner) -> None:
    ended = verifying.forked(
        PREAMBLE
        + """
model = nn.Sequential(nn.Linear(4, 1), *(nn.Linear(1, 1) for _ in range(199)))
train(model, steps=2)
"""
    )
    assert checks(ended)[0]["count"] == 200 == len(names(ended.folder))
    assert names(ended.folder)[0] == "0.weight to 0.bias"
