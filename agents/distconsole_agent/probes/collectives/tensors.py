"""The inputs and the right results of a collective, as torch tensors."""

from __future__ import annotations

from typing import Any

from distconsole_agent.probes.collectives.values import (
    PERIOD,
    Case,
    adds,
    limit_of,
    magnitudes,
    signs,
)


class TensorValues:
    """Every rank's input and the right results, as patterns that repeat."""

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
        return self._torch.cat(parts)

    def buffer(self, values: Any, engine: Any) -> Any:
        """Return ``values`` where the engine works on them."""
        return values.to(engine.device)

    def compare(self, _case: Case, result: Any, right: Any) -> tuple[int, int]:
        """Return how many values are wrong, and of how many."""
        found, count = result.cpu().reshape(-1), right.numel()
        return int((found != right).sum()) if found.numel() == count else count, count

    def clear(self, given: Any) -> None:
        """Zero an input: repeated in place a sum would run out of its type."""
        given.zero_()

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
