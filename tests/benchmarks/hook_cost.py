"""What the hook costs a training: an unmodified DDP script, bare and watched in turn, and the cost
of a step in microseconds within one process. It decides nothing about what is shown of a step.

``python -m benchmarks.hook_cost [--json FILE] [--rounds N] [--seconds S] [--ranks N]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import distconsole_training
from benchmarks.measure import Spread, alternate, ratios, write_json
from distconsole_training import records

PACKAGE = Path(distconsole_training.__file__).parent
TARGETS = {1: 1.02, 10: 1.005}
TARGET_US = 10.0

DDP_SCRIPT = """
import json, os, statistics, sys, time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

width, layers, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
model = nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = DataLoader(TensorDataset(torch.randn(4096, width), torch.randn(4096, width)), batch_size=32)
times, ends = [], time.monotonic() + seconds
last = None
stop = torch.zeros(1)
while not stop.item():
    for inputs, wanted in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        if last is not None:
            times.append(now - last)
        last = now
    stop[0] = float(time.monotonic() > ends)
    torch.distributed.all_reduce(stop)
    last = None
if torch.distributed.get_rank() == 0:
    kept = times[len(times) // 5:]
    print(json.dumps({"median": statistics.median(kept), "steps": len(kept)}))
torch.distributed.destroy_process_group()
"""

BLOCKS_SCRIPT = """
import json, statistics, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import torch.utils.data.dataloader as loaders

optimizers = sys.modules["torch.optim.optimizer"]
torch.set_num_threads(1)
hooks = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
kept = [dict(one) for one in hooks]
backward = torch.autograd.backward
following = vars(loaders._BaseDataLoaderIter)["__next__"]

def watch(on):
    for place, ours in zip(hooks, kept):
        place.clear()
        if on:
            place.update(ours)
    torch.autograd.backward = backward if on else backward.__wrapped__
    loaders._BaseDataLoaderIter.__next__ = following if on else following.__get__(None)

width, layers, steps, pairs = (int(word) for word in sys.argv[1:])
model = nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = DataLoader(TensorDataset(torch.randn(steps * 32, width)), batch_size=32)

def block():
    began = time.thread_time()
    for (inputs,) in data:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return (time.thread_time() - began) / steps

for on in (True, False) * 3:
    watch(on)
    block()
bare, watched = [], []
for number in range(pairs):
    for on in (True, False) if number % 2 else (False, True):
        watch(on)
        (watched if on else bare).append(block())
print(json.dumps({"bare": bare, "watched": watched}))
"""

SHAPES = {1: (256, 2), 10: (768, 4)}
"""Width and layers that make steps of about 1 and about 10 ms, two ranks on two cores."""


def measure(rounds: int, seconds: float, ranks: int) -> dict[str, Any]:
    """Return the ratios of the step times, and the cost in microseconds."""
    with tempfile.TemporaryDirectory() as name:
        bench = _Bench(Path(name), ranks)
        ddp = {
            f"{milliseconds} ms": bench.compare(*shape, rounds, seconds)
            for milliseconds, shape in SHAPES.items()
        }
        return {"ddp": ddp, "step": bench.blocks(pairs=rounds * 20)}


def report(figures: Mapping[str, Any]) -> str:
    """Return the figures as lines, median [lowest-highest]."""
    lines = []
    for name, found in figures["ddp"].items():
        ratio, bare = Spread(**found["ratio"]), Spread(**found["bare_seconds"])
        target = TARGETS[int(name.split()[0])]
        lines.append(
            f"steps of about {name}: bare {bare.text(1e3)} ms, watched/bare {ratio.text(1, 4)}, "
            f"target {target}"
        )
    cost, lowest = Spread(**figures["step"]["cost_us"]), figures["step"]["cost_of_fastest_us"]
    lines.append(
        f"a step in one process: {cost.text(1, 1)} us of CPU; fastest against fastest block "
        f"{lowest:.1f} us, target {TARGET_US:.0f}"
    )
    return "\n".join(lines)


class _Bench:
    """Runs the scripts in a folder of its own, with the rings where the agent puts them."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._ranks = ranks
        self._hook = folder / "hook"
        shutil.copytree(
            PACKAGE, self._hook / "distconsole_training", ignore=shutil.ignore_patterns("recipes")
        )
        shutil.copy(PACKAGE / "_sitecustomize.py", self._hook / "sitecustomize.py")
        for name, text in (("ddp.py", DDP_SCRIPT), ("blocks.py", BLOCKS_SCRIPT)):
            (folder / name).write_text(text, encoding="utf-8")

    def compare(self, width: int, layers: int, rounds: int, seconds: float) -> dict[str, Any]:
        words = [str(width), str(layers), str(seconds)]
        found = alternate(
            {
                "bare": lambda: self._ddp(words, watched=False),
                "watched": lambda: self._ddp(words, watched=True),
            },
            rounds,
        )
        return {
            "ratio": asdict(ratios(found["watched"], found["bare"])),
            "bare_seconds": asdict(Spread.of(found["bare"])),
            "watched_seconds": asdict(Spread.of(found["watched"])),
            "ranks": self._ranks,
        }

    def blocks(self, pairs: int) -> dict[str, Any]:
        with self._rings() as rings:
            command = [
                sys.executable,
                str(self._folder / "blocks.py"),
                "64",
                "2",
                "100",
                str(pairs),
            ]
            ended = subprocess.run(
                command,
                env=self._environment(rings, watched=True),
                check=True,
                capture_output=True,
                text=True,
            )
        found = json.loads(ended.stdout)
        costs = [
            (watched - bare) * 1e6
            for watched, bare in zip(found["watched"], found["bare"], strict=True)
        ]
        return {
            "cost_us": asdict(Spread.of(costs)),
            "cost_of_fastest_us": (min(found["watched"]) - min(found["bare"])) * 1e6,
            "bare_us": min(found["bare"]) * 1e6,
        }

    def _ddp(self, words: Sequence[str], *, watched: bool) -> float:
        with self._rings() as rings, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
            probe.close()
            started = [
                subprocess.Popen(
                    [sys.executable, str(self._folder / "ddp.py"), *words],
                    env={
                        **self._environment(rings, watched=watched),
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank),
                        "WORLD_SIZE": str(self._ranks),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port,
                    },
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(self._ranks)
            ]
            try:
                out = [process.communicate(timeout=300)[0] for process in started]
            finally:
                for process in started:
                    process.kill()
                    process.wait()
            if watched and len(list(Path(rings).glob("*.ring"))) != self._ranks:
                raise RuntimeError("the watched run left no ring: the hook was not there")
        return float(json.loads(out[0])["median"])

    def _rings(self) -> tempfile.TemporaryDirectory[str]:
        shared = Path("/dev/shm")
        return tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)

    def _environment(self, rings: str, *, watched: bool) -> dict[str, str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("DISTCONSOLE_") and name != "PYTHONPATH"
        }
        environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        if watched:
            environment |= {
                records.ENV_RUN: "benchmark",
                records.ENV_RINGS: rings,
                records.ENV_ERRORS: rings,
                records.ENV_HOOK: str(self._hook),
                "PYTHONPATH": str(self._hook),
            }
        return environment


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args(arguments)
    figures = measure(given.rounds, given.seconds, given.ranks)
    print(report(figures))
    if given.json is not None:
        write_json(given.json, "hook_cost", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
