"""Records lost or doubled by cuts: 8 ranks on two hosts at 100 steps/s each, while the network between
console and hosts is cut, or the agents are killed. It measures no speed.

Each rank counts its own steps and prints a line for every one; what the console stored must add up
to exactly that.
"""

import json
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row
from benchmarks.cluster import Program, distconsole, environment, on_hosts
from distconsole.model.names import RunId
from distconsole.runs.store.run_file import StoredEntry
from distconsole.runs.store.store import RunStore
from testbed import Testbed

NPROC = 4
RANKS = 2 * NPROC
FINISH = "/tmp/finish"
BETWEEN_SECONDS = 2.0
"""How long the run goes on in peace between two faults."""

AGENT = "pyz agent"
TOLD = re.compile(r"^total (\d+)$", re.MULTILINE)
STEP_LINE = re.compile(r"^step (\d+)$", re.MULTILINE)
GARBLED = re.compile(r"^(?!step \d+$|total \d+$).+$", re.MULTILINE)

SCRIPT = """\
import os, pathlib, sys, time
import torch

rate = float(sys.argv[1])
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch, wanted = torch.randn(16, 8), torch.randn(16, 1)
steps, due, finish = 0, time.monotonic(), pathlib.Path("/tmp/finish")
while steps % 20 or not finish.exists():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(batch), wanted).backward()
    optimizer.step()
    print("step", steps)
    steps += 1
    due = max(due + 1 / rate, time.monotonic() - 0.1)
    time.sleep(max(0.0, due - time.monotonic()))
print("total", steps)
"""


@dataclass(frozen=True)
class Audit:
    """What the stored entries say, next to what the ranks counted themselves.

    Attributes:
        ranks: Ranks that printed their own count.
        steps: Steps that the ranks counted, together.
        steps_off: Over all ranks, the absolute difference to the steps of their stored windows.
        lines_lost, lines_doubled: Printed lines that are missing, or there more than once.
        lines_garbled: Lines that no rank printed, as halves of doubled ones would make.
        gaps: Missing sequence numbers over all hosts.
        dropped: Records that the hosts said they had lost themselves.
        entries: Stored entries.
    """

    ranks: int
    steps: int
    steps_off: int
    lines_lost: int
    lines_doubled: int
    lines_garbled: int
    gaps: int
    dropped: int
    entries: int

    @property
    def off(self) -> int:
        """Records lost or doubled; zero is the target."""
        lines = self.lines_lost + self.lines_doubled + self.lines_garbled
        return self.steps_off + lines + self.gaps + self.dropped


def audit(entries: Iterable[StoredEntry]) -> Audit:
    """Add up the stored entries of a run of ``SCRIPT``."""
    windows: Counter[int] = Counter()
    printed: defaultdict[int, list[str]] = defaultdict(list)
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    dropped = 0
    for entry in entries:
        numbers[entry.host].append(entry.seq)
        body = json.loads(entry.body)
        if body["kind"] == "window":
            windows[body["rank"]] += body["steps"]
            dropped += body["dropped"]
        elif body["kind"] == "log" and body["stream"] == "out" and body["rank"] is not None:
            printed[body["rank"]].append(body["text"])
    texts = {rank: "".join(parts) for rank, parts in printed.items()}
    told = {rank: int(found[1]) for rank, text in texts.items() if (found := TOLD.search(text))}
    lines = {rank: Counter(map(int, STEP_LINE.findall(text))) for rank, text in texts.items()}
    return Audit(
        ranks=len(told),
        steps=sum(told.values()),
        steps_off=sum(abs(windows[rank] - steps) for rank, steps in told.items()),
        lines_lost=sum(len(range(told[rank]) - lines[rank].keys()) for rank in told),
        lines_doubled=sum(count - 1 for each in lines.values() for count in each.values()),
        lines_garbled=sum(len(GARBLED.findall(text)) for text in texts.values()),
        gaps=sum(max(seqs) - len(set(seqs)) for seqs in numbers.values()),
        dropped=dropped,
        entries=sum(map(len, numbers.values())),
    )


def blind_spots(entries: Sequence[StoredEntry]) -> int:
    """Return for how many kinds of lost or doubled entry ``audit`` would not have noticed."""
    unseen = 0
    for kind in ("window", "log"):
        at = next(
            number
            for number, entry in enumerate(entries)
            if (body := json.loads(entry.body))["kind"] == kind
            if kind == "log" or body["steps"] > 0
        )
        for changed in ([*entries[:at], *entries[at + 1 :]], [*entries[: at + 1], *entries[at:]]):
            unseen += audit(changed).off == 0
    return unseen


