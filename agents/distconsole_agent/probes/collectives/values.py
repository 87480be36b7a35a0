"""What the ranks of a short collective job compute with, whatever starts and carries them.

Inputs are a function of seed, index and rank, so that every rank knows the right result by itself.
They are whole numbers, small enough that every partial sum is exact in the type whatever the order
of addition: the tolerance is zero (the method of nccl-tests' verifiable.cu). An input repeats after
``PERIOD`` values, a prime, so that no two parts of a message are alike and any size is quick to
verify to its last value.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, NamedTuple

MARK = "distconsole-rank "
PERIOD = 4099
MANTISSA_BITS = {
    "float16": 11,
    "bfloat16": 8,
    "float32": 24,
    "float64": 53,
    "int32": 24,
    "int64": 53,
}
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
SPLIT_OPS = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations whose larger buffer holds a part for, or of, every rank; ``elements`` is of one part."""

MIN_ITERATIONS, MAX_ITERATIONS = 3, 100


class Case(NamedTuple):
    """One operation of one type and size; ``iterations`` to time: 0 for none, None to fit a time."""

    op: str
    dtype: str
    elements: int
    iterations: int | None


def say(**what: Any) -> None:
    """Print one line at once, by one write."""
    sys.stdout.flush()
    os.write(1, (MARK + json.dumps(what) + "\n").encode())


def stage(name: str) -> None:
    """Say how far this rank is."""
    say(stage=name, t=time.time())


def magnitudes(index: Any, rank: int, seed: int, limit: int) -> Any:
    """Whole numbers from 0 to ``limit`` - 1, for each index (a number, or a tensor), of one rank."""
    mixed = index * 2654435761 + rank * 40503 + seed * 7919
    mixed = (mixed ^ (mixed >> 15)) & 0x7FFFFFFF
    mixed = (mixed * 48271) & 0x7FFFFFFF
    return (mixed ^ (mixed >> 11)) % limit


def signs(index: Any, seed: int) -> Any:
    """+1 or -1 for each index, the same on every rank, so that sums do not cancel by chance."""
    return 1 - 2 * (((index * 40503 + seed) >> 3) & 1)


def limit_of(dtype: str, world: int) -> int:
    """Return what magnitudes stay below, so that the sum over all ranks is exact."""
    return min(max(2, (1 << MANTISSA_BITS[dtype]) // (2 * world)), 1 << 20)


def adds(dtype: str, rank: int, limit: int) -> bool:
    """Whether a rank's input is anything but zeros where it is added up.

    Beyond 256 ranks even zeros and ones would not add up exactly in the eight bits of bfloat16.
    """
    return dtype != "bfloat16" or rank < 256 // max(1, limit - 1)


def cases_of(job: dict[str, Any], world: int) -> list[Case]:
    """Return what a job asks for: its ``cases``, then its ``sweep`` of operations by sizes in bytes.

    The sweep has every operation at one size before the next size, so that a time that is short
    leaves out large messages and no operation.
    """
    cases = [
        Case(each["op"], each["dtype"], int(each["elements"]), each["iterations"])
        for each in job["cases"]
    ]
    sweep = job.get("sweep") or {"ops": [], "bytes": [], "dtype": "float32"}
    dtype = sweep["dtype"]
    if "barrier" in sweep["ops"]:
        cases.append(Case("barrier", dtype, 0, None))
    for size in sweep["bytes"]:
        for op in (op for op in sweep["ops"] if op != "barrier"):
            parts = world if op in SPLIT_OPS else 1
            cases.append(Case(op, dtype, max(1, size // (ITEM_BYTES[dtype] * parts)), None))
    return list(dict.fromkeys(cases))


def iterations_for(once_seconds: float, case_seconds: float) -> int:
    """Return how often to repeat what takes ``once_seconds`` at the slowest rank."""
    wanted = int(case_seconds / max(once_seconds, 1e-7))
    return min(max(wanted, MIN_ITERATIONS), MAX_ITERATIONS)
