"""``trace`` of a DDP run on two hosts whose clocks differ by seconds: how far apart one moment lies in
the merged file, and what a step takes before and after. It judges no kernel.

A library that is loaded before all others sets one host's wall clock ahead. The ranks' marks carry the
machine's own monotonic clock, which is the same on both, so the true distance is known.
"""

import itertools
import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.alone import Figures, Row, at_most
from benchmarks.cluster import Program, distconsole, environment, finish, on_hosts
from benchmarks.measure import Spread
from testbed import Testbed

TARGET_SECONDS = 0.001
TARGET_RATIO = 1.005
AROUND_SECONDS = 4.0
"""So long before and after a trace its steps are compared with."""

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static int (*kernel)(clockid_t, struct timespec *);
int clock_gettime(clockid_t id, struct timespec *at) {
    if (!kernel) kernel = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = kernel(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long ns = at->tv_sec * 1000000000LL + at->tv_nsec + AHEAD_NS;
        at->tv_sec = ns / 1000000000LL, at->tv_nsec = ns % 1000000000LL;
    }
    return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return failed;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch.profiler import record_function
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
inputs = torch.ones(32, 256)
print("steps begin", flush=True)
with open(sys.argv[1] + str(dist.get_rank()), "w", buffering=1 << 12) as steps:
    while True:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        now = time.monotonic_ns()
        with record_function(f"true {now}"):
            pass
        steps.write(f"{now} {time.time_ns()} {time.process_time_ns()}\\n")
"""


@on_hosts(2)
def measure(
    bed: Testbed, folder: Path, rounds: int = 5, seconds: float = 1.0, ahead: float = 3.7
) -> dict[str, Any]:
    """Return how far clocks are apart, in seconds, and the ratios of a step's time after traces and before."""
    folder.chmod(0o755)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    other = bed.hosts[1].name
    library = _build_clock(folder, ahead)
    setup = f'case "$(hostname)" in {other}) export LD_PRELOAD={library};; esac'
    command = distconsole(
        bed, "run", "--setup", setup, "--nproc", "1", "--name", "traced",
        str(script), str(folder / "steps-"),
    )  # fmt: skip
    with Program(command, environment(folder)) as run:
        run.see("steps begin")
        time.sleep(3 * AROUND_SECONDS)
        spans = [_trace(bed, folder, number, seconds) for number in range(rounds)]
        finish(distconsole(bed, "stop", "traced"), folder)
        run.wait()
    steps = [_read_steps(folder / f"steps-{rank}") for rank in range(2)]
    return {
        "ahead_seconds": _apart(steps),
        "apart": [_misaligned(folder / f"{number}.json") for number in range(rounds)],
        "steps": [_around(steps[0], *span) for span in spans],
    }


def _build_clock(folder: Path, ahead: float) -> Path:
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(CLOCK)
    define = f"-DAHEAD_NS={int(ahead * 1e9)}LL"
    command = ["cc", "-shared", "-fPIC", "-O2", define, str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


def _trace(bed: Testbed, folder: Path, number: int, seconds: float) -> tuple[int, int]:
    """Trace both ranks; return the monotonic nanoseconds between which the steps were touched."""
    file = str(folder / f"{number}.json")
    began = time.monotonic_ns()
    finish(distconsole(bed, "trace", "traced", "--seconds", str(seconds), "-o", file), folder)
    ended = time.monotonic_ns()
    time.sleep(2 * AROUND_SECONDS)
    return began, ended


class Step(NamedTuple):
    """When a step ended by the monotonic clock and the wall's, and the process's CPU time then; nanoseconds."""

    true: int
    wall: int
    cpu: int


def _read_steps(file: Path) -> list[Step]:
    lines = file.read_text().splitlines()[:-1]  # the last may be cut
    return [Step(*map(int, line.split())) for line in lines]


def _apart(steps: Sequence[Sequence[Step]]) -> float:
    """Return how far the second rank's wall clock is ahead of the first's, as the ranks have read them."""
    first, second = (statistics.median(one.wall - one.true for one in each) for each in steps)
    return (second - first) / 1e9


def _misaligned(file: Path) -> dict[str, float]:
    """Return by how much two ranks' marks of one moment differ in a merged trace: their medians, and at most."""
    by_rank: dict[int, list[float]] = {}
    for event in json.loads(file.read_text())["traceEvents"]:
        if event.get("ph") == "X" and event["name"].startswith("true "):
            true_us = int(event["name"].split()[1]) / 1e3
            by_rank.setdefault(event["pid"], []).append(event["ts"] - true_us)
    first, second = by_rank.values()
    middle = statistics.median(first)
    apart = abs(statistics.median(second) - middle)
    return {"median": apart / 1e6, "most": max(abs(each - middle) for each in second) / 1e6}


def _around(steps: Sequence[Step], began: int, ended: int) -> dict[str, float]:
    """Return what a step takes before a trace, and its ratios after it over before and before over before."""
    around = int(AROUND_SECONDS * 1e9)
    before, after = _between(steps, began - around, began), _between(steps, ended, ended + around)
    half = began - around // 2
    late, early = _between(steps, half, began), _between(steps, began - around, half)
    return {
        "seconds": before[0],
        "ratio": after[0] / before[0],
        "floor": late[0] / early[0],
        "cpu_seconds": before[1],
        "cpu_ratio": after[1] / before[1],
        "cpu_floor": late[1] / early[1],
    }


def _between(steps: Sequence[Step], since: int, until: int) -> tuple[float, float]:
    """Return a step's median seconds, and its mean CPU seconds."""
    inside = [one for one in steps if since <= one.true < until]
    times = [b.true - a.true for a, b in itertools.pairwise(inside)]
    cpu = (inside[-1].cpu - inside[0].cpu) / len(times)
    return statistics.median(times) / 1e9, cpu / 1e9


def rows(figures: Figures) -> list[Row]:
    middle = Spread.of([each["median"] for each in figures["apart"]])
    most = max(each["most"] for each in figures["apart"])
    rows = [
        Row(
            f"trace, two hosts with clocks {figures['ahead_seconds']:.3f} s apart: one moment in both",
            f"{middle.text(1e3, 3)} ms apart",
            f"a single mark {most * 1e3:.3f} ms at most",
            *at_most(TARGET_SECONDS * 1e3, middle.high * 1e3, " ms"),
        )
    ]
    for kind, what, target in (("", "time", None), ("cpu_", "CPU time", TARGET_RATIO)):
        ratio, floor, before = (
            Spread.of([each[f"{kind}{name}"] for each in figures["steps"]])
            for name in ("ratio", "floor", "seconds")
        )
        rows.append(
            Row(
                f"trace, {what} of a step after over before",
                f"{ratio.text(1, 4)}, before {before.text(1e3, 2)} ms",
                f"before over before {floor.text(1, 4)}",
                *at_most(target, ratio.median, ""),
            )
        )
    return rows
