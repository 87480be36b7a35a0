"""How MIG profiles and throttle reasons are written."""

from __future__ import annotations

import pytest

from distconsole_agent.telemetry.device import profile, throttle_words


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, []),
        (0x1, []),
        (0x2, []),
        (0x4, ["power_cap"]),
        (0x8 | 0x40, ["hw_slowdown", "hw_thermal"]),
        (0x20 | 0x80 | 0x10, ["sync_boost", "sw_thermal", "hw_power_brake"]),
        (0x700, ["display_clock", "board_limit", "reliability"]),
        (1 << 40, []),
    ],
)
def test_throttle_reasons_are_words_and_idle_is_none(bits: int, words: list[str]) -> None:
    assert throttle_words(bits) == words


def test_a_profile_is_the_end_of_the_drivers_name() -> None:
    assert profile("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb") == "1c.3g.40gb"
    assert profile("NVIDIA A100") == profile(None) == "mig"
