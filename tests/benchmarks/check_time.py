"""How long ``distconsole check`` takes on two hosts, by level, next to a bare ssh login on both and to
what horovodrun's own look at one host takes; and the processor time of it all, which other work disturbs less.
It judges no finding.

``python -m benchmarks.check_time [--json FILE] [--rounds N]``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import run_alone
from benchmarks.cluster import SECONDS, Program, distconsole, environment, over_ssh, warm
from benchmarks.measure import Spread, alternate
from suite.obstacles import obstacle
from testbed import Testbed

LABELS = {
    "ssh": "ssh to both, `true`",
    "quick": "check --level quick",
    "quick_cold": "the same, no agent there yet",
    "standard": "check --level standard",
    "build": "horovodrun --check-build, one host",
}
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
        self._bed = bed
        self._folder = folder

    def ssh(self) -> float:
        """The floor: two logins at once."""
        began = time.monotonic()
        with ExitStack() as stack:
            for program in [
                stack.enter_context(Program(over_ssh(self._bed, host.name, "true")))
                for host in self._bed.hosts
            ]:
                program.wait()
        return time.monotonic() - began

    def build(self) -> float:
        """Seconds in which horovodrun says what is in the Horovod of its own host."""
        began = time.monotonic()
        self._bed.hosts[0].exec(["horovodrun", "--check-build"], timeout=SECONDS)
        return time.monotonic() - began

    def check(self, level: str, *, cold: bool = False) -> float:
        """Seconds of one check; the number of its findings by severity is kept."""
        if cold:
            self._bed.reset()
        else:
            warm(self._bed, self._folder)
        began, before = time.monotonic(), self._cpu()
        done = subprocess.run(
            distconsole(self._bed, "check", "--level", level, "--json"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(self._folder),
            text=True,
            check=False,
            timeout=SECONDS,
        )
        seconds = time.monotonic() - began
        self.cpu_seconds.setdefault(level, []).append(self._cpu() - before)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"check ended with {done.returncode}: {done.stderr[-2000:]}")
        severities = [each["severity"] for each in json.loads(done.stdout)["findings"]]
        self.found[level] = {each: severities.count(each) for each in sorted(set(severities))}
        return seconds


def measure(rounds: int) -> dict[str, Any]:
    """Look at the hosts each way once a round."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-check-")))
        cpu = stack.enter_context(counting_cpu())
        checks = Checks(stack.enter_context(Testbed(hosts=2)), folder, cpu)
        contestants: dict[str, Callable[[], float]] = {
            "ssh": checks.ssh,
            "quick": partial(checks.check, "quick"),
            "quick_cold": partial(checks.check, "quick", cold=True),
            "standard": partial(checks.check, "standard"),
        }
        if not obstacle("horovod"):
            contestants["build"] = checks.build
        found = alternate(contestants, rounds)
    return {
        "rounds": rounds,
        "seconds": {kind: asdict(Spread.of(values)) for kind, values in found.items()},
        "cpu_seconds": {level: min(values) for level, values in checks.cpu_seconds.items()},
        "findings": checks.found,
        "targets": TARGETS,
    }


def report(figures: dict[str, Any]) -> str:
    """Return the figures as a table."""
    lines = [f"{'two hosts':30} seconds"]
    for kind, seconds in figures["seconds"].items():
        found = figures["findings"].get(kind, {})
        said = ", ".join(f"{count} {severity}" for severity, count in found.items())
        lines.append(f"{LABELS[kind]:30} {Spread(**seconds).text(1, 2):20} {said}".rstrip())
    cpu = ", ".join(f"{level} {each:.2f}" for level, each in figures["cpu_seconds"].items())
    return "\n".join([*lines, f"least CPU seconds of console and hosts: {cpu}"])


def main(arguments: Sequence[str] | None = None) -> int:
    run_alone("check_time", __doc__, measure, report, arguments, rounds=5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
