"""Units of numbers, and their quantities. Values are kept in seconds, bytes, percent, W, °C and Hz."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Measure(StrEnum):
    """Quantity of a number."""

    PLAIN = "a plain number"
    TIME = "a time"
    BYTES = "an amount of bytes"
    RATE = "bytes a second"
    SHARE = "a share in %"
    POWER = "a power"
    HEAT = "a temperature"
    CLOCK = "a clock rate"


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its quantity, and its factor to the kept unit."""

    measure: Measure
    factor: float


def _bytes() -> dict[str, Unit]:
    units = {"B": 1.0}
    for power, letter in enumerate("kMGTP", 1):
        units[f"{letter}B"] = 1000.0**power
        units[f"{letter.upper()}iB"] = 1024.0**power
        units[f"{letter.upper()}B"] = 1000.0**power
    return {name: Unit(Measure.BYTES, factor) for name, factor in units.items()}


UNITS: dict[str, Unit] = {
    "": Unit(Measure.PLAIN, 1.0),
    "ns": Unit(Measure.TIME, 1e-9),
    "us": Unit(Measure.TIME, 1e-6),
    "µs": Unit(Measure.TIME, 1e-6),
    "ms": Unit(Measure.TIME, 1e-3),
    "s": Unit(Measure.TIME, 1.0),
    "min": Unit(Measure.TIME, 60.0),
    "h": Unit(Measure.TIME, 3600.0),
    "d": Unit(Measure.TIME, 86400.0),
    **_bytes(),
    **{f"{name}/s": Unit(Measure.RATE, unit.factor) for name, unit in _bytes().items()},
    "%": Unit(Measure.SHARE, 1.0),
    "W": Unit(Measure.POWER, 1.0),
    "kW": Unit(Measure.POWER, 1000.0),
    "C": Unit(Measure.HEAT, 1.0),
    "°C": Unit(Measure.HEAT, 1.0),
    "Hz": Unit(Measure.CLOCK, 1.0),
    "MHz": Unit(Measure.CLOCK, 1e6),
    "GHz": Unit(Measure.CLOCK, 1e9),
}
"""By the way that they are written; the empty one is a number without a unit."""
