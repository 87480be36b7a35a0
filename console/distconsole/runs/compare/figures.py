"""Runs side by side: figures with ratios, what was configured differently, and both in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from distconsole.model.comparison import (
    LETTERS,
    ComparedCurve,
    ComparedCurves,
    ComparedRun,
    Comparison,
    Figure,
    Setting,
)
from distconsole.runs.compare.best import more_is_better
from distconsole.runs.compare.statistics import AXES, PARTS, Compared
from distconsole.runs.compare.words import notes_on, words_of
from distconsole.runs.series import Series

MAX_METRICS = 32
"""Metrics that have a line in the table."""

Get = Callable[[Compared], float | None]

FIGURES: tuple[tuple[str, str, str, str, Get], ...] = (
    ("step_ms", "step time", "ms", "less", lambda run: run.statistics.step_ms.value),
    *(
        (part, title, "ms", "less", lambda run, part=part: run.statistics.parts[part].value)
        for part, title in PARTS.items()
    ),
    ("samples_s", "samples/s", "", "more", lambda run: run.summary.samples_s),
    ("gpu_util", "GPU utilisation", "%", "more", lambda run: run.statistics.gpu_util.value),
    ("start_up", "start to first step", "s", "less", lambda run: run.statistics.start_up_seconds),
    ("seconds", "time", "s", "less", lambda run: run.summary.seconds),
    ("steps", "steps", "", "", lambda run: run.summary.steps),
    ("spread", "slowest rank over fastest", "", "less", lambda run: run.summary.step_ms_spread),
    ("restarts", "restarts", "", "less", lambda run: run.summary.restarts),
)
"""Name, title, unit and which is better of the figures that a run may have."""


def compare(runs: Sequence[Compared]) -> Comparison:
    """Return ``runs``, two to eight, compared with the first of them."""
    figures = tuple(
        figure
        for figure in _figures(runs)
        if any(value not in (None, 0) for value in figure.values)
    )
    settings = [
        Setting(name=name, values=tuple(run.settings.get(name) for run in runs))
        for name in dict.fromkeys(name for run in runs for name in run.settings)
    ]
    differs = tuple(setting for setting in settings if len(set(setting.values)) > 1)
    return Comparison(
        runs=tuple(_run(letter, run) for letter, run in zip(LETTERS, runs, strict=False)),
        words=tuple(words_of(runs, figures, differs)),
        notes=tuple(notes_on(runs)),
        figures=figures,
        differs=differs,
        same=tuple(setting.name for setting in settings if setting not in differs),
    )


def curves_of(runs: Sequence[Compared]) -> tuple[ComparedCurves, ...]:
    """Return every curve that a run has, along each axis that it has it for; loss first."""
    found = []
    for axis in AXES:
        each = [run.statistics.curves()[axis] for run in runs]
        titles = dict.fromkeys(title for curves in each for title in curves)
        for title in sorted(titles, key=_order_of):
            curves = tuple(
                _curve(letter, run, curves[title], title)
                for letter, run, curves in zip(LETTERS, runs, each, strict=False)
                if title in curves and (len(curves[title]) or curves[title].broken)
            )
            if curves:
                found.append(ComparedCurves(title=title, axis=axis, curves=curves))
    return tuple(found)


def _run(letter: str, run: Compared) -> ComparedRun:
    steps = run.statistics.steps_of.values()
    return ComparedRun(
        letter=letter,
        summary=run.summary,
        first_step=min((first for first, _ in steps), default=None),
        last_step=max((last for _, last in steps), default=None),
    )


def _figures(runs: Sequence[Compared]) -> Iterator[Figure]:
    for name, title, unit, better, get in FIGURES:
        yield _figure(name, title, unit, better, [get(run) for run in runs])
    names = sorted({name for run in runs for name in run.summary.metrics}, key=_order_of)
    for name in names[:MAX_METRICS]:
        better = "more" if more_is_better(name) else "less"
        last = [run.summary.metrics.get(name) for run in runs]
        best = [run.statistics.timeline.best.get(name) for run in runs]
        yield _figure(f"last.{name}", f"{name}, last", "", better, last)
        yield _figure(f"best.{name}", f"{name}, best", "", better, best)


def _figure(
    name: str, title: str, unit: str, better: str, values: Sequence[float | None]
) -> Figure:
    known = tuple(each if each is None or math.isfinite(each) else None for each in values)
    first = known[0]
    ratios = tuple(
        each / first if each and first and min(each, first) > 0 else None for each in known
    )
    return Figure(name=name, title=title, unit=unit, values=known, ratios=ratios, better=better)


def _order_of(name: str) -> tuple[bool, bool, str]:
    return name != "loss", "acc" not in name.lower(), name


def _curve(letter: str, run: Compared, series: Series, title: str) -> ComparedCurve:
    # What the timeline itself keeps over time counts from no beginning.
    start = run.statistics.start if title in ("samples/s", "step ms", "GPU %") else 0.0
    xs, broken = (tuple(x - start for x in points) for points in (series.xs, series.broken))
    return ComparedCurve(
        letter=letter,
        xs=xs,
        values=tuple(series.values),
        lows=tuple(series.lows),
        highs=tuple(series.highs),
        broken=broken,
        gaps=tuple((begin - start, end - start) for begin, end in series.gaps),
    )
