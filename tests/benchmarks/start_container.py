"""From the command to the end of the first step of DDP on two hosts: in a podman container that runs, in a new one
for each rank, and without any. Agents run.

``python -m benchmarks.start_container [--json FILE] [--rounds N]``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.cluster import bed_and_folder, warm
from benchmarks.measure import alternate, ratios, spreads
from benchmarks.start import Starts, Times
from suite.podman import NEW, RUNNING, install_podman, lacks_podman
from testbed import Testbed

TARGET = 1.2

SCRIPT = """\
import time

began_ns = time.time_ns()
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(16, 64)).square().mean().backward()
optimizer.step()
print(f"began at {began_ns}, first all-reduce at {time.time_ns()}", flush=True)
dist.destroy_process_group()
"""

LABELS = {
    "bare": "no container",
    "running": "podman, a running container",
    "new": "podman, a new one for each rank",
}


class ContainerStarts(Starts):
    """One rank on each host."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        super().__init__(bed, folder)
        self._step = self._write("first_step.py", SCRIPT)

    def bare(self) -> Times:
        return self._first_step()

    def running(self) -> Times:
        return self._first_step("--container", RUNNING)

    def new(self) -> Times:
        return self._first_step("--container", NEW)

    def _first_step(self, *where: str) -> Times:
        warm(self._bed, self._folder)
        return self._ours(*where, "--python", sys.executable, script=self._step)


def measure(rounds: int) -> dict[str, Any]:
    """Start each kind once a round and return seconds, and ratios within the same round."""
    if reason := lacks_podman():
        nothing: dict[str, Any] = {"seconds": {}, "script_seconds": {}, "ratios": {}}
        return {"rounds": 0, "skipped": reason, "target": TARGET, **nothing}
    with bed_and_folder(hosts=2) as (bed, folder):
        for host in bed.hosts:
            install_podman(host)
        starts = ContainerStarts(bed, folder)
        contestants: dict[str, Callable[[], float]] = {
            kind: partial(starts.seconds, kind) for kind in LABELS
        }
        found = alternate(contestants, rounds, warmed=starts.script_seconds.clear)
    return {
        "rounds": rounds,
        "skipped": "",
        "seconds": spreads(found),
        "script_seconds": spreads(starts.script_seconds),
        "ratios": {kind: ratios(found[kind], found["bare"]) for kind in ("running", "new")},
        "target": TARGET,
    }


def rows(figures: Figures) -> list[Row]:
    """Return what the summary of all benchmarks takes."""
    return [
        Row(
            f"start, {LABELS[kind]}",
            f"{text(figures['seconds'][kind])} s",
            f"{text(over)} of bare, {text(figures['seconds']['bare'])} s",
            f"≤ {figures['target']} of bare" if kind == "running" else "",
            over["median"] <= figures["target"] if kind == "running" else None,
        )
        for kind, over in figures["ratios"].items()
    ]


if __name__ == "__main__":
    run_alone("start_container", __doc__, measure, rows, rounds=7)
