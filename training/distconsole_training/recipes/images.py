"""ResNet-18 (He et al. 2016, arXiv:1512.03385) on images: shared by the recipes ``cifar10`` and ``imagefolder``.

Changing the strategy changes one word; the loop in ``train`` stays.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from distconsole_training import (
    CheckpointError,
    SetupError,
    evaluate,
    reduce_mean,
    report,
    setup,
    strategy,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from distconsole_training import Batches, Strategy, World

LARGE_FROM = 64
"""Images from this edge length on are first made four times smaller, as in the paper."""


class DataError(RuntimeError):
    """The data is missing or malformed."""


def run(
    parser: argparse.ArgumentParser,
    read: Callable[[argparse.Namespace], tuple[Any, Any, int]],
    collate_fn: Any = None,
) -> None:
    """Train, test and print the results; ``read`` returns images to train on, to test with, and the number of classes."""
    options = parser.parse_args()
    try:
        with setup(engine="horovod" if options.strategy == "horovod" else "auto") as world:
            torch.manual_seed(options.seed)
            train_set, test_set, classes = read(options)
            model = ResNet18(classes, options.edge, options.width)
            way = strategy(
                options.strategy,
                world=world,
                precision=options.precision,
                compression=options.compression,
                accumulate=options.accumulate,
                clip=options.clip,
            )
            train(options, way, model, train_set, test_set, collate_fn)
    except (SetupError, CheckpointError, DataError) as error:
        sys.exit(f"{parser.prog}: {error}")


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options that every recipe for images has."""
    found = argparse.ArgumentParser(
        name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--data", default="generated", help="archive or folder; 'generated': made-up images")
    add("--strategy", default="single", choices=("single", "dp", "ddp", "horovod"))
    add("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    add("--compression", default="none", choices=("none", "fp16", "bf16"), help="of gradients")
    add("--accumulate", type=int, default=1, help="batches that make one step")
    add("--clip", type=float, help="largest norm of the gradients")
    add("--epochs", type=int, default=20)
    add("--batch", type=int, default=128, help="images that a rank reads at once")
    add("--lr", type=float, default=0.1, help="for 128 images a step; it grows with them")
    add("--width", type=int, default=64, help="channels of the first stage")
    add("--limit", type=int, help="only so many images to train and to test with")
    add("--workers", type=int, default=0, help="processes that load data, for each rank")
    add("--seed", type=int, default=0)
    add("--checkpoints", type=Path, metavar="FOLDER", help="kept here, and gone on from")
    add("--result", type=Path, metavar="FILE", help="JSON of the last figures")
    return found


def train(
    options: argparse.Namespace,
    way: Strategy,
    model: nn.Module,
    train_set: Any,
    test_set: Any,
    collate_fn: Any,
) -> None:
    """Train for ``--epochs`` epochs, test after each, print and report the results."""
    world = way.world
    loading = {"num_workers": options.workers, "collate_fn": collate_fn}
    lr = options.lr * options.batch * options.accumulate * world.world_size / 128
    optimizer = torch.optim.SGD(
        model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    network, optimizer = way.prepare(model, optimizer)
    loader = way.loader(train_set, options.batch, seed=options.seed, **loading)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=options.epochs * loader.steps, pct_start=0.2
    )
    kept = way.checkpoints(options.checkpoints, schedule=schedule) if options.checkpoints else None
    torch.manual_seed(options.seed + world.rank)  # the ranks crop and flip differently
    if kept is not None and (epoch := kept.resume()) and world.rank == 0:
        print(f"going on after epoch {epoch}", flush=True)
    began, images_seen = time.monotonic(), 0
    for epoch in range(loader.epoch, options.epochs):
        epoch_began = time.monotonic()
        train_loss, images = train_epoch(way, network, loader, schedule)
        images_s = images / (time.monotonic() - epoch_began)
        images_seen += images
        found = evaluate(network, test_set, judge, batch_size=500, **loading)
        seconds = time.monotonic() - began
        figures = {
            "epoch": epoch + 1,
            "seconds": seconds,
            "samples_s": images_seen / seconds,
            "train_loss": train_loss,
            "test_loss": found["loss"] / found["images"],
            "test_accuracy": found["accuracy"] / found["images"],
        }
        report(
            images_s=images_s,
            test_loss=figures["test_loss"],
            test_accuracy=figures["test_accuracy"],
        )
        if kept is not None:
            kept.save(epoch + 1)
        if world.rank == 0:
            tell(options, world, figures, found)


def train_epoch(
    way: Strategy, network: nn.Module, loader: Batches, schedule: Any
) -> tuple[float, int]:
    """Train for one epoch; return the last loss, as the ranks' mean, and how many images all of them read."""
    world, seen = way.world, 0
    loss = torch.zeros((), device=world.device)
    for images, labels in loader:
        inputs = augment(scale_pixels(images, world.device))
        loss = functional.cross_entropy(network(inputs), labels)
        if way.step(loss):
            schedule.step()
        seen += len(labels) * world.world_size
    return reduce_mean(loss.item()), seen  # ``item`` waits for the device


def tell(
    options: argparse.Namespace, world: World, figures: dict[str, float], found: dict[str, float]
) -> None:
    """Print the figures of an epoch, and leave them in a file for a program."""
    print(
        f"epoch {figures['epoch']}: train loss {figures['train_loss']:.4f}, "
        f"test loss {figures['test_loss']:.4f}, test accuracy {figures['test_accuracy']:.2%} "
        f"({found['accuracy']:.0f} of {found['images']:.0f}) after {figures['seconds']:.1f} s, "
        f"{figures['samples_s']:.0f} images/s",
        flush=True,
    )
    if options.result is not None:
        run = {"strategy": options.strategy, "precision": options.precision}
        place = {"world_size": world.world_size, "device": str(world.device)}
        options.result.write_text(json.dumps({**run, **place, **figures}) + "\n", encoding="utf-8")


def judge(model: nn.Module, batch: Any) -> dict[str, Any]:
    """Return sums over a batch: images, correct answers, loss."""
    images, labels = batch
    scores = model(scale_pixels(images, images.device))
    return {
        "images": len(labels),
        "accuracy": (scores.argmax(dim=1) == labels).sum(),
        "loss": functional.cross_entropy(scores, labels, reduction="sum"),
    }


def scale_pixels(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return bytes of 0 to 255 as numbers of about -2 to 2."""
    return (images.to(device).float() / 255 - 0.5) / 0.25


def augment(images: torch.Tensor, reach: int = 4) -> torch.Tensor:
    """Return the images, each moved by up to ``reach`` pixels, and half of them mirrored."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (reach,) * 4)
    down, across = torch.randint(0, 2 * reach + 1, (2, count, 1), device=images.device)
    rows = (torch.arange(height, device=images.device) + down)[:, None, :, None]
    columns = torch.arange(width, device=images.device).expand(count, width)
    is_mirrored = torch.rand(count, 1, device=images.device) < 0.5
    columns = torch.where(is_mirrored, width - 1 - columns, columns) + across
    every = torch.arange(count, device=images.device)[:, None, None, None]
    channels = torch.arange(3, device=images.device)[None, :, None, None]
    return padded[every, channels, rows, columns[:, None, None, :]]


class Block(nn.Module):  # type: ignore[misc]  # torch is not needed for checking types
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Take (N, inputs, H, W), return (N, outputs, H / stride, W / stride)."""
        inner = functional.relu(self.first_norm(self.first(images)))
        inner = self.second_norm(self.second(inner))
        return functional.relu(inner + self.shortcut(images))


class ResNet18(nn.Module):  # type: ignore[misc]  # torch is not needed for checking types
    """Eighteen layers.

    Args:
        edge: The images' height and width in pixels.
        width: Channels of the first of four stages, 64 in the paper; each stage doubles them.
    """

    def __init__(self, classes: int = 10, edge: int = 32, width: int = 64) -> None:
        super().__init__()
        if edge < LARGE_FROM:
            stem = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
        else:
            stem = [nn.Conv2d(3, width, 7, 2, padding=3, bias=False)]
        self.stem = nn.Sequential(*stem, nn.BatchNorm2d(width), nn.ReLU())
        self.shrink = nn.MaxPool2d(3, 2, padding=1) if edge >= LARGE_FROM else nn.Identity()
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        stages = []
        for number, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
            stages.append(Block(inputs, outputs, stride=1 if number == 0 else 2))
            stages.append(Block(outputs, outputs, stride=1))
        self.stages = nn.Sequential(*stages)
        self.judge = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Take (N, 3, H, W), return one score a class, (N, classes)."""
        maps = self.stages(self.shrink(self.stem(images)))
        scores: torch.Tensor = self.judge(maps.mean(dim=(2, 3)))
        return scores
