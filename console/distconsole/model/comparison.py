"""Results of comparing runs: values that the text, the JSON and the screen show."""

from __future__ import annotations

import msgspec

from distconsole.model.run_summary import RunSummary

LETTERS = "ABCDEFGH"
"""Names of the runs, in the order in which they were given."""


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run; UNIX seconds, steps but the first window's; ``first_step`` to ``last_step`` if it has metrics."""

    letter: str
    summary: RunSummary
    first_step: int | None = None
    last_step: int | None = None


class ComparedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of every run, null if unknown; ``ratios`` to the first; ``better``: ``less``, ``more`` or empty."""

    name: str
    title: str
    unit: str
    values: tuple[float | None, ...]
    ratios: tuple[float | None, ...]
    better: str = ""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was configured differently; null if a run does not have it."""

    name: str
    values: tuple[str | None, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Runs side by side; the others are compared with the first.

    Attributes:
        words: Conclusions for a person, the most important first.
        notes: Reasons why the figures are comparable in part only.
        differs: Settings that differ.
        same: Names of equal settings.
    """

    runs: tuple[ComparedRun, ...]
    words: tuple[str, ...]
    notes: tuple[str, ...]
    figures: tuple[ComparedFigure, ...]
    differs: tuple[Setting, ...]
    same: tuple[str, ...]


class ComparedCurve(msgspec.Struct, frozen=True, kw_only=True):
    """A run's curve: rising ``xs``, mean, lowest and highest rank; ``broken``: no number; ``gaps``: nothing."""

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
