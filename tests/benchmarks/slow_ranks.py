"""Who is named where a rank of real ones is late by a few milliseconds, how soon, and whether the price is right.

Ranks on this machine train under each strategy, and sleep where a model would work, so that more of them than
there are cores disturb each other little. A phase without a fault lies around each with one; the price is compared
with what the step is shorter by in the phase before. It judges no hook: ``hook_cost`` does.

``python -m benchmarks.slow_ranks [--json FILE] [--only ddp,tp] [--ranks N] [--seconds S] [--ms M]``
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from benchmarks.hook_cost import Bench
from distconsole.model.run_events import Window
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.detectors.stragglers import StragglerWatch
from distconsole_agent.journal.rings import Ring
from distconsole_agent.journal.windows import Offset, StepMemory, cut, window
from distconsole_training.records import STEP

SCRIPT = """
import json, sys, time, torch
from torch import nn
strategy, phases, marks = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
torch.manual_seed(0)
if strategy == "horovod":
    import horovod.torch as hvd
    hvd.init()
    rank, world = hvd.rank(), hvd.size()
else:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
now = {"late": 0.0, "place": "", "rank": -1}

def late(place):
    if now["rank"] == rank and now["place"] == place:
        time.sleep(now["late"])

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds, last):
        ctx.seconds, ctx.last = seconds, last
        time.sleep(seconds)
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        time.sleep(2 * ctx.seconds)
        if ctx.last:
            late("backward")
        return g, None, None

class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.first = not number
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)
    def forward(self, x):
        return self.down(torch.relu(self.up(Slow.apply(x, SECONDS / 12, self.first))))

