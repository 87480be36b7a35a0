"""A small convolutional network on scikit-learn's handwritten digits, data-parallel over all ranks.

An ordinary ``env://`` script, which runs under any launcher, alone or on many nodes.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

try:
    from distconsole_training import report
except ImportError:  # without the console the numbers are printed only

    def report(*, step: int | None = None, samples: int | None = None, **metrics: Any) -> None:
        """Take the values and do nothing."""


TEST_EVERY = 5
"""Every fifth of the 1,797 images is for testing."""

SETTLE_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16, help="images a step and rank")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    rank, world_size = join()
    device = own_device()
    train_set, test_set = digits()
    model: nn.Module = Net().to(device)
    if world_size > 1:
        model = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None
        )
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        train_set, world_size, rank, seed=options.seed
    )
    loader = DataLoader(train_set, batch_size=options.batch, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=options.lr, total_steps=options.epochs * len(loader)
    )
    began = time.monotonic()
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            compute_loss(model, images.to(device), labels.to(device)).backward()
            optimizer.step()
            schedule.step()
        correct, total = count_correct(model, test_set, (rank, world_size), device)
        report(test_accuracy=correct / total)
        if rank == 0:
            seconds = time.monotonic() - began
            print(f"epoch {epoch + 1}: {correct} of {total} right after {seconds:.1f} s")
            if epoch + 1 == options.epochs:
                print(f"test accuracy {100 * correct / total:.2f} % ({correct} of {total})")
    if world_size > 1:
        leave()


def join() -> tuple[int, int]:
    """Join the other ranks, if there are any; return rank and world size."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def leave() -> None:
    """Leave the other ranks, and wait for Gloo's thread to let go of the last tensor.

    If Python is ending by then, torch 2.13 aborts the process (SIGABRT).
    """
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(SETTLE_SECONDS)


def own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the images for training and those for testing, the same on every rank."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target, dtype=torch.long)
    is_test = torch.arange(len(labels)) % TEST_EVERY == 0
    return (
        TensorDataset(images[~is_test], labels[~is_test]),
        TensorDataset(images[is_test], labels[is_test]),
    )


def count_correct(
    model: nn.Module, test_set: TensorDataset, place: tuple[int, int], device: torch.device
) -> tuple[int, int]:
    """Return how many test images are right, over all ranks, and how many there are.

    Each image is judged by one rank, with the statistics that rank 0's BatchNorm has gathered.
    """
    rank, world_size = place
    shard = Subset(test_set, range(rank, len(test_set), world_size))
    network = model.module if isinstance(model, DistributedDataParallel) else model
    if world_size > 1:
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
    network.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    with torch.no_grad():
        for images, labels in DataLoader(shard, batch_size=256):
            right = network(images.to(device)).argmax(dim=1) == labels.to(device)
            counts += torch.tensor([int(right.sum()), len(labels)], device=device)
    if world_size > 1:
        dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


def compute_loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of images that are all moved by up to one pixel."""
    padded = functional.pad(images, (1, 1, 1, 1))
    across, down = (int(offset) for offset in torch.randint(0, 3, (2,)))
    scores = model(padded[:, :, down : down + 8, across : across + 8])
    return functional.cross_entropy(scores, labels, label_smoothing=0.05)


class Net(nn.Module):  # type: ignore[misc]  # torch is not needed for checking types
    """Two convolutions and two linear layers for 8 x 8 images in ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.judge = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.25), nn.Linear(768, 96), nn.ReLU(), nn.Linear(96, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one score a class and image."""
        scores: torch.Tensor = self.judge(self.features(images))
        return scores


if __name__ == "__main__":
    main()
