"""The league table: real trainings with a seeded fault each, and whether the culprit is named.

``make league`` runs all; ``python -m league`` (with tests/ on PYTHONPATH) takes the options below. Each case is
one line of JSON in the file of results; with the same ``--resume`` file those that are there are not run again.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from league.asked import obstacle_of_asked, try_asked
from league.cases import CLASSES, HERE, Case, choose_quick, make_cases
from league.page import write_page
from league.scoring import asked_table, misses, score, table
from league.soak import soak
from league.trying import HOST_FAULTS, ON_BED, Verdict, as_json, nodes, obstacle_of, try_case
from suite.environment import scrubbed

SEED = 1
TOGETHER = {"hang": 3, "dying": 3, "wrong": 3, "healthy": 2, "asked": 2, "slow": 1}
"""Class -> how many run at once on two cores: who waits for a fault disturbs nobody, what is measured runs alone."""
SAMPLE_EVERY = 8
"""Of the hangs: one in so many is looked at by today's tools, too, and the finding that comes by itself waited for."""


def main() -> int:
    asked = _options().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = Path(asked.resume)
    results.parent.mkdir(parents=True, exist_ok=True)
    if asked.soak:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            _hide_the_developer(Path(folder))
            return soak(asked.soak, asked.seed, results.with_name("soak.jsonl"), Path(folder))
    cases = _choose(asked)
    if asked.list:
        print("\n".join(f"{case.name}  {'held out' if case.held_out else ''}" for case in cases))
        return 0
    before = read_rows(results)
    done = {row["case"]["name"] for row in before}
    sample = {case.name for case in [c for c in cases if c.klass == "hang"][::SAMPLE_EVERY]}
    todo = [] if asked.no_run else _possible([c for c in cases if c.name not in done])
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="league-") as folder:
        _hide_the_developer(Path(folder))
        scripts = Path(
            shutil.copytree(HERE, Path(folder) / "scripts")
        )  # who edits them disturbs no run
        _run_all(todo, asked, sample, results, scripts)
    after = read_rows(results)
    rows = rescore(after, cases)
    print(f"\n{table(rows)}\n\n{misses(rows)}\n")
    print(asked_table(row for row in rows if row["case"]["klass"] == "asked"))
    print(
        f"{len(after) - len(before)} of {len(todo)} cases ran in {(time.monotonic() - began) / 60:.1f} min; {results}"
    )
    if asked.page:
        words = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
        write_page(Path(asked.page), rows, asked.seed, machine(), commit)
    return 0


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m league", description=__doc__)
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument(
        "--only", default="", help=f"classes of {', '.join(CLASSES)}, or words in a case's name"
    )
    options.add_argument(
        "--half", choices=("tuned", "held-out"), help="only this half of the cases"
    )
    options.add_argument("--quick", action="store_true", help="about twelve cases of all classes")
    options.add_argument(
        "--jobs", type=int, default=3, help="cases at once, at most; slow ones run one by one"
    )
    options.add_argument("--resume", default="build/league/results.jsonl", metavar="FILE")
    options.add_argument(
        "--calls", metavar="FOLDER", help="keep there what the ranks of each hang told"
    )
    options.add_argument(
        "--page", metavar="FILE", help="write the table there, as docs/reliability.md is"
    )
    options.add_argument(
        "--minutes", type=float, default=600.0, help="begin no case after so many"
    )
    options.add_argument("--no-run", action="store_true", help="the table of what is there")
    options.add_argument(
        "--soak", type=float, metavar="MINUTES",
        help="train healthily for so long, and say what is said of it; exit code 1 after an alarm",
    )  # fmt: skip
    options.add_argument("--list", action="store_true", help="name the cases, and stop")
    return options


def _choose(asked: argparse.Namespace) -> list[Case]:
    cases = make_cases(asked.seed)
    words = [word for word in asked.only.split(",") if word]
    if words:
        cases = [
            c
            for c in cases
            if c.klass in words or any(w in c.name for w in words if w not in CLASSES)
        ]
    if asked.half:
        cases = [case for case in cases if case.held_out is (asked.half == "held-out")]
    return choose_quick(cases) if asked.quick else cases


