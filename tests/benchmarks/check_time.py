"""How long ``distconsole check`` takes on two hosts, by level, next to a bare ssh login on both and to
what horovodrun's own look at one host takes; and the processor time of it all, which other work disturbs less.
It judges no finding.

``python -m benchmarks.check_time [--json FILE] [--rounds N]``
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.cluster import SECONDS, distconsole, finish, log_in_to_all, warm
from benchmarks.measure import alternate, spreads
from suite.obstacles import obstacle
from testbed import Testbed

TARGETS = {"quick": 3.0, "standard": 10.0}
CPU_TIME = Path("/sys/fs/cgroup/cpuacct")


@contextmanager
def counting_cpu() -> Iterator[Callable[[], float]]:
    """Yield what returns the CPU seconds of all processes that start from here on; 0 without cgroup v1."""
    group = CPU_TIME / f"bench-check-{os.getpid()}"
    if not os.access(CPU_TIME, os.W_OK):
        yield lambda: 0.0
        return
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield lambda: int((group / "cpuacct.usage").read_text()) / 1e9
    finally:
        (CPU_TIME / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


class Checks:
    """The ways to look at a bed's hosts."""

    def __init__(self, bed: Testbed, folder: Path, cpu: Callable[[], float]) -> None:
        self.cpu_seconds: dict[str, list[float]] = {}
        self._cpu = cpu
        self.found: dict[str, dict[str, int]] = {}
        self.bed = bed
        self._folder = folder

    def build(self) -> float:
        """Seconds in which horovodrun says what is in the Horovod of its own host."""
        began = time.monotonic()
        self.bed.hosts[0].exec(["horovodrun", "--check-build"], timeout=SECONDS)
        return time.monotonic() - began

    def check(self, level: str, *, cold: bool = False) -> float:
        """Seconds of one check; the number of its findings by severity is kept."""
        if cold:
            self.bed.reset()
        else:
            warm(self.bed, self._folder)
        before = self._cpu()
        command = distconsole(self.bed, "check", "--level", level, "--json")
        out, seconds = finish(command, self._folder, codes=(0, 1))
        self.cpu_seconds.setdefault(level, []).append(self._cpu() - before)
        severities = [each["severity"] for each in json.loads(out)["findings"]]
        self.found[level] = {each: severities.count(each) for each in sorted(set(severities))}
        return seconds


def measure(rounds: int) -> dict[str, Any]:
    """Look at the hosts each way once a round."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-check-")))
        cpu = stack.enter_context(counting_cpu())
        checks = Checks(stack.enter_context(Testbed(hosts=2)), folder, cpu)
        contestants: dict[str, Callable[[], float]] = {
            "ssh": partial(log_in_to_all, checks.bed),
            "quick": partial(checks.check, "quick"),
            "quick_cold": partial(checks.check, "quick", cold=True),
            "standard": partial(checks.check, "standard"),
        }
        if not obstacle("horovod"):
            contestants["build"] = checks.build
        found = alternate(contestants, rounds)
    return {
        "rounds": rounds,
        "seconds": spreads(found),
        "cpu_seconds": {level: min(values) for level, values in checks.cpu_seconds.items()},
        "findings": checks.found,
        "targets": TARGETS,
    }


def rows(figures: Figures) -> list[Row]:
    every, targets = figures["seconds"], figures["targets"]
    peers = {"standard": "build"}
    said = {"ssh": "two ssh logins", "build": "horovodrun --check-build on one host"}
    return [
        Row(
            f"check, two hosts, {kind.replace('_', ' ')}",
            f"{text(seconds)} s",
            f"{said[peer]} {text(every[peer])} s"
            if (peer := peers.get(kind, "ssh")) in every
            else "",
            f"≤ {targets[kind]:g} s" if kind in targets else "",
            seconds["median"] <= targets[kind] if kind in targets else None,
        )
        for kind, seconds in every.items()
        if kind not in said
    ]


if __name__ == "__main__":
    run_alone("check_time", __doc__, measure, rows, rounds=5)