class Faults:
    """The faults of one run, each waited for until the console is past it."""

    def __init__(self, bed: Testbed, run: Program) -> None:
        self._bed = bed
        self._run = run

    def network(self, number: int) -> None:
        """Cut every host off until the console has noticed, or too shortly for that."""
        self._bed.cut_console()
        if number % 2:
            time.sleep(BETWEEN_SECONDS)
            self._bed.restore_console()
            return
        lost = self._links(connected=False)
        self._see_links(connected=False, count=lost + len(self._bed.hosts))
        back = self._links(connected=True)
        self._bed.restore_console()
        self._see_links(connected=True, count=back + len(self._bed.hosts))

    def agents(self, number: int) -> None:
        """Kill the agent of one host, or of both at once."""
        hosts = self._bed.hosts if number % 3 == 2 else [self._bed.hosts[number % 2]]
        back = self._links(connected=True)
        for host in hosts:
            if not host.signal(signal.SIGKILL, AGENT):
                raise RuntimeError(f"there is no agent to kill on {host.name}")
        self._see_links(connected=True, count=back + len(hosts))

    def _links(self, *, connected: bool) -> int:
        pattern = link(connected)
        return sum(re.search(pattern, line.text) is not None for line in self._run.lines)

    def _see_links(self, *, connected: bool, count: int) -> None:
        self._run.see(link(connected), count=count)


def link(connected: bool) -> str:
    return f'"event":"link".*"connected":{json.dumps(connected)}'


def suffer(bed: Testbed, folder: Path, fault: str, cuts: int, steps_s: float) -> dict[str, Any]:
    """Run 8 ranks through ``cuts`` faults; return the audit with the speed that was held."""
    script = folder / "eight_ranks.py"
    script.write_text(SCRIPT)
    words = ("--json", "--nproc", str(NPROC), str(script), str(steps_s))
    with Program(distconsole(bed, "run", *words), environment(folder)) as run:
        plan = json.loads(run.see('"event":"plan"')[0].text)
        run.see(r'"event":"log".*"line":"step 0"', count=RANKS)
        began = time.monotonic()
        faults = Faults(bed, run)
        for number in range(cuts):
            time.sleep(BETWEEN_SECONDS)
            getattr(faults, fault)(number)
        time.sleep(BETWEEN_SECONDS)
        for host in bed.hosts:
            host.path(FINISH).touch()
        seconds = time.monotonic() - began
        code = run.wait()
        lines = [line.text for line in run.lines]
    for host in bed.hosts:
        host.path(FINISH).unlink()
    with RunStore(folder / "data" / "distconsole" / "runs").open(RunId(plan["run"])) as file:
        entries = list(file.entries())
    found = audit(entries)
    shown = sum('"event":"log"' in text and '"line":"step ' in text for text in lines)
    return {
        "cuts": cuts,
        "exit_code": code,
        "seconds": seconds,
        "steps_s_a_rank": found.steps / RANKS / seconds,
        "audit": found,
        "lines_shown_off": shown - found.steps,
        "off": found.off + abs(shown - found.steps) + (RANKS - found.ranks),
        "blind_spots": blind_spots(entries),
    }


@on_hosts(2)
def measure(bed: Testbed, folder: Path, cuts: int = 10, steps_s: float = 100.0) -> dict[str, Any]:
    """Cut the network, then kill agents, each ``cuts`` times during a run."""
    return {fault: suffer(bed, folder, fault, cuts, steps_s) for fault in ("network", "agents")}


def rows(figures: Figures) -> list[Row]:
    return [
        Row(
            f"{found['cuts']} times {fault} lost, 8 ranks at {found['steps_s_a_rank']:.0f} steps/s",
            f"{found['off']} of {found['audit']['steps']:,} steps and lines lost or doubled",
            f"planted faults unseen: {found['blind_spots']} of 4",
            "0",
            found["off"] == 0 and found["blind_spots"] == 0,
        )
        for fault, found in figures.items()
    ]


def failed(figures: Figures) -> bool:
    return any(found["off"] or found["blind_spots"] for found in figures.values())
