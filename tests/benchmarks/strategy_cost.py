"""What ``strategy("ddp")`` costs a training: the ResNet-18 recipe's step under it and under a loop
written by hand, step by step in turns within one run of two gloo ranks. It judges no launcher.

The same loop by hand runs a second time: where its ratio differs from 1, so may the other. CPU
time is given beside it, which a loaded machine disturbs less.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.alone import Figures, Row
from benchmarks.measure import Spread
from benchmarks.ranks import Job, bare_environment, places

TARGET = 0.99
"""Steps a second under the strategy, at least so many of those by hand."""

PARTS = 10

SCRIPT = """
import itertools, json, sys, time
import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from distconsole_training import barrier, setup, strategy
from distconsole_training.recipes import cifar10
from distconsole_training.recipes.images import ResNet18, augment, scale_pixels

steps, batch, width = (int(word) for word in sys.argv[1:])
torch.set_num_threads(1)
WARM_UP = 12
EPOCH_STEPS = 8

def made():
    torch.manual_seed(0)
    model = ResNet18(cifar10.CLASSES, cifar10.EDGE, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    return model, optimizer

def by_hand(world, images, model, optimizer):
    network = DistributedDataParallel(model)
    sampler = DistributedSampler(images, world.world_size, world.rank)
    loader = DataLoader(images, batch, sampler=sampler, collate_fn=cifar10.pass_batch)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs = augment(scale_pixels(inputs, world.device))
            loss = functional.cross_entropy(network(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield
        epoch += 1

def by_strategy(world, images, model, optimizer):
    way = strategy("ddp")
    network, optimizer = way.prepare(model, optimizer)
    loader = way.loader(images, batch, collate_fn=cifar10.pass_batch)
    while True:
        for inputs, labels in loader:
            inputs = augment(scale_pixels(inputs, world.device))
            way.step(functional.cross_entropy(network(inputs), labels))
            yield

with setup() as world:
    images, _ = cifar10.generate(batch * world.world_size * EPOCH_STEPS, 1)
    kinds = {"hand": by_hand, "again": by_hand, "ours": by_strategy}
    models = {name: made() for name in kinds}
    running = {name: kinds[name](world, images, *models[name]) for name in kinds}
    seconds = {name: [] for name in (*kinds, *(f"{kind} cpu" for kind in kinds))}
    orders = list(itertools.permutations(kinds))
    for number in range(WARM_UP + steps):
        for name in orders[number % len(orders)]:
            torch.manual_seed(number)  # all of them crop and flip alike
            barrier()
            began, cpu = time.perf_counter(), time.process_time()
            next(running[name])
            seconds[name].append(time.perf_counter() - began)
            seconds[f"{name} cpu"].append(time.process_time() - cpu)
    states = [model.state_dict().values() for model, _ in models.values()]
    far = max(float((one - other).abs().max()) for one, *others in zip(*states) for other in others)
    if world.rank == 0:
        kept = {name: found[WARM_UP:] for name, found in seconds.items()}
        print(json.dumps({**kept, "far": far}))
"""


def measure(steps: int = 400, ranks: int = 2, batch: int = 16, width: int = 16) -> dict[str, Any]:
    """Return the ratio of the steps a second, and the seconds of a step.

    Raises:
        RuntimeError: if the loops did not learn the same: then they are not comparable.
    """
    words = [sys.executable, "-c", SCRIPT, *map(str, (steps, batch, width))]
    with Job([(words, bare_environment() | place) for place in places(ranks)]) as job:
        found = json.loads(job.result())
    if found["far"]:
        raise RuntimeError(f"the loops ended {found['far']} apart")
    return {
        "ratio": _ratio(found["hand"], found["ours"]),
        "noise": _ratio(found["hand"], found["again"]),
        "cpu_ratio": _ratio(found["hand cpu"], found["ours cpu"]),
        "cpu_noise": _ratio(found["hand cpu"], found["again cpu"]),
        "hand_seconds": Spread.of(found["hand"]),
        "ours_seconds": Spread.of(found["ours"]),
        "steps": steps,
        "ranks": ranks,
        "batch": batch,
        "width": width,
        "target": TARGET,
    }


def _ratio(by_hand: Sequence[float], other: Sequence[float]) -> Spread:
    """Return the median over all steps, with the lowest and highest of ten parts of the run."""
    over = [hand / one for hand, one in zip(by_hand, other, strict=True)]
    size = max(1, len(over) // PARTS)
    parts = [
        statistics.median(over[first : first + size])
        for first in range(0, len(over) - size + 1, size)
    ]
    return Spread(statistics.median(over), min(parts), max(parts))


def rows(figures: Figures) -> list[Row]:
    """Return the summary's row."""
    ratio, noise, ours, cpu, cpu_noise = (
        Spread(**figures[name])
        for name in ("ratio", "noise", "ours_seconds", "cpu_ratio", "cpu_noise")
    )
    return [
        Row(
            'strategy("ddp"), ResNet-18: steps/s over a loop by hand',
            f"{ratio.text(1, 4)}, by CPU time {cpu.text(1, 4)}, steps of {ours.text(1e3, 0)} ms",
            f"the loop over itself {noise.text(1, 4)}, by CPU time {cpu_noise.text(1, 4)}",
            f"≥ {figures['target']}",
            ratio.median >= figures["target"],
        )
    ]
