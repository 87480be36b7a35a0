"""What comparing runs comes to: values that the text, the JSON and the screen show."""

from __future__ import annotations

import msgspec

from distconsole.model.run_summary import RunSummary

LETTERS = "ABCDEFGH"
"""What the runs are called, in the order in which they were named."""


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run; times in UNIX seconds, of steps whose first window is left out.

    Attributes:
        first_step, last_step: The steps that its metrics tell of; None without any.
    """

    letter: str
    summary: RunSummary
    first_step: int | None = None
    last_step: int | None = None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of every run, null where it is not known.

    Attributes:
        unit: ``ms``, ``s``, ``%`` or nothing.
        values: By run.
        ratios: To the first run's; null where either is not known, or not above zero.
        better: ``less``, ``more``, or empty where neither is.
    """

    name: str
    title: str
    unit: str
    values: tuple[float | None, ...]
    ratios: tuple[float | None, ...]
    better: str = ""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was configured differently; null where a run does not have it."""

    name: str
    values: tuple[str | None, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Runs side by side; the first is what the others are compared with.

    Attributes:
        words: What a person wants to know, the most important first.
        notes: What makes the figures comparable in part only.
        differs: What differs of the configuration.
        same: Names of what does not.
    """

    runs: tuple[ComparedRun, ...]
    words: tuple[str, ...]
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]
    differs: tuple[Setting, ...]
    same: tuple[str, ...]


class ComparedCurve(msgspec.Struct, frozen=True, kw_only=True):
    """A curve of one run: rising ``xs``, means and the lowest and highest rank.

    Attributes:
        broken: Where it was no number.
        gaps: From where to where nothing was measured.
    """

    letter: str
    xs: tuple[float, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    broken: tuple[float, ...] = ()
    gaps: tuple[tuple[float, float], ...] = ()


class ComparedCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The runs' curves of one thing along one axis: ``step``, ``seconds`` or ``samples``."""

    title: str
    axis: str
    curves: tuple[ComparedCurve, ...]