def _possible(cases: list[Case]) -> list[Case]:
    """Return the cases that this machine can run; name the others, and why not."""
    obstacles = {
        case.name: obstacle_of_asked(case) if case.klass == "asked" else obstacle_of(case)
        for case in cases
    }
    for name, why in obstacles.items():
        if why:
            print(f"skipped {name}: {why}")
    return [case for case in cases if not obstacles[case.name]]


def read_rows(results: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results; none where there is no file yet."""
    return (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )


def rescore(rows: list[dict[str, Any]], cases: list[Case]) -> list[dict[str, Any]]:
    """Return the newest row of each case, judged by the words that the case expects now."""
    newest = {row["case"]["name"]: row for row in rows}
    found = []
    for case in cases:
        if (row := newest.get(case.name)) is not None:
            verdict = Verdict(**row["verdict"])
            then = replace(Case(**row["case"]), kinds=case.kinds, waits=case.waits)
            found.append(as_json(then, verdict, score(then, verdict)) | {"wall_s": row["wall_s"]})
    return found


def _hide_the_developer(folder: Path) -> None:
    environment = scrubbed(os.environ) | {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    os.environ.clear()
    os.environ.update(environment)


def _run_all(
    todo: list[Case], asked: argparse.Namespace, sample: set[str], results: Path, scripts: Path
) -> None:
    """Run what may run together at once; what is timed runs alone."""
    calls = Path(asked.calls) if asked.calls else None
    if calls is not None:
        calls.mkdir(parents=True, exist_ok=True)
    writing = threading.Lock()
    count = iter(range(1, len(todo) + 1))
    until = time.monotonic() + 60 * asked.minutes

    def work(cases: queue.SimpleQueue[Case], own: Path) -> None:
        while not cases.empty() and time.monotonic() < until:
            bed = own.name.startswith("bed")
            with nodes(own / str(time.monotonic_ns()), bed=bed) as (cluster, sessions):
                while time.monotonic() < until:
                    try:
                        case = cases.get_nowait()
                    except queue.Empty:
                        return
                    began = time.monotonic()
                    waits = case.name in sample and case.fault not in HOST_FAULTS and not bed
                    verdict = (
                        try_asked(case)
                        if case.klass == "asked"
                        else try_case(case, scripts, cluster, sessions, sampled=waits, calls=calls)
                    )
                    with writing:
                        row = as_json(case, verdict, score(case, verdict))
                        row["wall_s"] = round(time.monotonic() - began, 1)
                        with results.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                        _tell(next(count), len(todo), case, verdict, row)
                    if case.fault in HOST_FAULTS or verdict.error:
                        break

    for kind, at_once in product(("embedded", "bed"), (3, 2, 1)):
        some = [
            case
            for case in todo
            if TOGETHER[case.klass] == at_once and (case.launcher in ON_BED) is (kind == "bed")
        ]
        some.sort(key=lambda case: (case.klass, -case.ranks))
        cases: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in some:
            cases.put(case)
        workers = [
            threading.Thread(
                target=work, args=(cases, scripts.parent / f"{kind}-{at_once}-{number}")
            )
            for number in range(min(at_once, asked.jobs, len(some)))
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except KeyboardInterrupt:  # those that run end, and no other begins
            while not cases.empty():
                cases.get()
            raise


def _tell(number: int, of: int, case: Case, verdict: Verdict, row: dict[str, Any]) -> None:
    good = "ok  " if row["score"]["all"] else "MISS"
    said = verdict.error or verdict.said or "; ".join(verdict.alarms) or "nothing was said"
    print(f"{number:3}/{of} {good} {case.name} [{row['wall_s']:.0f} s]", flush=True)
    if good == "MISS":
        own = {part: value for part, value in row["score"].items() if value is False}
        print(
            f"       odd {case.odd} {case.mark} {own}\n       {verdict.kind} {verdict.ranks} {verdict.place}: {said[:700]}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
