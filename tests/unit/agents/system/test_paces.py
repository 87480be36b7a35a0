"""Claims about what nodes do at the same moment."""

from __future__ import annotations

import pytest

from distconsole_agent.system.steady import EARLY_SECONDS, to_next_second


@pytest.mark.parametrize("t", [0.0, 17.25, 1_763_700_000.5, 1_763_700_000.89])
def test_it_goes_on_at_a_whole_second(t: float) -> None:
    assert (t + to_next_second(t)) % 1.0 == pytest.approx(0.0, abs=1e-6)
    assert EARLY_SECONDS <= to_next_second(t) <= 1.0 + EARLY_SECONDS


def test_who_wakes_a_little_early_does_not_do_it_twice() -> None:
    assert to_next_second(16.999) == pytest.approx(1.001)
