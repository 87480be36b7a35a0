"""Every benchmark in turn, each in a process of its own, and their figures next to their targets.

It measures nothing itself. A benchmark that fails is reported and the others go on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.check_scale import check_scale_rows
from benchmarks.collectives_cost import collectives_cost_rows
from benchmarks.coordinator_scale import coordinator_rows
from benchmarks.death import text as death_text
from benchmarks.hour import hour_cells
from benchmarks.journal_cost import journal_cost_cells
from benchmarks.keys import key_cells
from benchmarks.laboratory import laboratory_rows
from benchmarks.measure import Spread, machine
from benchmarks.opening import opening_cells
from benchmarks.past_cost import past_cost_cells
from benchmarks.scale import scale_rows
from benchmarks.screen_delay import delay_cells
from benchmarks.start_container import start_container_rows
from benchmarks.start_engines import start_engines_rows
from benchmarks.start_ssh import start_ssh_rows
from benchmarks.strategy_cost import strategy_cost_rows
from benchmarks.trace_cost import trace_cost_rows
from testbed import missing

TIME_LIMIT_SECONDS = 1800.0
MIB = 2**20
BED = (
    "start",
    "start_slurm",
    "start_engines",
    "start_ssh",
    "start_container",
    "death",
    "cuts",
    "memory",
    "check_time",
    "check_scale",
    "laboratory",
    "sync_cost",
    "trace_cost",
    "screen_delay",
)
"""Benchmarks that need the hosts of the testbed."""

QUICK: dict[str, tuple[str, ...]] = {
    "agent_cost": ("--rounds", "2", "--samples", "3"),
    "journal_cost": ("--rounds", "3", "--seconds", "600"),
    "start": ("--rounds", "2"),
    "start_slurm": ("--rounds", "2"),
    "start_engines": ("--rounds", "2"),
    "start_ssh": ("--rounds", "2"),
    "start_container": ("--rounds", "2"),
    "death": ("--rounds", "1", "--torchrun-rounds", "0"),
    "cuts": ("--cuts", "3"),
    "memory": ("--rounds", "1"),
    "agent_memory": ("--runs", "30", "--lines", "100000"),
    "check_time": ("--rounds", "2"),
    "check_scale": ("--rounds", "2"),
    "laboratory": ("--healthy", "2"),
    "hook_cost": ("--rounds", "2", "--seconds", "2"),
    "verify_cost": ("--rounds", "2", "--checks", "10"),
    "sync_cost": ("--rounds", "2"),
    "trace_cost": ("--rounds", "2"),
    "strategy_cost": ("--steps", "24"),
    "collectives_cost": ("--rounds", "2"),
    "opening": ("--rounds", "5"),
    "tui_cost": ("--seconds", "5"),
    "past_cost": ("--rounds", "1"),
    "logs_cost": ("--rounds", "3"),
    "keys": ("--keys", "40"),
    "screen_delay": ("--seconds", "20"),
    "hour": ("--minutes", "5"),
    "coordinator_scale": ("--peers", "64,256", "--seconds", "3"),
    "scale": ("--hosts", "128", "--seconds", "10", "--keys", "20", "--rounds", "1"),
}
"""The benchmarks in the order they run, and what makes each short."""


@dataclass(frozen=True)
class Row:
    """One figure: what was measured, against what, and what was wanted.

    Attributes:
        met: None where there is no target.
    """

    figure: str
    measured: str
    reference: str = ""
    target: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = "" if self.met is None else ("met" if self.met else "MISSED")
        return (self.figure, self.measured, self.reference, self.target, verdict)


HEAD = ("figure", "measured, median [range]", "against, in the same run", "target", "")


def _spread(values: Mapping[str, float], scale: float = 1.0, digits: int = 2) -> str:
    return Spread(**values).text(scale, digits)


def start_rows(figures: Mapping[str, Any]) -> list[Row]:
    over = figures["ratios"]
    shown = {
        kind: f"{_spread(seconds)} s (script at {_spread(figures['script_seconds'][kind])} s)"
        for kind, seconds in figures["seconds"].items()
    }
    rows = [
        Row(
            f"start, {kind.replace('_', ' ')}",
            shown[kind],
            f"{_spread(over[kind])} of by hand",
            f"≤ {figures['target']} of by hand" if kind == "warm" else "",
            over[kind]["median"] <= figures["target"] if kind == "warm" else None,
        )
        for kind in over
    ]
    return [Row("start, by hand over ssh", shown["by_hand"]), *rows]


def start_slurm_rows(figures: Mapping[str, Any]) -> list[Row]:
    named = {"inside": "in a Slurm job", "submitted": "--slurm submits"}
    return (
        [
            Row(
                f"start, {named[kind]}",
                f"{_spread(figures['seconds'][kind])} s",
                f"{_spread(over)} of {against}, {_spread(figures['seconds'][against])} s",
                f"≤ {figures['target']} of {against}",
                over["median"] <= figures["target"],
            )
            for (kind, over), against in zip(
                figures["ratios"].items(), ("srun", "sbatch"), strict=True
            )
        ]
        if figures["ratios"]
        else []
    )


def death_rows(figures: Mapping[str, Any]) -> list[Row]:
    rows = []
    for kind, parts in figures["seconds"].items():
        launcher, death, wait = kind.split("/")
        ours = launcher == "distconsole"
        wanted = figures["target_seconds"]
        worst = max(parts["all"]["median"], parts["verdict"]["median"])
        rows.append(
            Row(
                f"death by {death}, others in {wait}: {launcher}".replace("in else", "else"),
                f"gone {death_text(parts['all'])} s, verdict {death_text(parts['verdict'])} s",
                "",
                f"≤ {wanted:g} s" if ours else "",
                worst <= wanted if ours else None,
            )
        )
    return rows


def cuts_rows(figures: Mapping[str, Any]) -> list[Row]:
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


def memory_rows(figures: Mapping[str, Any]) -> list[Row]:
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
            f"{_spread(figures['seconds']['ours'])} s",
            f"{_spread(figures['ratio'])} of ssh into a file",
        ),
    ]


def check_time_rows(figures: Mapping[str, Any]) -> list[Row]:
    every, targets = figures["seconds"], figures["targets"]
    peers = {"standard": "build"}
    said = {"ssh": "two ssh logins", "build": "horovodrun --check-build on one host"}
    return [
        Row(
            f"check, two hosts, {kind.replace('_', ' ')}",
            f"{_spread(seconds)} s",
            f"{said[peer]} {_spread(every[peer])} s"
            if (peer := peers.get(kind, "ssh")) in every
            else "",
            f"≤ {targets[kind]:g} s" if kind in targets else "",
            seconds["median"] <= targets[kind] if kind in targets else None,
        )
        for kind, seconds in every.items()
        if kind not in said
    ]


def agent_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    samplers, targets = figures["samplers"], figures["targets"]
    ours = samplers["ours"]
    peers = "; ".join(
        f"{kind} {_spread(found['cpu_share'], 100, 3)} %, {found['rss_bytes'] / MIB:.1f} MiB"
        for kind, found in samplers.items()
        if kind in ("bare_host", "bare_pynvml", "nvitop")
    )
    return [
        Row(
            "telemetry, 8 GPUs and host at 1 Hz",
            f"{_spread(ours['cpu_share'], 100, 3)} % of a core, {ours['rss_bytes'] / MIB:.1f} MiB",
            peers,
            f"≤ {targets['cpu_share']:.1%}, {targets['rss_bytes'] // MIB} MiB",
            ours["cpu_share"]["median"] <= targets["cpu_share"]
            and ours["rss_bytes"] <= targets["rss_bytes"],
        )
    ]


def agent_memory_rows(figures: Mapping[str, Any]) -> list[Row]:
    (_, first), *_, (last, held) = figures["marks"].items()
    target = figures["target"]
    return [
        Row(
            f"agent after {last}",
            f"{held['agent']['rss']} MiB",
            f"after one {first['agent']['rss']} MiB",
            f"≤ {target:g} MiB",
            held["agent"]["rss"] <= target,
        ),
        Row(
            f"console after {last}",
            f"{held['console']['rss']} MiB",
            f"after one {first['console']['rss']} MiB",
        ),
    ]


def journal_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    target, over = figures["target"], figures["ratio"]
    (figure, measured, against), appended = journal_cost_cells(dict(figures))
    wanted = f"≤ {target} of plain"
    return [Row(figure, measured, against, wanted, over["median"] <= target), Row(*appended)]


def hook_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    rows = [
        Row(
            f"hook, DDP steps of about {name}: step time over bare",
            f"{_spread(found['ratio'], 1, 4)}, bare {_spread(found['bare_seconds'], 1e3)} ms",
            f"bare over bare {_spread(found['floor'], 1, 4)}",
            f"≤ {found['target']}",
            found["ratio"]["median"] <= found["target"],
        )
        for name, found in figures["ddp"].items()
    ]
    loop = figures["loop"]
    peers = {"again": "bare", "before": "before", "traceml": "TraceML", "wandb": "wandb.log"}
    beside = [
        f"{label} {loop[kind]['paired_us']['median']:+.1f}"
        for kind, label in peers.items()
        if kind in loop
    ]
    ours = loop["watched"]["paired_us"]
    return [
        *rows,
        Row(
            "hook, CPU of a step of a plain loop, over bare turn by turn",
            f"{_spread(ours, 1, 1)} µs, bare {loop['bare']['least_us']:.0f}",
            ", ".join(beside) + " µs",
            f"≤ {figures['target_us']:g} µs",
            ours["median"] <= figures["target_us"],
        ),
    ]


def verify_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    return [
        Row(
            f"verification each {figures['each']} steps, {kind}",
            f"{_spread(found['share'], 100, 3)} % of the time, "
            f"{_spread(found['check_seconds'], 1e3)} ms a check",
            f"a step without one {_spread(found['floor'], 100, 3)} %, "
            f"steps of {_spread(found['step_seconds'], 1e3)} ms",
            f"≤ {figures['target']:.0%}",
            found["share"]["median"] <= figures["target"],
        )
        for kind, found in figures["models"].items()
    ]


def tui_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    ours, peer = figures["console"], figures["datatable"]
    return [
        Row(f"screen, {ranks} ranks", _screen(cost), f"a bare DataTable {_screen(peer[ranks])}")
        for ranks, cost in ours.items()
    ]


def past_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    target = f"≤ {figures['target_seconds']:g} s"
    return [
        Row(figure, measured, against, "" if met is None else target, met)
        for figure, measured, against, met in past_cost_cells(dict(figures))
    ]


def opening_rows(figures: Mapping[str, Any]) -> list[Row]:
    return [Row(*cells) for cells in opening_cells(figures)]


def _screen(cost: Mapping[str, float]) -> str:
    return (
        f"{cost['cpu_share']:.1%} of a core, {cost['rss_bytes'] / MIB:.0f} MiB, "
        f"{cost['bytes_s']:,.0f} bytes/s"
    )


def logs_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    return [
        Row(
            f"logs, {name.replace('_', ' ')}",
            f"{found['lines_s']['median']:,.0f} lines/s",
            f"reading them into a deque {figures['steps']['floor']['lines_s']['median']:,.0f}",
        )
        for name, found in figures["steps"].items()
        if name != "floor"
    ]


def keys_rows(figures: Mapping[str, Any]) -> list[Row]:
    return [Row(*cells) for cells in key_cells(dict(figures))]


def screen_delay_rows(figures: Mapping[str, Any]) -> list[Row]:
    return [Row(*cells) for cells in delay_cells(figures)]


def hour_rows(figures: Mapping[str, Any]) -> list[Row]:
    return [Row(*cells) for cells in hour_cells(dict(figures))]


def sync_cost_rows(figures: Mapping[str, Any]) -> list[Row]:
    seconds, wanted = figures["seconds"], figures["target_seconds"]
    peers = {"first": "", "changed": "rsync", "same": ""}
    names = {"first": "all new", "changed": "one changed", "same": "none changed"}
    return [
        Row(
            f"sync, {figures['files']:,} files to two hosts, {names[kind]}",
            f"{_spread(seconds[kind])} s",
            f"rsync -a {_spread(seconds[peer])} s" if peer in seconds else "",
            f"≤ {wanted:g} s" if kind == "changed" else "",
            seconds[kind]["median"] <= wanted if kind == "changed" else None,
        )
        for kind, peer in peers.items()
    ]


ROWS: dict[str, Callable[[Mapping[str, Any]], list[Row]]] = {
    "agent_cost": agent_cost_rows,
    "journal_cost": journal_cost_rows,
    "start": start_rows,
    "start_slurm": start_slurm_rows,
    "start_engines": start_engines_rows,
    "start_ssh": start_ssh_rows,
    "start_container": start_container_rows,
    "death": death_rows,
    "cuts": cuts_rows,
    "memory": memory_rows,
    "agent_memory": agent_memory_rows,
    "check_time": check_time_rows,
    "check_scale": check_scale_rows,
    "laboratory": laboratory_rows,
    "hook_cost": hook_cost_rows,
    "verify_cost": verify_cost_rows,
    "sync_cost": sync_cost_rows,
    "trace_cost": trace_cost_rows,
    "strategy_cost": strategy_cost_rows,
    "collectives_cost": collectives_cost_rows,
    "opening": opening_rows,
    "tui_cost": tui_cost_rows,
    "past_cost": past_cost_rows,
    "logs_cost": logs_cost_rows,
    "keys": keys_rows,
    "screen_delay": screen_delay_rows,
    "hour": hour_rows,
    "coordinator_scale": coordinator_rows,
    "scale": scale_rows,
}
"""What the summary takes from each."""


def run_all(names: Sequence[str], folder: Path, *, quick: bool) -> dict[str, str]:
    """Run the benchmarks one after the other; return why those that did not end well did not."""
    failures: dict[str, str] = {}
    for name in names:
        if name in BED and (reason := missing()):
            failures[name] = f"not run: {reason}"
            continue
        path = folder / f"{name}.json"
        path.unlink(missing_ok=True)
        options = ["--json", str(path), *(QUICK[name] if quick else ())]
        print(f"== {name} (load {os.getloadavg()[0]:.1f})", flush=True)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", f"benchmarks.{name}", *options],
                check=False,
                timeout=TIME_LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            failures[name] = f"not over after {TIME_LIMIT_SECONDS:g} s"
            continue
        if done.returncode:
            failures[name] = f"ended with {done.returncode}"
        print(f"   {time.monotonic() - began:.0f} s\n", flush=True)
    return failures


def rows_of(folder: Path, names: Sequence[str]) -> list[Row]:
    """Return the summary of what lies in ``folder``."""
    rows: list[Row] = []
    for name in names:
        path = folder / f"{name}.json"
        if name in ROWS and path.exists():
            rows += ROWS[name](json.loads(path.read_text())["figures"])
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table that is Markdown and can be read as it is."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    padded = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it work at all")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument(
        "--out", type=Path, default=Path("build/benchmarks"), help="JSON goes here"
    )
    parser.add_argument("--no-run", action="store_true", help="only show what is in --out")
    given = parser.parse_args(arguments)
    there = [name for name in QUICK if importlib.util.find_spec(f"benchmarks.{name}")]
    names = given.only.split(",") if given.only else there
    if unknown := set(names) - set(there):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    given.out.mkdir(parents=True, exist_ok=True)
    failures = {} if given.no_run else run_all(names, given.out, quick=given.quick)
    rows = rows_of(given.out, names)
    print(table(rows))
    print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))
    for name, why in failures.items():
        print(f"{name}: {why}", file=sys.stderr)
    print(f"figures: {given.out}/*.json")
    return int(bool(failures))
