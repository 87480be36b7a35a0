"""Runs cases of the campaign: ``python -m campaign`` with tests/ on PYTHONPATH, or ``make campaign CAMPAIGN="…"``.

Each case is a line of JSON in the file of results; seeds that are there are not run again. ``--seeds 17`` replays one,
and leaves what it printed and what the hosts had in build/campaign/17.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from campaign.cases import draw
from campaign.page import counts, write_page
from campaign.trying import bed, keep_evidence, obstacle_of, try_case
from suite.environment import scrubbed

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path("build/campaign")


def main() -> int:
    asked = _options().parse_args()
    # A shell has what it starts in the background ignore it, and so would the consoles.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results = Path(asked.resume)
    results.parent.mkdir(parents=True, exist_ok=True)
    before = read_rows(results)
    if not asked.no_run:
        _run(asked, results, {row["seed"] for row in before})
    rows = read_rows(results)
    if asked.page:
        write_page(Path(asked.page), rows)
    print(counts(rows))
    new = rows[len(before) :]
    return int(any(row["problems"] for row in new))


def _run(asked: argparse.Namespace, results: Path, done: set[int]) -> None:
    seeds = _seeds(asked, done)
    until = time.monotonic() + asked.minutes * 60
    lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        kept = scrubbed(os.environ)
        os.environ.clear()
        # The tree that this file is of, whatever is installed.
        roots = [str(ROOT / each) for each in ("console", "agents", "training")]
        os.environ.update({**kept, "HOME": folder, "PYTHONPATH": os.pathsep.join(roots)})
        workers = [
            threading.Thread(
                target=_work, args=(seeds, until, results, lock, Path(folder) / str(n))
            )
            for n in range(asked.beds)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def _seeds(asked: argparse.Namespace, done: set[int]) -> queue.SimpleQueue[int]:
    seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
    if asked.seeds:
        wanted: Iterator[int] = iter([int(each) for each in asked.seeds.split(",")])
    else:
        words = asked.only.split(",") if asked.only else [""]
        some = (
            n
            for n in count(asked.first)
            if n not in done and any(w in draw(n).name for w in words)
        )
        wanted = (next(some) for _ in range(asked.cases))
    for seed in wanted:
        seeds.put(seed)
    return seeds


def _work(
    seeds: queue.SimpleQueue[int], until: float, results: Path, lock: threading.Lock, folder: Path
) -> None:
    while time.monotonic() < until and not seeds.empty():
        with (
            suppress(RuntimeError),
            bed() as (hosts, slurm),
        ):  # hosts that do not come up are no case
            broken = False
            while not broken and time.monotonic() < until:
                try:
                    seed = seeds.get_nowait()
                except queue.Empty:
                    return
                row = _try(seed, hosts, folder)
                with lock, results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                    verdict = (
                        "SKIP " if row["skipped"] else "WRONG" if row["problems"] else "ok   "
                    )
                    print(
                        f"{verdict} {row['name']} {row['seconds']} s {'; '.join(row['problems'])}",
                        flush=True,
                    )
                # A case that was begun and whose fault could not be made leaves its run to go on.
                left_going = row["skipped"] and row["seconds"] > 0
                broken = bool(row["problems"] or left_going) or any(
                    not host.is_on for host in hosts.hosts
                )
                if not broken:
                    slurm.cancel_all()
                    slurm.wait_until_up()


def _try(seed: int, hosts: Any, folder: Path) -> dict[str, Any]:
    case = draw(seed)
    row = {"seed": seed, "name": case.name, "case": asdict(case), "t": round(time.time())}
    if lacking := obstacle_of(case):
        return {**row, "problems": [], "skipped": lacking, "seconds": 0}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    result = try_case(case, hosts, folder)
    if result.problems:
        keep_evidence(hosts, folder, BUILD / str(seed))
    return {**row, **asdict(result), "seconds": round(time.monotonic() - began, 1)}


def read_rows(results: Path) -> list[dict[str, Any]]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text().splitlines()]


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no case after so long")
    parser.add_argument("--cases", type=int, default=10_000, help="at most so many")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", help="just these, again")
    parser.add_argument("--only", help="words in the names of cases: launchers, faults, moments")
    parser.add_argument("--beds", type=int, default=2, help="so many at once")
    parser.add_argument(
        "--resume", default=str(BUILD / "results.jsonl"), help="the file of results"
    )
    parser.add_argument("--page", help="write the counts into this page")
    parser.add_argument("--no-run", action="store_true", help="only write the counts")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
