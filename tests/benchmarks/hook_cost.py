"""What the hook costs a training: an unmodified DDP script, bare and watched in short turns, and the
processor time of a step of a plain loop, beside TraceML and Weights & Biases where ``make bench`` has
installed them. It decides nothing about what is shown of a step.

A round starts three jobs, two bare and one watched, and lets them make steps in turn while the
others wait; their ratio is taken within each turn. The second bare job shows what a ratio is worth
on this machine: where it differs from 1, so may the other.

``--before`` is a clone of another state of this repository, whose hook is measured beside this one.
"""

import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import distconsole_training
from benchmarks.alone import Figures, Row, at_most, text
from benchmarks.measure import Spread
from benchmarks.ranks import Job, bare_environment, places
from distconsole_training import records
from suite.programs import free_port

PACKAGE = Path(distconsole_training.__file__).parent
PEERS = Path(__file__).parents[2] / "build/peers/bin"
TARGETS = {1: 1.02, 10: 1.005}
TARGET_US = 10.0
LOOP_STEPS = 400
TURN_SECONDS = 0.25
WARM_UP_STEPS = 50

DDP_SCRIPT = """
import json, statistics, sys, time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

width, layers = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
model = nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = DataLoader(TensorDataset(torch.randn(4096, width), torch.randn(4096, width)), batch_size=32)

def train(steps):
    times, last = [], time.perf_counter()
    while len(times) < steps:
        for inputs, wanted in data:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) == steps:
                break
    return times

for line in sys.stdin:
    print(json.dumps(statistics.median(train(int(line)))), flush=True)
torch.distributed.destroy_process_group()
"""

LOOP_SCRIPT = """
import contextlib, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

kind, folder, port = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(2) for m in (nn.Linear(64, 64), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = DataLoader(TensorDataset(torch.randn(3200, 64), torch.randn(3200, 64)), batch_size=32)
around, after = contextlib.nullcontext, None
if kind == "traceml":
    import traceml_ai
    traceml_ai.init(aggregator_port=int(port), logs_dir=folder, connect_timeout_sec=60.0, on_missing_aggregator="raise")
    around = lambda: traceml_ai.trace_step(model)
if kind == "wandb":
    import wandb
    wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    after = lambda loss: wandb.log({"loss": loss.item()})

def train(steps):
    began = time.process_time()
    while steps:
        for inputs, wanted in data:
            with around():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), wanted)
                loss.backward()
                optimizer.step()
            if after:
                after(loss)
            steps -= 1
            if not steps:
                return time.process_time() - began

for line in sys.stdin:
    print(train(int(line)) / int(line), flush=True)
"""

SHAPES = {1: (256, 2), 10: (768, 4)}
"""Width and layers that make steps of about 1 and about 10 ms, two ranks on two cores."""


def measure(
    rounds: int = 7, seconds: float = 5.0, ranks: int = 2, before: str = ""
) -> dict[str, Any]:
    """Return the ratios of the step times, and the processor time of a step of a plain loop."""
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), ranks)
        ddp = {
            f"{milliseconds} ms": {
                **bench.compare(*shape, rounds, seconds),
                "target": TARGETS[milliseconds],
            }
            for milliseconds, shape in SHAPES.items()
        }
        return {"ddp": ddp, "loop": bench.loop(rounds * 3, before), "target_us": TARGET_US}


