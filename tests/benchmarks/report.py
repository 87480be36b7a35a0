"""Every benchmark in turn, each in a process of its own, and their figures next to their targets.

It measures nothing itself. A benchmark that fails is reported and the others go on.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.alone import Row, run_alone, table
from benchmarks.measure import machine

TIME_LIMIT_SECONDS = 1800.0
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
    "slow_ranks": ("--only", "ddp", "--ranks", "2", "--seconds", "6"),
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
    "scale": ("--hosts", "128", "--seconds", "10", "--keys", "20", "--rounds", "1"),
}
"""The benchmarks in the order they run, and what makes each short."""


def run_all(names: Sequence[str], folder: Path, *, quick: bool) -> dict[str, str]:
    """Run the benchmarks one after the other; return why those that did not end well did not."""
    failures: dict[str, str] = {}
    for name in names:
        path = folder / f"{name}.json"
        path.unlink(missing_ok=True)
        options = ["--json", str(path), *(QUICK[name] if quick else ())]
        print(f"== {name} (load {os.getloadavg()[0]:.1f})", flush=True)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks", name, *options],
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
        if path.exists():
            rows += import_module(f"benchmarks.{name}").rows(
                json.loads(path.read_text())["figures"]
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in QUICK:
        return run_alone(import_module(f"benchmarks.{words[0]}"), words[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it work at all")
    parser.add_argument("--only", default=",".join(QUICK), help="names, separated by commas")
    parser.add_argument("--out", type=Path, default="build/benchmarks", help="JSON goes here")
    parser.add_argument("--no-run", action="store_true", help="only show what is in --out")
    given = parser.parse_args(words)
    names = given.only.split(",")
    if unknown := set(names) - QUICK.keys():
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(QUICK)}")
    given.out.mkdir(parents=True, exist_ok=True)
    failures = {} if given.no_run else run_all(names, given.out, quick=given.quick)
    print(table(rows_of(given.out, names)))
    print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))
    for name, why in failures.items():
        print(f"{name}: {why}", file=sys.stderr)
    print(f"figures: {given.out}/*.json")
    return int(bool(failures))
