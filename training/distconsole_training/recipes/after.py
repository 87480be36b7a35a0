"""After: ``before.py`` for any number of GPUs and hosts, under any launcher.

It learns the same: with the same global batch the weights are the same but for rounding, on any
number of ranks.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from distconsole_training import evaluate, setup, strategy

EPOCHS = 8
BATCH = 48


def main(path: str = "", how: str = "ddp") -> None:
    """Train on scikit-learn's digits, test, keep the weights."""
    with setup() as world:
        torch.manual_seed(0)
        way = strategy(how)
        train_set, test_set = digits()
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        network, optimizer = way.prepare(model, optimizer)
        loader = way.loader(train_set, global_batch=BATCH)
        for _ in range(EPOCHS):
            for images, labels in loader:
                way.step(functional.cross_entropy(network(images), labels))
        found = evaluate(network, test_set, judge)
        if world.rank == 0:
            print(f"test accuracy {found['correct'] / len(test_set):.6f}")
            if path:
                torch.save(model.state_dict(), path)


def judge(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return how many images of a batch are right."""
    images, labels = batch
    return {"correct": (model(images).argmax(dim=1) == labels).sum()}


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,440 images to train on and 357 to test with."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    return TensorDataset(images[:1440], labels[:1440]), TensorDataset(images[1440:], labels[1440:])


if __name__ == "__main__":
    main(*sys.argv[1:])
