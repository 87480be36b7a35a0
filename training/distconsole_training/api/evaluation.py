"""Evaluation over all ranks with the figures of one, to the last digit."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from distconsole_training.api.collectives import Collectives, broadcast_bytes
from distconsole_training.api.loading import to_device
from distconsole_training.api.world import current_world

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from distconsole_training.api.world import World

    Judge = Callable[[nn.Module, Any], Mapping[str, Any]]


def evaluate(
    network: nn.Module,
    dataset: Any,
    judge: Judge,
    *,
    batch_size: int = 256,
    world: World | None = None,
    **options: Any,
) -> dict[str, float]:
    """Return sums over a whole data set, the same on every rank; every rank must call it.

    The batches are those that one process would make, and each is judged by one rank: nothing is
    padded, nothing is counted twice, and what is computed for a batch does not depend on how many
    ranks there are. What each batch gave is then added up on all ranks in the same order. All
    ranks judge with rank 0's buffers (the statistics of BatchNorm differ between ranks).

    Args:
        network: The model, or what ``prepare`` made of it (then in its precision).
        dataset: Anything with a length and indices.
        judge: Called with the model, in eval mode and without gradients, and one batch on the
            rank's device. It returns sums over the batch (not means): numbers or tensors of one
            element, always by the same names.
        batch_size: Part of the definition of the result, in the last digits.
        world: By default the one that ``setup()`` made.
        options: For DataLoader (``num_workers``, ``collate_fn``…).

    Raises:
        ValueError: if the data set is empty, or the names change between batches.
    """
    world = world or current_world()
    if not len(dataset):
        raise ValueError("the data set to evaluate on is empty")
    starts = range(0, len(dataset), batch_size)
    batches = [range(start, min(start + batch_size, len(dataset))) for start in starts]
    own = range(world.rank, len(batches), world.world_size)
    loader = DataLoader(
        dataset, batch_sampler=[list(batches[number]) for number in own], **options
    )
    model = unwrap(network)
    synchronize_buffers(model, world)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            found = [judge(model, to_device(batch, world.device)) for batch in loader]
    finally:
        for module, was_training in modes:
            module.training = was_training
    names = _names_of_all(found, world.collectives)
    table = torch.zeros(len(batches), len(names), dtype=torch.float64)
    for number, sums in zip(own, found):
        table[number] = _row(sums, names)
    # Each row is one rank's and zeros elsewhere, so adding them up is exact.
    rows = world.collectives.sum(table).tolist()
    return {name: math.fsum(row[column] for row in rows) for column, name in enumerate(names)}


def synchronize_buffers(model: nn.Module, world: World | None = None) -> None:
    """Give all ranks rank 0's buffers, which neither Horovod nor the end of a DDP step does."""
    world = world or current_world()
    if world.world_size > 1:
        for buffer in model.buffers():
            buffer.copy_(world.collectives.broadcast(buffer))


def unwrap(network: nn.Module) -> nn.Module:
    """Return what lies in DistributedDataParallel or DataParallel.

    Calling their forward on one rank alone would wait for the others.
    """
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while isinstance(network, (DataParallel, DistributedDataParallel)):
        network = network.module
    return network


def _names_of_all(found: Sequence[Mapping[str, Any]], collectives: Collectives) -> list[str]:
    # The first batch is rank 0's; a rank may have none.
    own = json.dumps(sorted(found[0]) if found else []).encode()
    names: list[str] = json.loads(broadcast_bytes(own, collectives))
    for sums in found:
        if sorted(sums) != names:
            raise ValueError(f"judge returned {sorted(sums)}, for the first batch {names}")
    return names


def _row(sums: Mapping[str, Any], names: Sequence[str]) -> torch.Tensor:
    return torch.stack(
        [
            torch.as_tensor(sums[name]).detach().to(torch.float64).reshape(()).cpu()
            for name in names
        ]
    )
