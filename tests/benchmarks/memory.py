"""A rank that prints a million lines: memory of console, agent and shim at their highest, every line
counted, and the time next to ssh writing the same lines into a file. It cuts no network.

``python -m benchmarks.memory [--json FILE] [--rounds N] [--lines N]``
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.alone import MIB, Figures, Row, run_alone, text
from benchmarks.cluster import SECONDS, distconsole, environment, over_ssh, warm
from benchmarks.measure import alternate, ratios, spreads
from testbed import Host, Testbed

LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 5 * SECONDS

OF_RANK = re.compile(rb"^\[0 \w+\] (?:(\d+) and|\[distconsole: ([\d,]+) lines )", re.MULTILINE)

LEFT_OUT = re.compile(rb"([\d,]+) lines \([\d,]+ bytes\) of rank 0 are not shown")

SCRIPT = """\
import sys

for number in range(int(sys.argv[1])):
    print(number, "and some words to fill the line as a training script would")
"""


def peak_bytes(pid: int) -> int:
    """Return the highest resident memory so far (``VmHWM``, proc_pid_status(5)); 0 if gone."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        if found := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            return int(found[1]) * 1024
    return 0


def count_lines(output: bytes, narration: bytes) -> tuple[int, int]:
    """Return how many lines of the rank are accounted for, and how many of these are in ``output``.

    Lines that come faster than the console takes them are counted by words in their place. Those that
    the agent leaves out at the end of a flood are counted, and their place named, in ``narration``.
    -1 where a number is missing that nobody names.
    """
    left_out = [int(count.replace(b",", b"")) for count in re.findall(LEFT_OUT, narration)]
    received = shown = 0
    for number, counted in re.findall(OF_RANK, output):
        if number and int(number) - received in left_out:
            left_out.remove(int(number) - received)
            received = int(number)
        if number and int(number) != received:
            return -1, shown
        received += 1 if number else int(counted.replace(b",", b""))
        shown += bool(number)
    return received, shown


@dataclass
class Peaks:
    """The highest memory of each part over all rounds, read while they run."""

    highest: dict[str, int] = field(default_factory=dict)

    def look(self, part: str, pid: int) -> None:
        self.highest[part] = max(self.highest.get(part, 0), peak_bytes(pid))


class Floods:
    """The two ways that a million lines take to a file on the operator's machine."""

    def __init__(self, bed: Testbed, folder: Path, lines: int) -> None:
        self.peaks = Peaks()
        self.received: list[int] = []
        self.shown: list[int] = []
        self._bed = bed
        self._folder = folder
        self._lines = lines
        self._script = folder / "million_lines.py"
        self._script.write_text(SCRIPT)

    def ssh(self) -> float:
        """The floor: python prints, sshd and ssh carry, nobody looks; ``-u`` as under ``run``."""
        words = ("python3", "-u", str(self._script), str(self._lines))
        command = over_ssh(self._bed, self._host.name, *words)
        seconds, output = self._timed(command, lambda process: None)
        if output.count(b"\n") != self._lines:
            raise RuntimeError("ssh lost lines")
        return seconds

    def ours(self) -> float:
        warm(self._bed, self._folder)
        words = (str(self._script), str(self._lines))
        command = distconsole(self._bed, "run", *words, hosts=self._host.name)
        seconds, output = self._timed(command, self._watch)
        received, shown = count_lines(output, (self._folder / "narration").read_bytes())
        self.received.append(received)
        self.shown.append(shown)
        return seconds

    @property
    def _host(self) -> Host:
        return self._bed.hosts[0]

    def _timed(
        self, command: list[str], watch: Callable[[subprocess.Popen[bytes]], None]
    ) -> tuple[float, bytes]:
        path = self._folder / "output"
        began = time.monotonic()
        with (
            path.open("wb") as output,
            (self._folder / "narration").open("wb") as narration,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=narration,
                env=environment(self._folder),
            ) as process,
        ):
            watcher = threading.Thread(target=watch, args=(process,))
            watcher.start()
            code = process.wait(PATIENCE_SECONDS)
            seconds = time.monotonic() - began
            watcher.join()
        if code:
            raise RuntimeError(f"{command} ended with {code}")
        return seconds, path.read_bytes()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        pids: dict[str, int] = {}
        while process.poll() is None:
            self.peaks.look("console", process.pid)
            for part in ("agent", "shim"):
                if part not in pids and (found := self._host.processes(f"pyz {part}")):
                    pids[part] = found[-1].pid
                if part in pids:
                    self.peaks.look(part, pids[part])
            time.sleep(LOOK_SECONDS)


def measure(rounds: int, lines: int) -> dict[str, Any]:
    """Send the lines both ways ``rounds`` times."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-memory-")))
        floods = Floods(stack.enter_context(Testbed(hosts=1)), folder, lines)
        found = alternate({"ssh": floods.ssh, "ours": floods.ours}, rounds)
    return {
        "rounds": rounds,
        "lines": lines,
        "received": floods.received,
        "shown": floods.shown,
        "peak_rss_bytes": floods.peaks.highest,
        "seconds": spreads(found),
        "ratio": ratios(found["ours"], found["ssh"]),
    }


def rows(figures: Figures) -> list[Row]:
    lines, received = figures["lines"], figures["received"]
    peaks = figures["peak_rss_bytes"]
    peak = ", ".join(f"{part} {count / MIB:.1f}" for part, count in peaks.items())
    return [
        Row(
            f"{lines:,} lines: received",
            ", ".join(f"{count:,}" for count in received),
            f"shown {', '.join(f'{count:,}' for count in figures['shown'])}, the others counted",
            f"{lines:,}",
            all(count == lines for count in received),
        ),
        Row(f"{lines:,} lines: peak memory, MiB", peak),
        Row(
            f"{lines:,} lines: time",
            f"{text(figures['seconds']['ours'])} s",
            f"{text(figures['ratio'])} of ssh into a file",
        ),
    ]


if __name__ == "__main__":
    figures = run_alone("memory", __doc__, measure, rows, rounds=3, lines=1_000_000)
    sys.exit(any(count != figures["lines"] for count in figures["received"]))
