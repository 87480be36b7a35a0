"""What it takes to judge a hang of many ranks: ``python -m benchmarks.judge_scale [RANKS]``."""

from __future__ import annotations

import sys
import time

from distconsole.runs.diagnosis.judge import judge
from suite.roll_calls import roll_of

CASES = {
    "one is elsewhere": {7: {"at": "load data.py:3"}},
    "half of them are": {"0-511": {"at": "load data.py:3"}},
    "all wait": {},
    "one calls a barrier": {7: {"waits": "barrier 2507 train.py:95"}},
    "no recorder": {"each": {"waits": "backward - train.py:88"}, 7: {"at": "load data.py:3", "recorder": False}},
}  # fmt: skip


def main() -> None:
    world = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    for title, words in CASES.items():
        case = {
            "world": world,
            "per_host": 8,
            "each": {"waits": "backward 2507 train.py:88"},
            **words,
        }
        roll = roll_of(case)
        began = time.perf_counter()
        found = judge(roll)
        seconds = time.perf_counter() - began
        print(f"{world:,} ranks, {title}: {1000 * seconds:.0f} ms: {found.summary[:110]}")


if __name__ == "__main__":
    main()
