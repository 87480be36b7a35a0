"""How old a record is when it stands on the screen: from ``report()`` in a rank, by ring, agent, journal,
ssh and fold, to the terminal. It measures no cost.

8 ranks on two hosts of the testbed mark a record every 50 ms; its step is the millisecond in which it
was made, so that the step in the table of ranks tells what has arrived. The clock is that of one
machine. Against it: the same records as lines of ``run --json``, read in the same run. With ``--flood``
the last N ranks print 60,000 lines a second together.
"""

import json
import re
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row
from benchmarks.cluster import Line, Program, distconsole, environment, on_hosts
from benchmarks.glass import Watched
from benchmarks.measure import Tail, cpu_seconds, rss_bytes
from distconsole_agent.contract.limits import WINDOW_SECONDS
from testbed import Testbed

RANKS = 8
LINES_PER_RECORD = 3000
"""What the ranks that flood print between two records."""

TIMES_THE_INTERVAL = 1.2
SETTLING_SECONDS = 6.0
LONGEST_SECONDS = 10.0
"""A record is waited for so long at the end."""

FINISH = "/tmp/finish"
ROW = re.compile(r"^\W*(\d+) +(node\d+) +([\d,]+)", re.MULTILINE)
SCRIPT = """\
import os, pathlib, sys, time
from distconsole_training import report

began, rank, marks, lines = int(sys.argv[1]), os.environ["RANK"], [], 0
floods = int(rank) >= int(sys.argv[2])
finish = pathlib.Path("/tmp/finish")
while not finish.exists():
    now = time.time_ns() // 1_000_000 - began
    report(step=now, loss=1 / (1 + now))
    marks.append(now)
    many = int(sys.argv[3]) if floods else 0
    sys.stdout.write("".join(f"line {lines + n} of what a rank prints that floods\\n" for n in range(many)))
    lines += many
    time.sleep(0.05)
pathlib.Path("/tmp/marks-" + rank).write_text(" ".join(map(str, marks)))
pathlib.Path("/tmp/lines-" + rank).write_text(str(lines))
"""
Shown = tuple[float, int]
"""Seconds since the beginning, and the newest step that was there then."""


def _delays(
    marks: Sequence[int], shown: Sequence[Shown], since: int, until: int
) -> tuple[list[float], int]:
    steps = [step for _, step in shown]
    delays: list[float] = []
    missing = 0
    for mark in marks:
        if since <= mark < until:
            place = bisect_left(steps, mark)
            if place == len(steps):
                missing += 1
            else:
                delays.append(shown[place][0] - mark / 1000)
    return delays, missing


class Screen:
    """What the screen showed of each rank, and when."""

    def __init__(self, began_ms: int) -> None:
        self.shown: dict[int, list[Shown]] = {rank: [] for rank in range(RANKS)}
        self._began = began_ms / 1000

    def note(self, text: str) -> None:
        now = time.time() - self._began
        for found in ROW.finditer(text):
            seen, step = self.shown[int(found[1])], int(found[3].replace(",", ""))
            if not seen or step > seen[-1][1]:
                seen.append((now, step))


def of_lines(lines: Sequence[Line], began_ms: int) -> dict[int, list[Shown]]:
    """Return what lines of ``run --json`` told of each rank, and when they were read."""
    told: dict[int, list[Shown]] = {rank: [] for rank in range(RANKS)}
    for line in lines:
        if '"event":"window"' in line.text:
            window = json.loads(line.text)
            seen = told[window["rank"]]
            if not seen or window["step"] > seen[-1][1]:
                seen.append((line.time_ns / 1e9 - began_ms / 1000, window["step"]))
    return told


