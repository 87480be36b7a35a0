"""Samples of batches of every shape: a certain number, or 0."""

from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset

from distconsole_training.torch_hook.batches import Source, samples_of

Pair = namedtuple("Pair", "x y")
X, Y = torch.zeros(6, 3), torch.zeros(6)


@dataclass
class Example:
    x: torch.Tensor
    y: torch.Tensor


class Graphs:
    num_graphs = 6

    def __init__(self) -> None:
        self.x = torch.zeros(50, 3)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (X, 6),
        (torch.zeros(()), 0),
        ([X, Y], 6),
        ((X, [Y, {"mask": X}]), 6),
        ({"x": X, "names": ["a"] * 6, "epoch": 3}, 6),
        (UserDict(input_ids=X, labels=Y), 6),
        (Pair(X, Y), 6),
        (Example(X, Y), 6),
        (X.numpy(), 6),
        (["a", "b", "c"], 3),
        (SimpleNamespace(x=X, y=Y), 6),
        (SimpleNamespace(batch_size=6, x=torch.zeros(50, 3)), 6),
        (Graphs(), 6),
        ([X, torch.zeros(5)], 0),
        ({"x": X, "names": ["a"] * 5}, 0),
        ([torch.zeros(3, 8, 8)] * 4, 0),
        (([torch.zeros(3, 8, 8)] * 4, [{"boxes": torch.zeros(2, 4)}] * 4), 0),
        ([X, torch.zeros(())], 6),
        ("text", 0),
        (None, 0),
        (7, 0),
        ({}, 0),
        ([[[[[[X]]]]]], 0),
        ([X] * 1000, 0),
        (object(), 0),
    ],
)
def test_samples_of_a_batch(batch: Any, samples: int) -> None:
    assert samples_of(batch) == samples


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.zeros(7, 2))


class Opaque:
    """What a collate function may make of a batch."""

    def __init__(self, rows: Any) -> None:
        self.rows = tuple(map(str, rows))


DATA = TensorDataset(torch.zeros(7, 2))


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        (DataLoader(DATA, batch_size=3), [3, 3, 1]),
        (DataLoader(DATA, batch_size=3, drop_last=True), [3, 3]),
        (DataLoader(DATA, batch_size=7), [7]),
        (DataLoader(DATA, batch_size=3, collate_fn=Opaque), [3, 3, 1]),
        (DataLoader(DATA, batch_size=None), [0] * 7),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2]]), [2, 1]),
        (DataLoader(DATA, batch_sampler=BatchSampler(range(5), 2, drop_last=False)), [2, 2, 1]),
        (DataLoader(Stream(), batch_size=3), [3, 3, 1]),
        (DataLoader(Stream(), batch_size=3, collate_fn=Opaque), [3, 3, 0]),
        (DataLoader([torch.zeros(4, 2)] * 2, batch_size=None), [0, 0]),
        (DataLoader([(torch.zeros(4, 2), torch.zeros(4))] * 2, batch_size=None), [4, 4]),
    ],
)
def test_samples_of_a_loader(loader: Any, samples: list[int]) -> None:
    batches = iter(loader)
    source = Source(batches, 1)
    seen = []
    for batch in batches:
        index = batches._num_yielded
        seen.append(source.full if index < source.full_until else source.samples(index, batch))
    assert seen == samples
