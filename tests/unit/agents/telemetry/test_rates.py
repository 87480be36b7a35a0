"""Rates from counters: differences, resets, and counters too narrow to difference."""

from __future__ import annotations

from typing import Any

import pytest

from distconsole_agent.telemetry.rates import Rate


@pytest.mark.parametrize(
    ("kind", "readings"),
    [
        ({"unit": 1024.0}, [(100, 10.0, None), (300, 12.0, 100 * 1024.0)]),
        ({}, [(10**12, 0.0, None), (5, 1.0, None), (25, 2.0, 20.0)]),
        ({}, [(10, 0.0, None), (None, 1.0, None), (30, 2.0, None), (31, 3.0, 1.0)]),
        ({}, [(10, 1.0, None), (30, 1.0, None)]),
        (
            {"may_wrap": True},
            [
                (1000, 0.0, None),
                (5, 1.0, None),
                (2**32 + 7, 2.0, 2.0**32 + 2),
                (2**32 + 17, 3.0, 10.0),
            ],
        ),
    ],
    ids=[
        "the difference over the time between",
        "a counter that went back gives one empty interval",
        "a missing value empties the interval on both sides",
        "no time between two readings",
        "a reset counter counts again once it is past 32 bits",
    ],
)
def test_a_rate_is_known_between_two_readings_of_one_count(
    kind: dict[str, Any], readings: list[tuple[int | None, float, float | None]]
) -> None:
    rate = Rate(**kind)
    for value, at, expected in readings:
        assert rate.update(value, at) == expected


def test_a_counter_that_wrapped_at_32_bits_gives_no_more_rates() -> None:
    rate = Rate(may_wrap=True)
    rate.update(2**32 - 10, 0.0)
    assert rate.update(5, 1.0) is None
    assert rate.update(1005, 2.0) is None
