"""Runs side by side: figures with ratios, what was configured differently, and both in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distconsole.model.comparison import (
    LETTERS,
    ComparedCurve,
    ComparedCurves,
    ComparedRun,
    Comparison,
    Figure,
    Setting,
)
from distconsole.model.run_summary import RunSummary
from distconsole.runs.compare.best import more_is_better
from distconsole.runs.compare.tally import AXES, Tally
from distconsole.runs.compare.words import notes_on, words_of
from distconsole.runs.series import Series

MAX_METRICS = 32
"""Metrics that have a line in the table."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One run to compare.

    Attributes:
        summary: What ``show`` says of it.
        tally: The fold of its events, closed.
        settings: How it was configured, by name.
    """

    summary: RunSummary
    tally: Tally
    settings: Mapping[str, str]


def compare(runs: Sequence[Compared]) -> Comparison:
    """Return ``runs``, two to eight, compared with the first of them."""
    figures = _figures(runs)
    differs, same = _settings(runs)
    tallies = [run.tally for run in runs]
    summaries = [run.summary for run in runs]
    return Comparison(
        runs=tuple(_run(letter, run) for letter, run in zip(LETTERS, runs, strict=False)),
        words=tuple(words_of(summaries, tallies, figures, differs)),
        notes=tuple(notes_on(summaries, tallies)),
        figures=figures,
        differs=differs,
        same=same,
    )


def curves_of(runs: Sequence[Compared]) -> tuple[ComparedCurves, ...]:
    """Return every curve that a run has, along each axis that it has it for; loss first."""
    found = []
    for axis in AXES:
        each = [run.tally.curves()[axis] for run in runs]
        titles = dict.fromkeys(title for curves in each for title in curves)
        for title in sorted(titles, key=_place_of):
            curves = tuple(
                _curve(letter, run.tally, curves[title], title)
                for letter, run, curves in zip(LETTERS, runs, each, strict=False)
                if title in curves and (len(curves[title]) or curves[title].broken)
            )
            if curves:
                found.append(ComparedCurves(title=title, axis=axis, curves=curves))
    return tuple(found)


def _run(letter: str, run: Compared) -> ComparedRun:
    steps = run.tally.steps_of.values()
    return ComparedRun(
        letter=letter,
        summary=run.summary,
        first_step=min((first for first, _ in steps), default=None),
        last_step=max((last for _, last in steps), default=None),
    )


def _figures(runs: Sequence[Compared]) -> tuple[Figure, ...]:
    def of(
        name: str, title: str, unit: str, better: str, values: Sequence[float | None]
    ) -> Figure:
        known = tuple(each if each is None or math.isfinite(each) else None for each in values)
        first = known[0]
        ratios = tuple(
            each / first if each and first and min(each, first) > 0 else None for each in known
        )
        return Figure(
            name=name, title=title, unit=unit, values=known, ratios=ratios, better=better
        )

    tallies = [run.tally for run in runs]
    summaries = [run.summary for run in runs]
    rows = [
        of("step_ms", "step time", "ms", "less", [each.step_ms.value for each in tallies]),
        *(
            of(part, title, "ms", "less", [each.parts[part].value for each in tallies])
            for part, title in PART_TITLES.items()
        ),
        of("samples_s", "samples/s", "", "more", [each.samples_s for each in summaries]),
        of("gpu_util", "GPU utilisation", "%", "more", [each.gpu_util.value for each in tallies]),
        of("start_up", "start to first step", "s", "less", [t.start_up_seconds for t in tallies]),
        of("seconds", "time", "s", "less", [each.seconds for each in summaries]),
        of("steps", "steps", "", "", [each.steps for each in summaries]),
        of(
            "spread",
            "slowest rank over fastest",
            "",
            "less",
            [s.step_ms_spread for s in summaries],
        ),
        of("restarts", "restarts", "", "less", [each.restarts for each in summaries]),
    ]
    names = sorted({name for each in summaries for name in each.metrics}, key=_place_of)
    for name in names[:MAX_METRICS]:
        better = "more" if more_is_better(name) else "less"
        rows.append(
            of(
                f"last.{name}",
                f"{name}, last",
                "",
                better,
                [s.metrics.get(name) for s in summaries],
            )
        )
        rows.append(
            of(
                f"best.{name}",
                f"{name}, best",
                "",
                better,
                [t.timeline.best.get(name) for t in tallies],
            )
        )
    return tuple(row for row in rows if any(value not in (None, 0) for value in row.values))


PART_TITLES = {
    "data_ms": "data wait",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
}


def _settings(runs: Sequence[Compared]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    names = dict.fromkeys(name for run in runs for name in run.settings)
    differs, same = [], []
    for name in names:
        values = tuple(run.settings.get(name) for run in runs)
        if len(set(values)) > 1:
            differs.append(Setting(name=name, values=values))
        else:
            same.append(name)
    return tuple(differs), tuple(same)


def _place_of(name: str) -> tuple[bool, bool, str]:
    return name != "loss", "acc" not in name.lower(), name


def _curve(letter: str, tally: Tally, series: Series, title: str) -> ComparedCurve:
    # What the picture itself keeps over time counts from no beginning.
    start = tally.start if title in ("samples/s", "step ms", "GPU %") else 0.0
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
