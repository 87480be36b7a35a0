"""ResNet-18 on CIFAR-10, by any strategy, under any launcher.

``python -m distconsole_training.recipes.cifar10 --data cifar-10-python.tar.gz`` trains on one
device; ``distconsole run --module distconsole_training.recipes.cifar10 --strategy ddp …`` on all
of them. ``--data generated`` needs no file. Changing the strategy changes one word; the loop in
``train`` stays.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
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
from distconsole_training.recipes import cifar
from distconsole_training.recipes.resnet import ResNet18

if TYPE_CHECKING:
    from distconsole_training import World

GENERATED = (50000, 10000)
"""As many images as CIFAR-10 has."""


def main() -> None:
    """Train, test and say how well it went."""
    options = parser(__doc__).parse_args()
    try:
        with setup(engine="horovod" if options.strategy == "horovod" else "auto") as world:
            torch.manual_seed(options.seed)
            train_set, test_set = data(options)
            model = ResNet18(cifar.CLASSES, cifar.EDGE, options.width)
            train(options, world, model, train_set, test_set)
    except (SetupError, CheckpointError, cifar.DataError) as error:
        sys.exit(f"cifar10: {error}")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options that every recipe for images has."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
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


def data(options: argparse.Namespace) -> tuple[cifar.Images, cifar.Images]:
    """Return the images to train on and those to test with, the same on every rank."""
    if options.data == "generated":
        count, test_count = (min(options.limit or most, most) for most in GENERATED)
        return cifar.generate(count, test_count)
    return cifar.read(Path(options.data), options.limit)


def train(
    options: argparse.Namespace,
    world: World,
    model: torch.nn.Module,
    train_set: Any,
    test_set: Any,
    collate_fn: Any = cifar.pass_batch,
) -> None:
    """Train for ``--epochs`` epochs, test after each, print and report what came of it."""
    way = strategy(
        options.strategy,
        precision=options.precision,
        compression=options.compression,
        accumulate=options.accumulate,
        clip=options.clip,
    )
    loading = {"num_workers": options.workers, "collate_fn": collate_fn}
    images_a_step = options.batch * options.accumulate * world.world_size
    lr = options.lr * images_a_step / 128
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
        loss = torch.zeros((), device=world.device)
        epoch_began, seen_before = time.monotonic(), images_seen
        for images, labels in loader:
            inputs = augment(scale_pixels(images, world.device))
            loss = functional.cross_entropy(network(inputs), labels)
            if way.step(loss):
                schedule.step()
            images_seen += len(labels) * world.world_size
        train_loss = reduce_mean(loss.item())  # what is under way on the device is done now
        images_s = (images_seen - seen_before) / (time.monotonic() - epoch_began)
        found = evaluate(network, test_set, judge, batch_size=500, **loading)
        seconds = time.monotonic() - began
        figures = {
            "strategy": options.strategy,
            "precision": options.precision,
            "world_size": world.world_size,
            "device": str(world.device),
            "epoch": epoch + 1,
            "seconds": seconds,
            "samples_s": images_seen / seconds,
            "train_loss": train_loss,
            "test_loss": found["loss"] / found["images"],
            "test_accuracy": found["correct"] / found["images"],
        }
        report(
            test_accuracy=figures["test_accuracy"],
            test_loss=figures["test_loss"],
            images_s=images_s,
        )
        if kept is not None:
            kept.save(epoch + 1)
        if world.rank == 0:
            tell(figures, found, options.result)


def tell(figures: dict[str, Any], found: dict[str, float], path: Path | None) -> None:
    """Print what an epoch came to, and leave it in a file for a program."""
    print(
        f"epoch {figures['epoch']}: train loss {figures['train_loss']:.4f}, "
        f"test loss {figures['test_loss']:.4f}, test accuracy {figures['test_accuracy']:.2%} "
        f"({found['correct']:.0f} of {found['images']:.0f}) after {figures['seconds']:.1f} s, "
        f"{figures['samples_s']:.0f} images/s",
        flush=True,
    )
    if path is not None:
        path.write_text(json.dumps(figures) + "\n", encoding="utf-8")


def judge(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    """Return sums over a batch: images, correct answers, loss."""
    images, labels = batch
    scores = model(scale_pixels(images, images.device))
    return {
        "images": len(labels),
        "correct": (scores.argmax(dim=1) == labels).sum(),
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


if __name__ == "__main__":
    main()
