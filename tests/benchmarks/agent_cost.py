"""What telemetry costs a node: CPU and memory at one sample a second, 8 GPUs and 8 ranks, against a
bare pynvml loop and nvitop. The GPUs are a stand-in library: the driver's own time is not in it.
"""

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alone import MIB, Figures, Row, program, text
from benchmarks.measure import Cost, Spread, cost_during, ratios
from benchmarks.ranks import Job
from fakes.nvml import PROCESS_LISTS, FakeNvml

RANKS = 8
CPU_TARGET = 0.005
RSS_TARGET = 30 * MIB

LABELS = {
    "ours": "distconsole, GPUs + host",
    "ours_gpu": "distconsole, GPUs",
    "bare_pynvml": "bare pynvml, GPUs",
    "bare_host": "bare pynvml + psutil",
    "nvitop": "nvitop snapshot, GPUs",
}
PAIRS = (("ours", "bare_host"), ("ours_gpu", "bare_pynvml"), ("ours_gpu", "nvitop"))


@dataclass(frozen=True)
class Calls:
    """NVML calls a sample, and those among them that hold the driver up."""

    all: float
    process_lists: float
    pcie_windows: float


class Sampler:
    """One program under measurement, waiting on its standard input between its turns."""

    def __init__(self, kind: str, pids: Sequence[int], folder: Path) -> None:
        self.kind = kind
        self.fake = FakeNvml(folder / f"control-{kind}")
        for gpu, pid in enumerate(pids):
            self.fake.set_processes(gpu, [(pid, 1 << 30, 0, 0)])
        words = program("samplers", kind, *pids)
        self._job = Job([(words, {**os.environ, **self.fake.environment()})])
        self._job.ask(0)
        self._calls_before = self.fake.all_calls()
        self._samples = 0

    def turn(self, samples: int) -> Cost:
        """Let it take ``samples``, one a second, and return what that cost."""
        self._samples += samples
        return cost_during(self._job.pid, lambda: self._job.ask(samples))

    def calls(self) -> Calls:
        """Return the NVML calls of all turns so far, a sample."""
        now = self.fake.all_calls()
        since = {name: count - self._calls_before.get(name, 0) for name, count in now.items()}
        lists = sum(since.get(name, 0) for name in PROCESS_LISTS)
        windows = since.get("nvmlDeviceGetPcieThroughput", 0)
        return Calls(
            sum(since.values()) / self._samples, lists / self._samples, windows / self._samples
        )

    def close(self) -> None:
        self._job.end()
        self.fake.close()


@contextmanager
def idle_ranks(count: int) -> Iterator[list[int]]:
    """Run ``count`` processes that stand for ranks; they sleep."""
    ranks = [subprocess.Popen(["sleep", "infinity"]) for _ in range(count)]
    try:
        yield [rank.pid for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def measure(rounds: int = 5, samples: int = 6) -> dict[str, Any]:
    """Measure every sampler ``rounds`` times, in turns, and return the figures."""
    kinds = [kind for kind in LABELS if kind != "nvitop" or importlib.util.find_spec("nvitop")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-cost-")))
        pids = stack.enter_context(idle_ranks(RANKS))
        samplers = {kind: Sampler(kind, pids, folder) for kind in kinds}
        for sampler in samplers.values():
            stack.callback(sampler.close)
        costs: dict[str, list[Cost]] = {kind: [] for kind in kinds}
        for number in range(rounds):
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                costs[kind].append(samplers[kind].turn(samples))
        calls = {kind: sampler.calls() for kind, sampler in samplers.items()}
    return {
        "rounds": rounds,
        "samples_a_round": samples,
        "samplers": {kind: _figures(costs[kind], calls[kind]) for kind in kinds},
        "ratios": {
            f"{one}/{other}": ratios(_shares(costs[one]), _shares(costs[other]))
            for one, other in PAIRS
            if one in costs and other in costs
        },
        "targets": {"cpu_share": CPU_TARGET, "rss_bytes": RSS_TARGET},
    }


def _shares(costs: Sequence[Cost]) -> list[float]:
    return [cost.cpu_share for cost in costs]


def _figures(costs: Sequence[Cost], calls: Calls) -> dict[str, Any]:
    return {
        "cpu_share": Spread.of(_shares(costs)),
        "rss_bytes": max(cost.rss_bytes for cost in costs),
        "calls": calls,
    }


def rows(figures: Figures) -> list[Row]:
    samplers, targets = figures["samplers"], figures["targets"]
    ours = samplers["ours"]
    peers = "; ".join(
        f"{kind} {text(found['cpu_share'], 100, 3)} %, {found['rss_bytes'] / MIB:.1f} MiB"
        for kind, found in samplers.items()
        if kind in ("bare_host", "bare_pynvml", "nvitop")
    )
    return [
        Row(
            "telemetry, 8 GPUs and host at 1 Hz",
            f"{text(ours['cpu_share'], 100, 3)} % of a core, {ours['rss_bytes'] / MIB:.1f} MiB",
            peers,
            f"≤ {targets['cpu_share']:.1%}, {targets['rss_bytes'] // MIB} MiB",
            ours["cpu_share"]["median"] <= targets["cpu_share"]
            and ours["rss_bytes"] <= targets["rss_bytes"],
        )
    ]
