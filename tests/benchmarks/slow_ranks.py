"""Who is named where a rank of real ones is late by a few milliseconds, how soon, and whether the price is right.

Ranks on this machine train under each strategy, and sleep where a model would work, so that more of them than
there are cores disturb each other little. Phases without a fault and with one take turns, and one watch sees them
all, as in a run; the price is compared with what the step is shorter by in the phases around it. Jobs of two ranks
run two at a time. It judges no hook: ``hook_cost`` does.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from benchmarks.alone import Figures, Row
from benchmarks.hook_cost import Bench
from benchmarks.measure import Spread
from distconsole.model.run_events import Window
from distconsole.runs.detectors.stragglers import StragglerWatch
from distconsole_agent.journal.rings import Ring
from distconsole_agent.journal.windows import Offset, StepMemory, window
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

class Samples(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            late("data")
            yield torch.randn(32, 64), torch.randn(32, 64)

class SGD(torch.optim.SGD):
    def step(self, closure=None):
        late("optimizer")
        return super().step(closure)

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
        # Behind the first layer: in front of it the first block's input needs no gradient.
        return self.down(torch.relu(Slow.apply(self.up(x), SECONDS / 12, self.first)))

SECONDS = float(sys.argv[4]) / 1000
model = nn.Sequential(*(Block(number) for number in range(4)))
schedule = None
batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=None))
if strategy == "horovod":
    optimizer = SGD(model.parameters(), lr=1e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
elif strategy == "pp":
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    part = nn.Sequential(*(Block(number) for number in range(max(1, 4 // world))))
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = SGD(part.parameters(), lr=1e-4)
elif strategy == "tp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (world,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = SGD(model.parameters(), lr=1e-4, foreach=False)
elif strategy == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = SGD(model.parameters(), lr=1e-4)
else:
    model = nn.parallel.DistributedDataParallel(model)
    if strategy == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=1e-4)
    else:
        optimizer = SGD(model.parameters(), lr=1e-4)

def step():
    late("between")
    inputs, wanted = next(batches)
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

def steps_in(seconds):
    for _ in range(5):
        step()
    began = time.monotonic()
    for _ in range(10):
        step()
    each = torch.tensor([(time.monotonic() - began) / 10])
    if strategy == "horovod":
        each = hvd.allreduce(each)
    else:
        dist.broadcast(each, 0)
    return max(1, int(seconds / float(each)))

in_a_second = steps_in(1.0)
for phase in phases:
    now.update(phase)
    began = time.monotonic_ns()
    for _ in range(int(phase["seconds"] * in_a_second)):
        step()
    if rank == 0:
        with open(marks, "a") as file:
            file.write(json.dumps([began, time.monotonic_ns()]) + chr(10))
"""
STRATEGIES = ("ddp", "fsdp2", "zero", "tp", "pp", "horovod")
RANKS_AT_ONCE = 4
PLACES_OF_MANY = 3
"""Of more than two ranks so many places are tried, others under each strategy: ten minutes in all."""
PLACES = ("data", "forward", "backward", "optimizer", "between")
WITHIN = 0.2
"""The price differs by at most so much of what the same run without the fault shows."""
HEALTHY_SHARE = 0.4
"""A phase without a fault lasts so much of one with it: the medians of five seconds must forget."""
LATE_NS = 3 * 10**9
"""What is named so soon after a fault is of it."""
FORGOTTEN_NS = 10**9
"""Steps of the first second of a phase are not compared."""


def phases_of(seconds: float, lates: Sequence[float], ranks: int, first: int) -> list[Any]:
    """Return a phase without a fault around each with one; places, ranks and milliseconds late begin at ``first``."""
    calm = {"late": 0.0, "place": "", "rank": -1, "seconds": HEALTHY_SHARE * seconds}
    found: list[Any] = [calm | {"seconds": seconds / 2}]  # with the windows that warm up
    for number in range(first, first + (len(PLACES) if ranks == 2 else PLACES_OF_MANY)):
        late, place = lates[number % len(lates)] / 1000, PLACES[number % len(PLACES)]
        found.append({"late": late, "place": place, "rank": number % ranks, "seconds": seconds})
        found.append(calm)
    return found


def train(strategy: str, ranks: int, phases: Sequence[Any], step_ms: float) -> list[Any]:
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
        commands = bench.commands(script, words, rings, {})
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
    windows = sorted(_windows(records, times[0][0], times[-1][1]), key=lambda each: each.t)
    watch, named = StragglerWatch(), []
    for each in windows:
        named += [(each.t * 1e9, found) for found in watch.add(each)]
    prices = {id(found): last for (_, found), last in zip(named, watch.told, strict=True)}
    for number, ((began, ended), phase) in enumerate(zip(times, phases, strict=True)):
        fault = phase["rank"] >= 0
        since = began if fault or not number else began + LATE_NS
        here = [one for one in named if since <= one[0] < ended + (LATE_NS if fault else 0)]
        steps = [
            each[7] * 1e3 for rank in records.values() for each in rank
            if each[3] == STEP and began + FORGOTTEN_NS < each[2] <= ended
        ]  # fmt: skip
        yield {
            **phase,
            "step_ms": statistics.median(steps),
            "named": [(round((t - began) / 1e9, 1), one.ranks, one.part) for t, one in here],
            "cost_ms": prices[id(here[0][1])].cost_ms if here else 0.0,
            "windows": [to_builtins(one) for one in windows if began < one.t * 1e9 <= ended],
        }


