"""What ``run --verify-sync`` costs a training: the steps in which ranks check themselves, against the
steps around them, in DDP jobs. It decides nothing about what is found.

A check costs the same however seldom it is made, so it is made often here, and its cost is told as
the share that it would have of the time with a check each 100 steps. The same is taken of steps
without a check: that is the noise.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, at_most, text
from benchmarks.hook_cost import Bench
from benchmarks.measure import Spread
from distconsole_training import records

TARGET = 0.01
EACH = 100
"""Steps between two checks that the share is told for."""

EVERY = 10
"""Steps between two checks in the job that is measured."""

MODELS = ("mlp", "convolutions")

SCRIPT = """
import json, statistics, sys, time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

kind, every = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
if kind == "mlp":
    model = nn.Sequential(*(m for _ in range(2) for m in (nn.Linear(128, 128), nn.ReLU())))
    sample = (128,)
else:
    # As many parameters as a ResNet-18 has, 62, on small pictures.
    block = lambda a, b: (nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
    layers = [m for _ in range(19) for m in block(16, 16)]
    model = nn.Sequential(
        *block(3, 16), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    sample = (3, 8, 8)
model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
data = DataLoader(TensorDataset(torch.randn(2048, *sample)), batch_size=8)

def train(steps):
    times, last = [], time.perf_counter()
    while len(times) < steps:
        for (inputs,) in data:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) == steps:
                return times

train(2 * every)  # the first check looks for the modules
for line in sys.stdin:
    times = train(int(line) * every)
    plain = statistics.median(times)
    # Against the steps next to it, so that a slow moment of the machine weighs on both.
    extra = lambda place: statistics.median(
        times[n] - (times[n - 1] + times[n - 2]) / 2 for n in range(place or every, len(times), every))
    print(json.dumps([extra(0), extra(every // 2), plain]), flush=True)
torch.distributed.destroy_process_group()
"""


def measure(rounds: int = 5, checks: int = 30, ranks: int = 2) -> dict[str, Any]:
    """Return seconds a check and the share of the time, by model."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), ranks)
        return {
            "models": {kind: _compare(bench, kind, rounds, checks) for kind in MODELS},
            "target": TARGET,
            "each": EACH,
        }


def _compare(bench: Bench, kind: str, rounds: int, checks: int) -> dict[str, Any]:
    kinds = {"verified": {records.ENV_VERIFY: str(EVERY)}}
    with bench.jobs(SCRIPT, [kind, str(EVERY)], kinds) as jobs:
        said = [json.loads(jobs["verified"].ask(checks)) for _ in range(rounds)]
    return {
        "check_seconds": Spread.of([check for check, _, _ in said]),
        "step_seconds": Spread.of([step for _, _, step in said]),
        "share": Spread.of([check / step / EACH for check, _, step in said]),
        "floor": Spread.of([floor / step / EACH for _, floor, step in said]),
    }


def rows(figures: Figures) -> list[Row]:
    return [
        Row(
            f"verification each {figures['each']} steps, {kind}",
            f"{text(found['share'], 100, 3)} % of the time, "
            f"{text(found['check_seconds'], 1e3)} ms a check",
            f"a step without one {text(found['floor'], 100, 3)} %, "
            f"steps of {text(found['step_seconds'], 1e3)} ms",
            *at_most(100 * figures["target"], 100 * found["share"]["median"], " %"),
        )
        for kind, found in figures["models"].items()
    ]
