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

    The batches are those that one process would make, each judged by one rank, and their sums
    are added up in the same order everywhere: the number of ranks changes no digit.

    Args:
        network: The model, or the result of ``prepare`` (then in its precision).
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
    # A wrapper's forward, on one rank alone, would wait for the others.
    while isinstance(network, (nn.parallel.DataParallel, nn.parallel.DistributedDataParallel)):
        network = network.module
    if not len(dataset):
        raise ValueError("the data set to evaluate on is empty")
    batches = [
        list(range(start, min(start + batch_size, len(dataset))))
        for start in range(0, len(dataset), batch_size)
    ]
    own = slice(world.rank, None, world.world_size)
    loader = DataLoader(dataset, batch_sampler=batches[own], **options)
    found = _judge_all(network, loader, judge, world)
    names = _names_of_all(found, world.collectives)
    table = torch.zeros(len(batches), len(names), dtype=torch.float64)
    if found:
        table[own] = torch.stack([_row(sums, names) for sums in found])
    # Each row is one rank's and zeros elsewhere, so adding them up is exact.
    rows = world.collectives.sum(table).tolist()
    return {name: math.fsum(row[column] for row in rows) for column, name in enumerate(names)}


def _judge_all(
    model: nn.Module, loader: Any, judge: Judge, world: World
) -> list[Mapping[str, Any]]:
    """Judge each batch with rank 0's buffers: the statistics of BatchNorm differ between ranks."""
    if world.world_size > 1:
        for buffer in model.buffers():
            buffer.copy_(world.collectives.broadcast(buffer))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return [judge(model, to_device(batch, world.device)) for batch in loader]
    finally:
        for module, was_training in modes:
            module.training = was_training


def _names_of_all(found: Sequence[Mapping[str, Any]], collectives: Collectives) -> list[str]:
    # The first batch is rank 0's; a rank may have none.
    own = json.dumps(sorted(found[0]) if found else []).encode()
    names: list[str] = json.loads(broadcast_bytes(own, collectives))
    for sums in found:
        if sorted(sums) != names:
            raise ValueError(f"judge returned {sorted(sums)}, for the first batch {names}")
    return names


def _row(sums: Mapping[str, Any], names: Sequence[str]) -> torch.Tensor:
    values = (torch.as_tensor(sums[name]).detach() for name in names)
    return torch.stack([value.to(torch.float64).reshape(()).cpu() for value in values])