SECONDS = float(sys.argv[4]) / 1000
model = nn.Sequential(*(Block(number) for number in range(4)))
schedule = None
inputs, wanted = torch.randn(32, 64), torch.randn(32, 64)
if strategy == "horovod":
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
elif strategy == "pp":
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    part = nn.Sequential(*(Block(number) for number in range(max(1, 4 // world))))
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-4)
elif strategy == "tp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (world,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
elif strategy == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
else:
    model = nn.parallel.DistributedDataParallel(model)
    if strategy == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

def step():
    late("between")
    optimizer.zero_grad()
    late("forward")
    if schedule is not None:
        if rank == 0:
            schedule.step(inputs)
        elif rank == world - 1:
            schedule.step(target=wanted)
        else:
            schedule.step()
    else:
        nn.functional.mse_loss(model(inputs), wanted).backward()
    optimizer.step()

for phase in phases:
    now.update(phase)
    began = time.monotonic_ns()
    for _ in range(phase["steps"]):
        step()
    if rank == 0:
        with open(marks, "a") as file:
            file.write(json.dumps([began, time.monotonic_ns()]) + chr(10))
"""
STRATEGIES = ("ddp", "fsdp2", "zero", "tp", "pp", "horovod")
PLACES = ("forward", "backward")
WITHIN = 0.2
"""The price differs by at most so much of what the same run without the fault shows."""


def phases_of(seconds: float, step_ms: float, lates: Sequence[float], rank: int) -> list[Any]:
    """Return one phase without a fault and one with it, by lateness in milliseconds and place."""
    steps = int(seconds * 1000 / step_ms)
    found: list[Any] = []
    for late in lates:
        for place in PLACES:
            found.append({"late": 0.0, "place": "", "rank": -1, "steps": steps // 2})
            found.append({"late": late / 1000, "place": place, "rank": rank, "steps": steps})
    return [*found, {"late": 0.0, "place": "", "rank": -1, "steps": steps // 2}]


def measure(strategy: str, ranks: int, phases: Sequence[Any], step_ms: float) -> list[Any]:
    """Return of each phase who was named after how many seconds, its price, and the step's milliseconds."""
    with (
        tempfile.TemporaryDirectory() as name,
        tempfile.TemporaryDirectory(dir="/dev/shm") as rings,
    ):
        folder = Path(name)
        bench = Bench(folder, ranks)
        script, marks = folder / "job.py", folder / "marks"
        script.write_text(SCRIPT, encoding="utf-8")
        words = [strategy, json.dumps(phases), str(marks), str(step_ms)]
        commands = bench._commands(script, words, rings, {})
        if strategy == "horovod":
            program = shutil.which("horovodrun", path=str(Path(sys.executable).parent)) or ""
            launch = [program, "-np", str(ranks), "--gloo", *commands[0][0]]
            drop = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            env = {name: value for name, value in commands[0][1].items() if name not in drop}
            commands = [(launch, env | {"HOROVOD_CYCLE_TIME": "0.5"})]
        running = [subprocess.Popen(each, env=env) for each, env in commands]
        try:
            if any(each.wait() for each in running):
                raise RuntimeError(f"{strategy}: a rank failed")
        finally:
            for each in running:
                each.kill()
        times = [json.loads(line) for line in marks.read_text().splitlines()]
        return list(_judged(rings, times, phases))


def _judged(rings: str, times: Sequence[Any], phases: Sequence[Any]) -> Iterator[dict[str, Any]]:
    records: dict[int, list[Any]] = {}
    for path in sorted(Path(rings).glob("*.ring")):
        ring = Ring(str(path))
        rank = ring.refresh().rank
        taken: list[Any] = []
        while more := ring.read(final=True):
            taken += more
        records[rank] = taken
    for (began, ended), phase in zip(times, phases, strict=True):
        watch, named = StragglerWatch(), []
        windows = sorted(_windows(records, began, ended), key=lambda each: each.t)
        for each in windows:
            named += [(round(each.t - began / 1e9, 1), found) for found in watch.add(each)]
        steps = [
            each[7] * 1e3 for rank in records.values() for each in rank
            if each[3] == STEP and began + 2e9 < each[2] <= ended
        ]  # fmt: skip
        last = statistics.median(steps)
        yield {
            **phase,
            "step_ms": last,
            "named": [(t, found.ranks, found.part) for t, found in named],
            "cost_ms": _cost(watch.told),
            "windows": [to_builtins(each) for each in windows],
        }


def _cost(told: Sequence[Straggler]) -> float:
    return told[-1].cost_ms if told else 0.0


def _windows(records: dict[int, list[Any]], began: int, ended: int) -> Iterator[Window]:
    for rank, taken in records.items():
        memory, offset = StepMemory(), Offset(0)
        for piece in cut([each for each in taken if began < each[2] <= ended]):
            body = window(rank, piece, (), offset, memory, 0)
            if body is None or body["step_ms"] is None:
                continue
            waits = body.get("waited_ms")
            yield Window(
                t=piece[-1][2] / 1e9, run="r", rank=rank, step=body["step"], steps=body["steps"],
                step_ms_mean=body["step_ms"][0], step_ms_p95=body["step_ms"][1],
                data_ms=body["data_ms"], forward_ms=body["forward_ms"],
                backward_ms=body["backward_ms"], optimizer_ms=body["optimizer_ms"],
                samples_s=None, metrics={}, dropped=0, host=f"h{rank}",
                waited_ms=None if waits is None else tuple(waits),
            )  # fmt: skip


def report(found: Sequence[Any]) -> str:
    """Return a line a phase, and how many were right."""
    lines, right, near, wrong, faults = [], 0, 0, 0, 0
    for place, each in enumerate(found):
        named = each["named"]
        if each["rank"] < 0:
            wrong += len(named)
            lines.append(
                f"  {each['strategy']}-{each['ranks']} healthy {each['step_ms']:.1f} ms: {named}"
            )
            continue
        faults += 1
        true = each["step_ms"] - (found[place - 1]["step_ms"] + found[place + 1]["step_ms"]) / 2
        hit = bool(named) and all(tuple(ranks) == (each["rank"],) for _, ranks, _ in named)
        right += hit
        wrong += sum(tuple(ranks) != (each["rank"],) for _, ranks, _ in named)
        near += hit and abs(each["cost_ms"] - true) <= WITHIN * true
        lines.append(
            f"  {each['strategy']}-{each['ranks']} {1000 * each['late']:.0f} ms in {each['place']}: "
            f"{named}, price {each['cost_ms']:.2f} ms, truly {true:.2f} of {each['step_ms']:.1f} ms"
        )
    lines.append(f"named {right} of {faults}, price within 20 % {near}, wrong names {wrong}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default=",".join(STRATEGIES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--ms", type=float, default=50.0)
    parser.add_argument("--late", default="2,10")
    asked = parser.parse_args()
    found = []
    lates = [float(each) for each in asked.late.split(",")]
    for strategy in asked.only.split(","):
        phases = phases_of(asked.seconds, asked.ms, lates, asked.ranks - 1)
        measured = measure(strategy, asked.ranks, phases, asked.ms)
        found += [{"strategy": strategy, "ranks": asked.ranks, **each} for each in measured]
        print(report([each for each in found if each["strategy"] == strategy]), flush=True)
    print(report(found).splitlines()[-1])
    if asked.json:
        asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