def _windows(records: dict[int, list[Any]], began: int, ended: int) -> Iterator[Window]:
    for rank, taken in records.items():
        memory, offset = StepMemory(), Offset(0)
        lately = [each for each in taken if began < each[2] <= ended]
        for _, group in groupby(lately, key=lambda each: (each[2] - began) // 10**9):
            body = window(rank, piece := list(group), (), offset, memory, 0)
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


def outcome(found: Sequence[Any], place: int) -> dict[str, Any]:
    """Return of a phase with a fault whether it was named, when, and its price beside the true one."""
    here = found[place]
    true = here["step_ms"] - (found[place - 1]["step_ms"] + found[place + 1]["step_ms"]) / 2
    names = here["named"]
    right = [seconds for seconds, ranks, _ in names if tuple(ranks) == (here["rank"],)]
    return {
        "true_ms": true,
        "wrong": len(names) - len(right),
        "seconds": right[0] if right else None,
        "near": bool(right) and abs(here["cost_ms"] - true) <= WITHIN * true,
    }


def line_of(found: Sequence[Any], place: int) -> str:
    """Return what a phase showed."""
    here = found[place]
    head = f"  {here['strategy']}-{here['ranks']} "
    if here["rank"] < 0:
        return f"{head}healthy, {here['step_ms']:.1f} ms: {here['named'] or 'nobody'}"
    true = outcome(found, place)["true_ms"]
    return (
        f"{head}{1000 * here['late']:.0f} ms in {here['place']} of rank {here['rank']}: {here['named'] or 'nobody'}, "
        f"price {here['cost_ms']:.2f} ms, truly {true:.2f} of {here['step_ms']:.1f} ms"
    )


def measure(
    only: str = ",".join(STRATEGIES),
    ranks: str = "2,4",
    seconds: float = 10.0,
    ms: float = 50.0,
    late: str = "2,10",
) -> dict[str, Any]:
    """Return the phases of each job: ``ms`` are those of a step, ``late`` those by which a rank is late."""
    lates = [float(each) for each in late.split(",")]
    jobs: list[list[Any]] = []
    for world in map(int, ranks.split(",")):

        def try_one(numbered: tuple[int, str], world: int = world) -> list[Any]:
            number, strategy = numbered
            phases = phases_of(seconds, lates, world, PLACES_OF_MANY * number)
            found = train(strategy, world, phases, ms)
            return [{"strategy": strategy, "ranks": world, **each} for each in found]

        with ThreadPoolExecutor(max(1, RANKS_AT_ONCE // world)) as pool:
            for found in pool.map(try_one, enumerate(only.split(","))):
                jobs.append(found)
                print("\n".join(line_of(found, at) for at in range(len(found))), flush=True)
    return {"jobs": jobs}


def rows(figures: Figures) -> list[Row]:
    """Return how many faults were named, wrongly named and not, by strategy, and the prices."""
    jobs: dict[str, list[Any]] = {}
    for job in figures["jobs"]:
        jobs.setdefault(f"{job[0]['strategy']}, {job[0]['ranks']} ranks", []).append(job)
    return [row_of(name, of) for name, of in (*jobs.items(), ("all", figures["jobs"]))]


def row_of(name: str, jobs: Sequence[Sequence[Any]]) -> Row:
    told = [
        (outcome(job, place), here["cost_ms"])
        for job in jobs
        for place, here in enumerate(job)
        if here["rank"] >= 0
    ]
    calm = sum(len(here["named"]) for job in jobs for here in job if here["rank"] < 0)
    named = [(each, price) for each, price in told if each["seconds"] is not None]
    wrong = sum(each["wrong"] for each, _ in told) + calm
    silent = sum(each["seconds"] is None and not each["wrong"] for each, _ in told)
    found = f"{len(named)} of {len(told)} named, {wrong} wrong, {silent} silent"
    if not named:
        return Row(f"who is slow, {name}", found)
    times = Spread.of([each["seconds"] for each, _ in named])
    price = statistics.median(price / each["true_ms"] for each, price in named)
    near = sum(each["near"] for each, _ in told)
    prices = f"{near} prices within {WITHIN:.0%}, price over the true one {price:.2f}"
    return Row(f"who is slow, {name}", f"{found}, after {times.text(1, 1)} s", prices)
