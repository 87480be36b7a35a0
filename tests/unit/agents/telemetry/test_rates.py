"""Rates from counters: differences, resets, and counters too narrow to difference."""

from __future__ import annotations

from distconsole_agent.telemetry.rates import Rate


def test_the_first_reading_has_no_rate() -> None:
    assert Rate().update(10, 0.0) is None


def test_a_rate_is_the_difference_over_the_time_between() -> None:
    rate = Rate(unit=1024.0)
    rate.update(100, 10.0)
    assert rate.update(300, 12.0) == 100 * 1024.0


def test_a_counter_that_went_back_gives_one_empty_interval() -> None:
    rate = Rate()
    rate.update(10**12, 0.0)
    assert rate.update(5, 1.0) is None
    assert rate.update(25, 2.0) == 20.0


def test_a_missing_value_empties_the_interval_on_both_sides() -> None:
    rate = Rate()
    rate.update(10, 0.0)
    assert rate.update(None, 1.0) is None
    assert rate.update(30, 2.0) is None
    assert rate.update(31, 3.0) == 1.0


def test_no_time_between_two_readings_gives_no_rate() -> None:
    rate = Rate()
    rate.update(10, 1.0)
    assert rate.update(30, 1.0) is None


def test_a_counter_that_wrapped_at_32_bits_gives_no_more_rates() -> None:
    rate = Rate(may_wrap=True)
    rate.update(2**32 - 10, 0.0)
    assert rate.update(5, 1.0) is None
    assert rate.update(1005, 2.0) is None


def test_a_reset_counter_counts_again_once_it_is_past_32_bits() -> None:
    rate = Rate(may_wrap=True)
    rate.update(1000, 0.0)
    rate.update(5, 1.0)
    rate.update(2**32 + 7, 2.0)
    assert rate.update(2**32 + 17, 3.0) == 10.0
