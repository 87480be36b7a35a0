"""Functions over all rows: how many, any, all, and figures of a field. What is unknown is left out of figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from distconsole.expression.fields import Kind, Value
from distconsole.expression.judged import Part, Rows, finite


def counted_all() -> Part:
    """Return how many rows there are."""
    return Part(lambda _row, rows: len(rows.rows), Kind.NUMBER)


def of_flags(function: str, inside: Part) -> Part:
    """Return ``any``, ``all`` or ``count`` of the rows for which ``inside`` holds."""
    work = {"any": _any, "all": _all, "count": _count}[function]
    kind = Kind.NUMBER if function == "count" else Kind.FLAG
    return Part(_once(inside, work), kind)


def of_numbers(function: str, inside: Part) -> Part:
    """Return a figure of ``inside`` over all rows for which it is known; of none it is unknown."""
    work = FIGURES[function]

    def figure(values: Sequence[Value]) -> Value:
        known = [value for value in values if isinstance(value, int | float)]
        return finite(work(known)) if known else None

    return Part(_once(inside, figure), Kind.NUMBER, inside.measure, inside.bare)


def _once(inside: Part, work: Callable[[Sequence[Value]], Value]) -> Callable[[Any, Rows], Value]:
    """Return what asks all rows the first time, and then remembers it as long as the rows are judged."""
    asks = inside.asks
    key = id(asks)

    def value(_row: Any, rows: Rows) -> Value:
        if key not in rows.known:
            rows.known[key] = work([asks(each, rows) for each in rows.rows])
        return rows.known[key]

    return value


def _any(values: Sequence[Value]) -> Value:
    if any(value is True for value in values):
        return True
    return None if any(value is None for value in values) else False


def _all(values: Sequence[Value]) -> Value:
    """Of no rows nothing is known: before a run has ranks it is not said that all of them ended."""
    if any(value is False for value in values):
        return False
    return None if not values or any(value is None for value in values) else True


def _count(values: Sequence[Value]) -> Value:
    return sum(value is True for value in values)


def share_of(values: Sequence[float], percent: int) -> float:
    """Return the smallest of ``values`` that at least ``percent`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "p95": lambda values: share_of(values, 95),
    "p99": lambda values: share_of(values, 99),
}
