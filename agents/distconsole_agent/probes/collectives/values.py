"""Inputs and results of a short collective job, for every engine and launcher.

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
from typing import Any, Callable, NamedTuple

MARK = "distconsole-rank "
PERIOD = 4099
MANTISSA_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "int64": 53}
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int64": 8}
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
    """Return the bound of magnitudes for which the sum over all ranks is exact."""
    return min(max(2, (1 << MANTISSA_BITS[dtype]) // (2 * world)), 1 << 20)


def adds(dtype: str, rank: int, limit: int) -> bool:
    """Return True if a rank's input is not all zeros: a sum of more than 256 is inexact in bfloat16."""
    return dtype != "bfloat16" or rank < 256 // max(1, limit - 1)


def cases_of(job: dict[str, Any], world: int) -> list[Case]:
    """Return the ``cases`` of a job, then its ``sweep`` of operations by sizes in bytes.

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
    """Return how often to repeat an operation of ``once_seconds`` at the slowest rank."""
    wanted = int(case_seconds / max(once_seconds, 1e-7))
    return min(max(wanted, MIN_ITERATIONS), MAX_ITERATIONS)


class PreparedCollective(NamedTuple):
    """An operation on allocated buffers: ``run`` performs it, ``result`` is its output."""

    run: Callable[[], object]
    result: Callable[[], Any]


class Timed(NamedTuple):
    """Result of a case; ``seconds`` of one operation, None if it was not timed."""

    wrong: int
    verified: int
    seconds: float | None
    iterations: int


def compute_expected(values: Any, case: Case, rank: int, world: int, shift: int) -> Any:
    """Return the right result at ``rank``, computed here alone; None if it gets none.

    ``broadcast`` and ``reduce`` are from and to the last rank; in ``send_recv`` every rank sends to
    the next one.
    """
    count = case.elements
    if case.op == "barrier" or (case.op == "reduce" and rank != world - 1):
        return None
    if case.op == "broadcast":
        return values.of(case, world - 1, 0, count, shift)
    if case.op == "send_recv":
        return values.of(case, (rank - 1) % world, 0, count, shift)
    if case.op in ("all_gather", "all_to_all"):
        first = rank * count if case.op == "all_to_all" else 0
        return values.joined([values.of(case, each, first, count, shift) for each in range(world)])
    first = rank * count if case.op in SPLIT_OPS else 0
    return values.reduced(case, first, count, shift)


def measure(engine: Any, values: Any, case: Case, number: int, case_seconds: float) -> Timed:
    """Verify a case, which warms it up too, then time it.

    Args:
        engine: ``rank``, ``world``, ``prepare(case, given)``, ``barrier()``, ``greatest(seconds)``
            over all ranks, and ``synchronize()``.
        values: The inputs (``TensorValues``, ``ByteValues``).
        number: Of the case, so that the output of an earlier one in memory is not right for this one.
        case_seconds: For its repetitions, unless it has a number of them.
    """
    shift = 17 * number
    parts = engine.world if case.op in ("reduce_scatter", "all_to_all") else 1
    given = values.buffer(values.of(case, engine.rank, 0, case.elements * parts, shift), engine)
    prepared = engine.prepare(case, given)
    prepared.run()
    engine.synchronize()
    right = compute_expected(values, case, engine.rank, engine.world, shift)
    wrong, verified = (0, 0) if right is None else values.compare(case, prepared.result(), right)
    if case.iterations == 0:
        return Timed(wrong, verified, None, 0)
    values.clear(given)
    return Timed(wrong, verified, *repeat(engine, prepared, case, case_seconds))


def repeat(
    engine: Any, prepared: PreparedCollective, case: Case, case_seconds: float
) -> tuple[float, int]:
    """Return the mean seconds of an operation, and over how many: as many on every rank."""
    iterations = case.iterations
    if iterations is None:
        _time(engine, prepared, 1)
        once = engine.greatest(_time(engine, prepared, 1))
        iterations = iterations_for(once, case_seconds)
    engine.barrier()
    engine.synchronize()
    return _time(engine, prepared, iterations), iterations


def _time(engine: Any, prepared: PreparedCollective, iterations: int) -> float:
    """Return the mean seconds of an operation until all that was begun is done."""
    began = time.perf_counter()
    for _ in range(iterations):
        prepared.run()
    engine.synchronize()
    return (time.perf_counter() - began) / iterations