@on_hosts()
def measure(
    bed: Testbed, folder: Path, seconds: float = 60.0, hosts: int = 2, flood: int = 0
) -> dict[str, Any]:
    """Watch a run for so long, of which so many ranks flood their output."""
    nproc = RANKS // hosts
    with ExitStack() as stack:
        script = folder / "marks.py"
        script.write_text(SCRIPT)
        began_ms = time.time_ns() // 1_000_000
        quiet, lines = str(RANKS - flood), str(LINES_PER_RECORD // max(1, flood))
        words = ("--json", "--nproc", str(nproc), str(script), str(began_ms), quiet, lines)
        run = stack.enter_context(Program(distconsole(bed, "run", *words), environment(folder)))
        name = json.loads(run.see('"event":"plan"')[0].text)["run"]
        run.see('"event":"window"', count=RANKS)
        elsewhere = folder / "screen"
        elsewhere.mkdir()
        attach = distconsole(bed, "attach", name)
        with Watched(attach, environment(elsewhere)) as first:  # compiles what it loads
            first.look_until(lambda text: len(ROW.findall(text)) >= RANKS, "the ranks")
        with Watched(attach, environment(elsewhere)) as console:
            console.look_until(lambda text: len(ROW.findall(text)) >= RANKS, "the ranks")
            console.look_for(SETTLING_SECONDS)
            screen = Screen(began_ms)
            before, cpu_before, since = console.bytes, cpu_seconds(console.pid), time.time()
            until = since + seconds
            while time.time() < until:
                if console.look(until - time.time()):
                    screen.note(console.glass.text)
            cpu = cpu_seconds(console.pid) - cpu_before
            sent, until, rss = console.bytes - before, time.time(), rss_bytes(console.pid)
            agents = [each.pid for host in bed.hosts for each in host.processes("pyz agent")]
            rss_agent = max(map(rss_bytes, agents))
            rss_json = rss_bytes(run.process.pid)
            wanted = int(1000 * until) - began_ms
            give_up = time.monotonic() + LONGEST_SECONDS
            while time.monotonic() < give_up and any(
                not seen or seen[-1][1] < wanted for seen in screen.shown.values()
            ):
                if console.look(0.1):
                    screen.note(console.glass.text)
        for host in bed.hosts:
            host.path(FINISH).touch()
        run.wait()
        left = {
            name: [
                bed.hosts[rank // nproc].path(f"/tmp/{name}-{rank}").read_text().split()
                for rank in range(RANKS)
            ]
            for name in ("marks", "lines")
        }
        marks = [[int(mark) for mark in each] for each in left["marks"]]
        printed = sum(int(lines) for (lines,) in left["lines"])
        told = of_lines(run.lines, began_ms)
    first, last = int(1000 * since) - began_ms, wanted

    def delays(shown: Mapping[int, Sequence[Shown]]) -> dict[str, Any]:
        found = [_delays(marks[rank], shown[rank], first, last) for rank in range(RANKS)]
        tail = Tail.of([delay for each, _ in found for delay in each])
        return {**asdict(tail), "missing": sum(missing for _, missing in found)}

    return {
        "ranks": RANKS,
        "seconds": until - since,
        "interval_seconds": WINDOW_SECONDS,
        "target_seconds": TIMES_THE_INTERVAL * WINDOW_SECONDS,
        "screen": delays(screen.shown),
        "json_lines": delays(told),
        "cpu_share": cpu / (until - since),
        "bytes_s": sent / (until - since),
        "rss_bytes": rss,
        "rss_json_bytes": rss_json,
        "rss_agent_bytes": rss_agent,
        "flooding": flood,
        "lines_s": printed / (max(map(max, marks)) / 1000),
    }


def delay_text(found: Mapping[str, float]) -> str:
    """Return delays in words."""
    median, p99, longest = (found[name] for name in ("median", "p99", "longest"))
    missing = f", {found['missing']} never came" if found["missing"] else ""
    return f"median {median:.2f} s, p99 {p99:.2f} s, longest {longest:.2f} s{missing}"


def rows(figures: Figures) -> list[Row]:
    target = figures["target_seconds"]
    cost = f"{figures['cpu_share']:.1%} of a core, {figures['rss_bytes'] / 1e6:.0f} MB"
    return [
        Row(
            f"from a record of {figures['ranks']} ranks to the screen ({cost})",
            delay_text(figures["screen"]),
            f"to a line of run --json: {delay_text(figures['json_lines'])}",
            f"p99 ≤ {target:.1f} s",
            figures["screen"]["p99"] <= target and not figures["screen"]["missing"],
        ),
        Row(
            f"{figures['flooding']} ranks print {figures['lines_s']:,.0f} lines/s",
            f"run --json {figures['rss_json_bytes'] / 1e6:.0f} MB, agent {figures['rss_agent_bytes'] / 1e6:.0f} MB",
        ),
    ]
