"""A rank that prints a million lines: memory of console, agent and shim at their highest, every line
counted, and the time next to ssh writing the same lines into a file. It cuts no network.
"""

import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.alone import MIB, Figures, Row, rows_of_turns
from benchmarks.cluster import SECONDS, distconsole, environment, on_hosts, over_ssh, warm
from benchmarks.measure import Compared, compare, methods
from testbed import Host, Testbed

LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 5 * SECONDS

OF_RANK = re.compile(rb"^\[0 \w+\] (?:(\d+) and|\[distconsole: ([\d,]+) lines )", re.MULTILINE)

LEFT_OUT = re.compile(rb"[\d,]+ bytes \(([\d,]+) whole lines\) of rank 0 are not shown")

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


class Floods:
    """The two ways that a million lines take to a file on the operator's machine."""

    def __init__(self, bed: Testbed, folder: Path, lines: int) -> None:
        self.peaks: dict[str, int] = {}
        """The highest memory of each part over all rounds."""
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

    def _look(self, part: str, pid: int) -> None:
        self.peaks[part] = max(self.peaks.get(part, 0), peak_bytes(pid))

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        pids: dict[str, int] = {}
        while process.poll() is None:
            self._look("console", process.pid)
            for part in ("agent", "shim"):
                if part not in pids and (found := self._host.processes(f"pyz {part}")):
                    pids[part] = found[-1].pid
                if part in pids:
                    self._look(part, pids[part])
            time.sleep(LOOK_SECONDS)


@on_hosts(1)
def measure(bed: Testbed, folder: Path, rounds: int = 3, lines: int = 1_000_000) -> dict[str, Any]:
    """Send the lines both ways ``rounds`` times."""
    floods = Floods(bed, folder, lines)
    line = Compared(f"{lines:,} lines: time", "ours", "ssh", "ssh into a file")
    return {
        **compare(methods(floods, ("ssh", "ours")), rounds, [line]),
        "lines_printed": lines,
        "received": floods.received,
        "shown": floods.shown,
        "peak_rss_bytes": floods.peaks,
    }


def rows(figures: Figures) -> list[Row]:
    lines, received = figures["lines_printed"], figures["received"]
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
        *rows_of_turns(figures),
    ]


def failed(figures: Figures) -> bool:
    return any(count != figures["lines_printed"] for count in figures["received"])