class Bench:
    """Runs the scripts in a folder of its own, with the rings where the agent puts them."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._ranks = ranks
        self._hook = copy_hook(PACKAGE, folder / "hook")

    def compare(self, width: int, layers: int, rounds: int, seconds: float) -> dict[str, Any]:
        """Return the ratios of ``rounds`` rounds of ``seconds`` for each of the jobs."""
        ratio, floor, bare, watched = [], [], [], []
        for number in range(rounds):
            turns = self._round([str(width), str(layers)], seconds, number)
            ratio.append(statistics.median(_over(turns, "watched")))
            floor.append(statistics.median(_over(turns, "again")))
            bare.append(statistics.median(turn["bare"] for turn in turns))
            watched.append(statistics.median(turn["watched"] for turn in turns))
        return {
            "ratio": Spread.of(ratio),
            "floor": Spread.of(floor),
            "bare_seconds": Spread.of(bare),
            "watched_seconds": Spread.of(watched),
            "ranks": self._ranks,
            "rounds": rounds,
        }

    def _round(self, words: Sequence[str], seconds: float, number: int) -> list[dict[str, float]]:
        """Return seconds a step by job, for every turn."""
        kinds = {"bare": None, "watched": {}, "again": None}
        with self.jobs(DDP_SCRIPT, words, kinds) as jobs:
            pace = max(float(job.ask(WARM_UP_STEPS)) for job in jobs.values())
            steps = max(int(TURN_SECONDS / pace), 10)
            turns = []
            for turn in range(max(int(seconds / TURN_SECONDS), 3)):
                names = list(jobs)
                # Each place in the order falls on each job equally often.
                shift = (turn + number) % len(names)
                order = names[shift:] + names[:shift]
                turns.append({name: float(jobs[name].ask(steps)) for name in order})
            return turns

    @contextlib.contextmanager
    def jobs(
        self, script: str, words: Sequence[str], kinds: Mapping[str, Mapping[str, str] | None]
    ) -> Iterator[dict[str, Job]]:
        """Start a job for each of ``kinds``: bare where it is None, else watched, with variables."""
        path = self._folder / "job.py"
        path.write_text(script, encoding="utf-8")
        with self._rings() as rings, contextlib.ExitStack() as stack:
            jobs = {
                name: stack.enter_context(Job(self.commands(path, words, rings, more)))
                for name, more in kinds.items()
            }
            yield jobs
            watched = sum(more is not None for more in kinds.values())
            if len(list(Path(rings).glob("*.ring"))) != self._ranks * watched:
                raise RuntimeError("a watched run left no ring: the hook was not there")
            for job in jobs.values():
                job.end()

    def commands(
        self, script: Path, words: Sequence[str], rings: str, more: Mapping[str, str] | None
    ) -> list[tuple[list[str], dict[str, str]]]:
        """Return the command line and the variables of each rank."""
        environment = self._environment(rings, None if more is None else self._hook) | (more or {})
        return [
            ([sys.executable, str(script), *words], environment | place)
            for place in places(self._ranks)
        ]

    def loop(self, rounds: int, before: str) -> dict[str, dict[str, Any]]:
        """Return the processor time of a step by job: of its best turn, and over the bare job turn by turn."""
        path = self._folder / "loop.py"
        path.write_text(LOOP_SCRIPT, encoding="utf-8")
        kinds = {"bare": sys.executable, "again": sys.executable, "watched": sys.executable}
        hooks = {"watched": self._hook}
        if before:
            kinds["before"] = sys.executable
            hooks["before"] = copy_hook(
                Path(before, "training/distconsole_training"), self._folder / "before"
            )
        if PEERS.is_dir():
            kinds |= {"traceml": str(PEERS / "python"), "wandb": str(PEERS / "python")}
        with contextlib.ExitStack() as stack:
            port = free_port()
            if PEERS.is_dir():
                serve = ["serve", "--logs-dir", str(self._folder), "--aggregator-port", port]
                server = subprocess.Popen([PEERS / "traceml", *serve], stdout=-3, stderr=-3)
                stack.callback(server.wait)
                stack.callback(server.terminate)
            jobs = {}
            for kind, python in kinds.items():
                rings = stack.enter_context(self._rings())
                words = [python, str(path), kind, str(self._folder), port]
                job = Job([(words, self._environment(rings, hooks.get(kind)))])
                jobs[kind] = stack.enter_context(job)
            for job in jobs.values():
                job.ask(LOOP_STEPS)
            turns = []
            for turn in range(rounds):
                order = list(jobs)[turn % len(jobs) :] + list(jobs)[: turn % len(jobs)]
                turns.append({kind: float(jobs[kind].ask(LOOP_STEPS)) * 1e6 for kind in order})
        least = {kind: min(turn[kind] for turn in turns) for kind in kinds}
        return {
            kind: {
                "least_us": least[kind],
                "more_us": least[kind] - least["bare"],
                "paired_us": Spread.of([turn[kind] - turn["bare"] for turn in turns]),
            }
            for kind in kinds
        }

    def _rings(self) -> tempfile.TemporaryDirectory[str]:
        shared = Path("/dev/shm")
        return tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)

    def _environment(self, rings: str, hook: Path | None) -> dict[str, str]:
        environment = bare_environment()
        environment.pop("PYTHONPATH", None)
        if hook is not None:
            environment |= {
                records.ENV_RUN: "benchmark",
                records.ENV_RINGS: rings,
                records.ENV_ERRORS: rings,
                records.ENV_HOOK: str(hook),
                "PYTHONPATH": str(hook),
            }
        return environment


def _over(turns: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """Return how ``name`` did over the bare job, turn by turn."""
    return [turn[name] / turn["bare"] for turn in turns]


def copy_hook(package: Path, folder: Path) -> Path:
    """Copy ``package`` to ``folder``, as a node has it; return that."""
    ignored = shutil.ignore_patterns("recipes", "__pycache__")
    shutil.copytree(package, folder / package.name, ignore=ignored)
    shutil.copy(package / "_sitecustomize.py", folder / "sitecustomize.py")
    return folder


def rows(figures: Figures) -> list[Row]:
    rows = [
        Row(
            f"hook, DDP steps of about {name}: step time over bare",
            f"{text(found['ratio'], 1, 4)}, bare {text(found['bare_seconds'], 1e3)} ms",
            f"bare over bare {text(found['floor'], 1, 4)}",
            *at_most(found["target"], found["ratio"]["median"], ""),
        )
        for name, found in figures["ddp"].items()
    ]
    loop = figures["loop"]
    peers = {"again": "bare", "before": "before", "traceml": "TraceML", "wandb": "wandb.log"}
    beside = [
        f"{label} {loop[kind]['paired_us']['median']:+.1f}"
        for kind, label in peers.items()
        if kind in loop
    ]
    ours = loop["watched"]["paired_us"]
    return [
        *rows,
        Row(
            "hook, CPU of a step of a plain loop, over bare turn by turn",
            f"{text(ours, 1, 1)} µs, bare {loop['bare']['least_us']:.0f}",
            ", ".join(beside) + " µs",
            *at_most(figures["target_us"], ours["median"], " µs"),
        ),
    ]
