"""Goes on from the last checkpoint to a step, writes another, and evaluates on uneven shards."""

import json
import os
import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from distconsole_training import evaluate, setup, strategy

SAMPLES = 120
EPOCHS = 3
GLOBAL_BATCH = 12


def main(folder, last_step):
    """Train up to ``last_step`` and write what this rank knows then."""
    said = {"order": []}
    with setup() as world:
        torch.manual_seed(5)
        random.seed(100 + world.rank)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, affine=False), nn.Linear(16, 3))
        model[1].eval()  # its statistics stay out of the training, and in the evaluation
        way = strategy("ddp" if world.world_size > 1 else "single")
        network, optimizer = way.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        )
        data = samples()
        loader = way.loader(data, global_batch=GLOBAL_BATCH, seed=2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)
        kept = way.checkpoints(folder, keep=2, schedule=schedule)
        said["resumed"] = step = kept.resume()
        said["python"] = random.random()
        for _ in range(loader.epoch, EPOCHS):
            for inputs, labels in loader:
                way.step(functional.cross_entropy(network(inputs), labels))
                schedule.step()
                step += 1
                said["order"].append(sorted(inputs[:, 0].tolist()))
                if step == last_step:
                    break
            if step == last_step:
                break
        path = kept.save(step)
        said["path"] = path and path.name
        said["next"] = random.random()
        said["weights"] = [p for w in model.parameters() for p in w.detach().reshape(-1).tolist()]
        said["lr"] = schedule.get_last_lr()
        said["place"] = loader.state_dict()
        # Judged by fixed weights, so that nothing but the sharding can make a difference.
        fixed(model)
        model[1].running_mean += world.rank  # as ranks' statistics drift apart
        uneven = TensorDataset(*(tensor[:103] for tensor in data.tensors))
        said["found"] = evaluate(network, uneven, judge, batch_size=10)
        said["few"] = evaluate(network, TensorDataset(*data[:5]), judge, batch_size=4)
        said["mode"] = [module.training for module in model.modules()]
        results = Path(os.environ["RESULTS"], f"{world.rank}.json")
    results.write_text(json.dumps(said))


def samples():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 8, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (SAMPLES,), generator=generator))


def fixed(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))


def judge(model, batch):
    inputs, labels = batch
    scores = model(inputs)
    return {
        "samples": len(labels),
        "right": (scores.argmax(dim=1) == labels).sum(),
        "loss": functional.cross_entropy(scores, labels, reduction="sum"),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
