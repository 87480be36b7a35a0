"""What the benchmarks share: the cost of a process by its pid, alternating runs, medians with their
range. It decides no target and starts no program.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The median of some measurements, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises: ValueError without a value."""
        if not values:
            raise ValueError("no measurement to take a median of")
        return cls(statistics.median(values), min(values), max(values))

    def text(self, scale: float = 1.0, digits: int = 3) -> str:
        median, low, high = (f"{value * scale:.{digits}f}" for value in asdict(self).values())
        return f"{median} [{low}-{high}]"


@dataclass(frozen=True)
class Tail:
    """What is seldom exceeded: of many measurements the median, the 99th percentile and the longest."""

    count: int
    median: float
    p99: float
    longest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Tail":
        """Raises: ValueError without a value."""
        if not values:
            raise ValueError("no measurement to take a percentile of")
        ordered = sorted(values)
        count = len(ordered)
        return cls(count, ordered[count // 2], ordered[count * 99 // 100], ordered[-1])


@dataclass(frozen=True)
class Cost:
    """What a process took over an interval: CPU seconds a second, and memory at its end."""

    cpu_share: float
    rss_bytes: int
    seconds: float


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's living threads, in nanosecond steps.

    From ``/proc/<pid>/task/*/schedstat``; where the kernel has none, from ``stat`` in ticks of
    10 ms (``proc_pid_stat(5)``, fields 14 and 15).

    Raises:
        FileNotFoundError: if the process is gone.
    """
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (FileNotFoundError, IndexError):
        return _cpu_ticks(pid) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process (``proc_pid_statm(5)``, field 2)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cost_during(pid: int, run: Callable[[], None]) -> Cost:
    """Return what the process ``pid`` took while ``run`` ran here."""
    cpu_before, began = cpu_seconds(pid), time.monotonic()
    run()
    seconds = time.monotonic() - began
    return Cost((cpu_seconds(pid) - cpu_before) / seconds, rss_bytes(pid), seconds)


def alternate(
    contestants: Mapping[str, Callable[[], float]],
    rounds: int,
    warmed: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """Measure each contestant once a round, every other round in the opposite order.

    Drift of the machine then falls on all of them alike. With ``warmed`` each runs once before, so that every program
    was read from the disk; it is called then.
    """
    if warmed is not None:
        for contestant in contestants.values():
            contestant()
        warmed()
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        order = list(contestants)
        for name in order if number % 2 == 0 else reversed(order):
            found[name].append(contestants[name]())
    return found


def ratios(measured: Sequence[float], reference: Sequence[float]) -> Spread:
    """Return the ratio of each pair of the same round.

    Raises:
        ValueError: if the two differ in length or are empty.
    """
    return Spread.of([one / other for one, other in zip(measured, reference, strict=True)])


def spreads(found: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """Return the spread of each contestant's values."""
    return {kind: Spread.of(values) for kind, values in found.items()}


@dataclass(frozen=True)
class Compared:
    """One row of the summary of what took turns.

    Attributes:
        kind, peer: Contestants; without ``peer`` it stands alone.
        of: How the row names the peer.
        seconds: The target of ``kind`` itself.
        ratio: The target of its ratio to ``peer``.
    """

    figure: str
    kind: str
    peer: str = ""
    of: str = ""
    seconds: float | None = None
    ratio: float | None = None


def compare(
    contestants: Mapping[str, Callable[[], float]],
    rounds: int,
    lines: Sequence[Compared],
    warmed: Callable[[], object] | None = None,
    **beside: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """Let contestants take turns; return their seconds, and ratios within the same round.

    Args:
        lines: Rows (``alone.rows_of_turns``); those of contestants that are not there are left out.
        warmed: See ``alternate``.
        beside: Further seconds of the same turns, noted meanwhile by contestants that have them.
    """
    found = alternate(contestants, rounds, warmed)
    return {
        "rounds": rounds,
        "seconds": spreads(found),
        "beside": {name: spreads(noted) for name, noted in beside.items()},
        "lines": [
            {
                **asdict(line),
                "over": ratios(found[line.kind], found[line.peer]) if line.peer in found else None,
            }
            for line in lines
            if line.kind in found
        ],
    }


def methods(of: object, names: Iterable[str]) -> dict[str, Callable[[], float]]:
    """Return the contestants that are methods of one object."""
    return {name: getattr(of, name) for name in names}


def machine() -> dict[str, Any]:
    """Return what a reader needs in order to judge the figures."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load1": round(os.getloadavg()[0], 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def write_json(path: Path, name: str, figures: Mapping[str, Any]) -> None:
    """Write ``figures`` with the machine they were measured on."""
    document = {"benchmark": name, "machine": machine(), "figures": figures}
    path.write_text(json.dumps(document, indent=2, default=asdict) + "\n", encoding="utf-8")


def _cpu_ticks(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
