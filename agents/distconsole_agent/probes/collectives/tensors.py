"""A collective on torch tensors: prepared, verified to the last bit, timed."""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple

from distconsole_agent.probes.collectives.values import (
    PERIOD,
    SPLIT_OPS,
    Case,
    adds,
    iterations_for,
    limit_of,
    magnitudes,
    signs,
)


class Prepared(NamedTuple):
    """An operation on buffers that are there: ``run`` does it, ``result`` is what it leaves."""

    run: Callable[[], object]
    result: Callable[[], Any]


class Values:
    """Every rank's input, as a pattern that repeats.

    Args:
        torch: The module.
        world: How many ranks.
        seed: Of the job.
    """

    def __init__(self, torch: Any, world: int, seed: int) -> None:
        self._torch, self._world, self._seed = torch, world, seed
        self._patterns: dict[tuple[str, int, bool], Any] = {}
        self._totals: dict[tuple[str, str], Any] = {}

    def of(self, case: Case, rank: int, first: int, count: int, shift: int) -> Any:
        """Return ``count`` values of a rank's input from index ``first``, in the case's type."""
        summed = case.op in ("all_reduce", "reduce", "reduce_scatter")
        pattern = self._pattern(case.dtype, rank, summed)
        return self._tiled(pattern, case.dtype, first + shift, count)

    def reduced(self, case: Case, first: int, count: int, shift: int) -> Any:
        """Return the sum over all ranks; the greatest for ``all_reduce_max``."""
        key = (case.dtype, "max" if case.op == "all_reduce_max" else "sum")
        if key not in self._totals:
            summed = key[1] == "sum"
            total = self._pattern(case.dtype, 0, summed).clone()
            for rank in range(1, self._world):
                part = self._pattern(case.dtype, rank, summed)
                total = total + part if summed else self._torch.maximum(total, part)
            self._totals[key] = total
        return self._tiled(self._totals[key], case.dtype, first + shift, count)

    def joined(self, parts: list[Any]) -> Any:
        """Return ``parts`` one after the other."""
        return self._torch.cat(parts)

    def _pattern(self, dtype: str, rank: int, summed: bool) -> Any:
        limit = limit_of(dtype, self._world)
        key = (dtype, rank, summed)
        if key not in self._patterns:
            index = self._torch.arange(PERIOD, dtype=self._torch.int64)
            numbers = magnitudes(index, rank, self._seed, limit) * signs(index, self._seed)
            live = adds(dtype, rank, limit) or not summed
            self._patterns[key] = numbers if live else numbers * 0
        return self._patterns[key]

    def _tiled(self, pattern: Any, dtype: str, first: int, count: int) -> Any:
        turned = self._torch.roll(pattern, -(first % PERIOD)).to(getattr(self._torch, dtype))
        return turned.repeat(-(-count // PERIOD) or 1)[:count]


def input_elements(case: Case, world: int) -> int:
    """Return how many values a rank puts in."""
    parts = world if case.op in ("reduce_scatter", "all_to_all") else 1
    return case.elements * parts


def compute_expected(values: Values, case: Case, rank: int, world: int, shift: int) -> Any:
    """Return the right result at ``rank``, computed here alone; None where it gets none.

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
        parts = [values.of(case, each, first, count, shift) for each in range(world)]
        return values.joined(parts)
    first = rank * count if case.op in SPLIT_OPS else 0
    return values.reduced(case, first, count, shift)


class Timed(NamedTuple):
    """What a case came to; ``seconds`` of one operation, None where it was not timed."""

    wrong: int
    verified: int
    seconds: float | None
    iterations: int


def measure(engine: Any, values: Values, case: Case, number: int, case_seconds: float) -> Timed:
    """Verify a case, which warms it up too, then time it.

    Args:
        engine: ``device``, ``rank``, ``world``, ``prepare(op, tensor)``, ``barrier()``,
            ``greatest(seconds)`` over all ranks, and ``synchronize()``.
        values: The inputs.
        case: What to do.
        number: Of the case, so that what an earlier one left in memory is not right for this one.
        case_seconds: For its repetitions, where it names no number of them.
    """
    shift = 17 * number
    count = input_elements(case, engine.world)
    tensor = values.of(case, engine.rank, 0, count, shift).to(engine.device)
    prepared = engine.prepare(case.op, tensor)
    began = time.perf_counter()
    prepared.run()
    engine.synchronize()
    once = time.perf_counter() - began
    right = compute_expected(values, case, engine.rank, engine.world, shift)
    wrong = verified = 0
    if right is not None:
        verified = right.numel()
        result = prepared.result().cpu().reshape(-1)
        same_length = result.numel() == verified
        wrong = int((result != right).sum()) if same_length else verified
    if case.iterations == 0:
        return Timed(wrong, verified, None, 0)
    # Repeated in place a sum would run out of its type.
    tensor.zero_()
    return Timed(wrong, verified, *repeat(engine, prepared, case, once, case_seconds))


def repeat(
    engine: Any, prepared: Prepared, case: Case, once: float, case_seconds: float
) -> tuple[float, int]:
    """Return the mean seconds of an operation, and over how many: as many on every rank."""
    iterations = case.iterations
    if iterations is None:
        prepared.run()
        engine.synchronize()
        began = time.perf_counter()
        prepared.run()
        engine.synchronize()
        once = time.perf_counter() - began
        iterations = iterations_for(engine.greatest(once), case_seconds)
    engine.barrier()
    engine.synchronize()
    began = time.perf_counter()
    for _ in range(iterations):
        prepared.run()
    engine.synchronize()
    return (time.perf_counter() - began) / iterations, iterations
