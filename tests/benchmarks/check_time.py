"""How long ``distconsole check`` takes on two hosts, by level, next to a bare ssh login on both and to
what horovodrun's own look at one host takes; and the processor time of it all, which other work disturbs less.
It judges no finding.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.cluster import SECONDS, distconsole, finish, log_in_to_all, on_hosts, warm
from benchmarks.measure import Compared, compare
from suite.obstacles import obstacle
from testbed import Testbed

LOGINS, BUILD = "two ssh logins", "horovodrun --check-build on one host"
LINES = (
    Compared("check, two hosts, quick", "quick", "ssh", LOGINS, seconds=3.0),
    Compared("check, two hosts, quick, cold", "quick_cold", "ssh", LOGINS),
    Compared("check, two hosts, standard", "standard", "build", BUILD, seconds=10.0),
)
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
        self.cpu_seconds.setdefault(f"{level}_cold" if cold else level, []).append(
            self._cpu() - before
        )
        severities = [each["severity"] for each in json.loads(out)["findings"]]
        self.found[level] = {each: severities.count(each) for each in sorted(set(severities))}
        return seconds


@on_hosts(2)
def measure(bed: Testbed, folder: Path, rounds: int = 5) -> dict[str, Any]:
    """Look at the hosts each way once a round."""
    with counting_cpu() as cpu:
        checks = Checks(bed, folder, cpu)
        ways = {
            "ssh": partial(log_in_to_all, bed),
            "quick": partial(checks.check, "quick"),
            "quick_cold": partial(checks.check, "quick", cold=True),
            "standard": partial(checks.check, "standard"),
        }
        if not obstacle("horovod"):
            ways["build"] = checks.build
        figures = compare(ways, rounds, LINES, CPU=checks.cpu_seconds)
    return {**figures, "findings": checks.found}


rows = rows_of_turns
