"""Before: a script for one GPU, as many begin. ``after.py`` is the same script for many.

``diff before.py after.py`` shows all that it takes.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

EPOCHS = 8
BATCH = 48


def main(path: str = "") -> None:
    """Train on scikit-learn's digits, test, keep the weights."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = digits()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator()
    loader = DataLoader(train_set, BATCH, sampler=RandomSampler(train_set, generator=generator))
    for epoch in range(EPOCHS):
        generator.manual_seed(epoch)
        for images, labels in loader:
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    correct = 0
    with torch.no_grad():
        for images, labels in DataLoader(test_set, batch_size=256):
            scores = model(images.to(device))
            correct += int((scores.argmax(dim=1) == labels.to(device)).sum())
    print(f"test accuracy {correct / len(test_set):.6f}")
    if path:
        torch.save(model.state_dict(), path)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,440 images to train on and 357 to test with."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    return TensorDataset(images[:1440], labels[:1440]), TensorDataset(images[1440:], labels[1440:])


if __name__ == "__main__":
    main(*sys.argv[1:])
