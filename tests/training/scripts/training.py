"""Trains one small network in many settings and says what came of each: weights, equality, sums."""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from distconsole_training import evaluate, reduce_sum, setup, strategy

SAMPLES = 102
GLOBAL_BATCH = 12
EPOCHS = 2


def main(worlds, settings):
    """Write, for each strategy and setting, what this rank ended with.

    ``worlds`` names engines, each with its strategies: ``torch=ddp;horovod=horovod``.
    """
    said = {}
    for part in worlds.split(";"):
        engine, _, names = part.partition("=")
        with setup(engine=engine) as world:
            said[engine] = [world.rank, world.world_size, world.backend, world.launcher.value]
            for name in names.split(","):
                for number, setting in enumerate(settings):
                    said[f"{name} {number}"] = trained(name, setting, world)
            results = Path(os.environ["RESULTS"], f"{world.rank}.json")
    results.write_text(json.dumps(said))


def trained(name, setting, world):
    """Train from the same start; return the weights and what evaluation says of them."""
    torch.manual_seed(world.rank)  # begins differently on each rank, and ends alike
    model = network()
    way = strategy(name, **setting)
    if world.rank == 0:
        begin(model)
    called, _ = way.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    )
    train_set = samples()
    loader = way.loader(train_set, global_batch=GLOBAL_BATCH)
    stepped = 0
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            stepped += way.step(functional.cross_entropy(called(inputs), labels))
    assert stepped == EPOCHS * loader.steps, (stepped, loader.steps)
    with TemporaryDirectory() as folder:
        kept = way.checkpoints(folder)
        kept.save(stepped)
        assert kept.resume() == stepped
    weights = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
    first = world.collectives.broadcast(weights)
    return {
        "weights": weights.tolist(),
        "differs": reduce_sum(float((weights - first).abs().max())),
        "found": evaluate(called, train_set, judge, batch_size=10),
    }


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def begin(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)


def samples():
    inputs = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())


def judge(model, batch):
    inputs, labels = batch
    scores = model(inputs)
    assert not model.training
    return {
        "samples": len(labels),
        "right": (scores.argmax(dim=1) == labels).sum(),
        "loss": functional.cross_entropy(scores, labels, reduction="sum"),
    }


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
