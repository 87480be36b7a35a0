"""Runs side by side: the fold of each run's events, bounded in size; figures with ratios, differences in
configuration, and both in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from distconsole.model.comparison import (
    LETTERS,
    ComparedCurve,
    ComparedCurves,
    ComparedFigure,
    ComparedRun,
    Comparison,
    Setting,
)
from distconsole.model.names import count_text
from distconsole.model.run_events import GpuSample, Metric, RunEvents, RunRestarted, Window
from distconsole.model.run_summary import RunSummary
from distconsole.runs.detectors.stragglers import past_text
from distconsole.runs.figures import PARTS, best_word, better_way, more_is_better
from distconsole.runs.pace import is_fresh
from distconsole.runs.series import Measured, Series
from distconsole.runs.timeline import RunTimeline

AXES = ("step", "seconds", "samples")
MAX_CURVES = 64
"""Metrics that are kept along time and samples."""


class Mean:
    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def put(self, value: float | None, weight: float) -> None:
        if value is not None and math.isfinite(value):
            self.total += value * weight
            self.weight += weight

    @property
    def value(self) -> float | None:
        """The mean; None of nothing."""
        return self.total / self.weight if self.weight else None


class RunStatistics:
    """The fold of one run's events for a comparison."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
        self.step_ms = Mean()
        """Over all steps of all ranks but those of each rank's first window: it warms up."""
        self.parts = {name: Mean() for name in PARTS}
        self.gpu_util = Mean()
        self.gpu_names: set[str] = set()
        self.along: dict[str, dict[str, Series]] = {"seconds": {}, "samples": {}}
        """Axis -> metric -> curve."""
        self.broken_at: dict[str, int] = {}
        """Metric -> the first step at which it was NaN or infinite."""
        self.steps_of: dict[str, tuple[int, int]] = {}
        """Metric -> its first and its last step."""
        self.measured: dict[str, Measured] = {}
        """Metric -> its values at their own steps."""
        self.first_step_t: float | None = None
        self.samples = 0.0
        self._warm: set[int] = set()
        self._resuming: set[str] = set()

    @property
    def start(self) -> float:
        return self.timeline.started or 0.0

    @property
    def start_up_seconds(self) -> float | None:
        return None if self.first_step_t is None else self.first_step_t - self.start

    def apply(self, event: RunEvents) -> None:
        self.timeline.apply(event)
        if isinstance(event, Window):
            self._window(event)
        elif isinstance(event, Metric):
            self._metric(event)
        elif isinstance(event, GpuSample):
            self._gpu(event)
        elif isinstance(event, RunRestarted):
            self._warm.clear()
            self._resuming = set(self.measured)

    def close(self) -> None:
        """Add to the curves the values that are still held back; call it last."""
        self.timeline.close()

    def curves(self) -> dict[str, dict[str, Series]]:
        """Return axis -> title -> curve; ``seconds`` and times of ``samples`` count from the start."""
        by_time = {
            "samples/s": self.timeline.throughput,
            "step ms": self.timeline.step_ms.series,
            "GPU %": self.timeline.gpu_use.series,
        }
        return {
            "step": self.timeline.metrics,
            "seconds": {**self.along["seconds"], **by_time},
            "samples": self.along["samples"],
        }

    def _window(self, event: Window) -> None:
        if event.steps <= 0:
            return
        if self.first_step_t is None:
            self.first_step_t = event.t
        mean = event.step_ms_mean
        if mean is not None and event.samples_s is not None:
            self.samples += max(0.0, event.samples_s * event.steps * mean / 1000)
        if event.rank not in self._warm:
            self._warm.add(event.rank)
            return
        self.step_ms.put(mean, event.steps)
        for name, part in self.parts.items():
            part.put(getattr(event, name), event.steps)

    def _metric(self, event: Metric) -> None:
        name = event.name
        if not math.isfinite(event.value):
            self.broken_at.setdefault(name, event.step)
        first, last = self.steps_of.get(name, (event.step, event.step))
        self.steps_of[name] = min(first, event.step), max(last, event.step)
        if name not in self.along["seconds"] and len(self.along["seconds"]) >= MAX_CURVES:
            return
        measured = self.measured.setdefault(name, Measured())
        if name in self._resuming:
            self._resuming.discard(name)
            measured.cut(event.step)
        measured.put(event.step, event.value)
        for axis, x in (("seconds", event.t - self.start), ("samples", self.samples)):
            series = self.along[axis].setdefault(name, Series())
            if axis == "seconds" and len(series) > 1:
                usual_ms = 1000 * (series.xs[-1] - series.xs[-2])
                if not is_fresh(series.xs[-1], x, usual_ms):
                    series.interrupt(x)
            series.put(x, event.value, event.min, event.max)

    def _gpu(self, event: GpuSample) -> None:
        if event.rank is UNSET:
            return
        if event.name:
            self.gpu_names.add(event.name)
        if event.util is not None:
            self.gpu_util.put(event.util, 1)


@dataclass(frozen=True, slots=True)
class Compared:
    """One run to compare: its summary for ``show``, the fold of its events, and its settings."""

    summary: RunSummary
    statistics: RunStatistics
    settings: Mapping[str, str]


MAX_METRICS = 32
"""Metrics that have a line in the table."""
ALIKE_SHARE = 0.03
"""Step times that differ by less count as alike: two runs of the same script differ by as much."""
PART_SHARE = 0.2
"""Least share of the difference for which a part of a step is named."""
PART_MS = 0.1
NAMED_SETTINGS = 5
VALUE_CHARS = 32
LOSS_SHARE = 0.01
NEAR_END = 0.9
"""Losses are compared at a step that both runs have, if it is so far on in the shorter of them."""

STATES = {"stopped": "was stopped", "running": "goes on", "unknown": "has no known end"}

Get = Callable[[Compared], float | None]

FIGURES: tuple[tuple[str, str, str, str, Get], ...] = (
    ("step_ms", "step time", "ms", "less", lambda run: run.statistics.step_ms.value),
    *(
        (part, title, "ms", "less", lambda run, part=part: run.statistics.parts[part].value)
        for part, title in PARTS.items()
    ),
    ("samples_s", "samples/s", "", "more", lambda run: run.summary.samples_s),
    ("gpu_util", "GPU use", "%", "more", lambda run: run.statistics.gpu_util.value),
    ("start_up", "start to first step", "s", "less", lambda run: run.statistics.start_up_seconds),
    ("seconds", "time", "s", "less", lambda run: run.summary.seconds),
    ("steps", "steps", "", "", lambda run: run.summary.steps),
    (
        "spread",
        "step time, slowest rank over fastest",
        "",
        "less",
        lambda run: run.summary.step_ms_spread,
    ),
    (
        "own_spread",
        "own time, slowest rank over fastest",
        "",
        "less",
        lambda run: run.statistics.timeline.own_spread,
    ),
    ("restarts", "restarts", "", "less", lambda run: run.summary.restarts),
)
"""Name, title, unit and which is better of the figures that a run may have."""


def compare(runs: Sequence[Compared]) -> Comparison:
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
        words=tuple(_words(runs, figures, differs)),
        notes=tuple(_notes(runs)),
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


def _figures(runs: Sequence[Compared]) -> Iterator[ComparedFigure]:
    for name, title, unit, better, get in FIGURES:
        yield _figure(name, title, unit, better, [get(run) for run in runs])
    names = sorted({name for run in runs for name in run.summary.metrics}, key=_order_of)
    for name in names[:MAX_METRICS]:
        better = better_way(name)
        last = [run.summary.metrics.get(name) for run in runs]
        best = [run.statistics.timeline.best.get(name) for run in runs]
        yield _figure(f"last.{name}", f"{name}, last", "", better, last)
        yield _figure(f"best.{name}", f"{name}, {best_word(name)}", "", better, best)


def _figure(
    name: str, title: str, unit: str, better: str, values: Sequence[float | None]
) -> ComparedFigure:
    known = tuple(each if each is None or math.isfinite(each) else None for each in values)
    first = known[0]
    ratios = tuple(
        each / first if each and first and min(each, first) > 0 else None for each in known
    )
    return ComparedFigure(
        name=name, title=title, unit=unit, values=known, ratios=ratios, better=better
    )


def _order_of(name: str) -> tuple[bool, bool, str]:
    return name != "loss", not more_is_better(name), name


def _curve(letter: str, run: Compared, series: Series, title: str) -> ComparedCurve:
    # Series of the timeline count from the UNIX epoch.
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


def _words(
    runs: Sequence[Compared], figures: Sequence[ComparedFigure], differs: Sequence[Setting]
) -> Iterator[str]:
    if len({run.summary.state for run in runs}) > 1:
        yield _list(STATES.get(run.summary.state, run.summary.state) for run in runs)
    for letter, run in zip(LETTERS, runs, strict=False):
        if run.summary.first_failure is not None:
            yield f"{letter}: {run.summary.first_failure.blame}"
    by_name = {figure.name: figure for figure in figures}
    for index in range(1, len(runs)):
        yield from _speed(index, runs, by_name)
        yield from _slowness(index, runs)
        yield from _quality(index, runs)
    yield _configuration(differs)


def _notes(runs: Sequence[Compared]) -> Iterator[str]:
    worlds = [run.summary.world_size for run in runs]
    if len(set(worlds)) > 1:
        listed = _list(map(str, worlds))
        yield f"numbers of ranks differ ({listed}): compare by samples rather than by steps"
    steps_of = [run.statistics.steps_of for run in runs]
    names = dict.fromkeys(name for steps in steps_of for name in steps)
    for name in list(names)[:8]:
        without = [
            letter for letter, steps in zip(LETTERS, steps_of, strict=False) if name not in steps
        ]
        if without:
            yield f"{' and '.join(without)} did not report {name}"
    ranges = [steps.get("loss") or next(iter(steps.values()), None) for steps in steps_of]
    if len(set(ranges) - {None}) > 1:
        listed = _list(f"{each[0]}-{each[1]}" if each else None for each in ranges)
        yield f"steps differ ({listed}); losses are compared where both were"
    for letter, run in zip(LETTERS, runs, strict=False):
        for name, step in run.statistics.broken_at.items():
            yield f"{name} of {letter} was no number from step {step:,} on, for a while at least"
        if run.statistics.step_ms.value is None:
            yield f"{letter} has no step times: it made no steps, or was not watched"
        if run.summary.state in ("running", "unknown"):
            yield f"{letter} has no end: its figures are of what is stored so far"


def _list(values: Iterable[str | None]) -> str:
    """Return ``A 2, B 4``, without runs that have no value."""
    return ", ".join(f"{a} {value}" for a, value in zip(LETTERS, values, strict=False) if value)


def _speed(
    index: int, runs: Sequence[Compared], figures: Mapping[str, ComparedFigure]
) -> Iterator[str]:
    letter, first = LETTERS[index], LETTERS[0]
    was, now, ratio = _of(figures, "step_ms", index)
    if was is not None and now is not None and ratio is not None:
        if abs(ratio - 1) < ALIKE_SHARE:
            yield f"{letter} is as fast per step as {first} ({_ms(was)} and {_ms(now)} ms)"
        else:
            why = ", ".join(_parts(index, figures, now - was))
            behind = f": {why}" if why else ""
            yield f"{letter} takes {_share(ratio)} per step ({_ms(was)} → {_ms(now)} ms){behind}"
    _, _, times = _of(figures, "samples_s", index)
    if times is not None:
        world, first_world = runs[index].summary.world_size, runs[0].summary.world_size
        linear = ""
        if world != first_world and world and first_world:
            share = 100 * times / (world / first_world)
            linear = f"; with {count_text(world, 'rank')} for {first_world} that is {share:.0f} % of linear"
        if linear or abs(times - 1) >= ALIKE_SHARE:
            yield f"{letter} does {times:.2f} x the samples/s of {first}{linear}"
    was, now, _ = _of(figures, "gpu_util", index)
    if was is not None and now is not None and abs(now - was) >= 5:
        yield f"GPU use of {letter}: {was:.0f} → {now:.0f} %"


def _of(
    figures: Mapping[str, ComparedFigure], name: str, index: int
) -> tuple[float | None, float | None, float | None]:
    figure = figures.get(name)
    if figure is None:
        return None, None, None
    return figure.values[0], figure.values[index], figure.ratios[index]


def _parts(index: int, figures: Mapping[str, ComparedFigure], whole: float) -> Iterator[str]:
    """Yield the parts of a step that the difference of ``whole`` milliseconds comes from, largest first."""
    moved = []
    for name, title in PARTS.items():
        was, now, _ = _of(figures, name, index)
        if was is not None and now is not None:
            moved.append((now - was, f"{title} {_ms(was)} → {_ms(now)} ms"))
    least = max(PART_MS, PART_SHARE * abs(whole))
    for by, text in sorted(moved, key=lambda each: -abs(each[0])):
        if by * whole > 0 and abs(by) >= least:
            yield text
    rest = whole - sum(by for by, _ in moved)
    most = abs(rest) >= max(PART_MS, 0.5 * abs(whole))
    if len(moved) == len(PARTS) and rest * whole > 0 and most:
        yield f"{rest:+.3g} ms outside of the parts that are measured"


def _slowness(index: int, runs: Sequence[Compared]) -> Iterator[str]:
    """Compare which ranks were slow in two runs, and at what cost; empty for a run without step times."""
    dearest = [
        (LETTERS[at], _dearest(runs[at]))
        for at in (index, 0)
        if runs[at].statistics.step_ms.value is not None
    ]
    if any(text for _, text in dearest):
        yield "; ".join(
            f"in {letter} {text or 'no rank was slow'}"
            for letter, text in sorted(dearest, key=lambda each: not each[1])
        )


def _dearest(run: Compared) -> str:
    """Return the rank or host that cost a run most, and how much; empty without a slow one."""
    timeline = run.statistics.timeline
    hosts = {view.rank: view.host for view in timeline.ranks.values()}
    worst = max(timeline.stragglers.told, key=lambda each: each.cost_share, default=None)
    return "" if worst is None else past_text(worst, hosts)


def _quality(index: int, runs: Sequence[Compared]) -> Iterator[str]:
    """Say how the losses compare, as they were measured: at the same step, or each at its own."""
    one, other = runs[0].statistics.measured, runs[index].statistics.measured
    name = next((n for n in ("loss", *one) if n in one and n in other), None)
    if name is None:
        return
    values, others = one[name].values(), other[name].values()
    if not values or not others:
        return
    here, there = _steps_to_compare(list(values), list(others))
    letter, first = LETTERS[index], LETTERS[0]
    where = f"at step {here:,}, which both reached"
    if here != there:
        where = f"at step {here:,} of {first} and {there:,} of {letter}, the nearest with a value"
    was, now = values[here], others[there]
    if was == now or (was and abs(now / was - 1) < LOSS_SHARE):
        yield f"{where}, {name} is alike: {was:.4g} and {now:.4g}"
    else:
        yield f"{where}, {name} is {was:.4g} in {first} and {now:.4g} in {letter}"


def _steps_to_compare(one: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    """Return the last step that both have, unless it is long ago; else the end of the shorter run and the nearest step of the other."""
    end = min(one[-1], other[-1])
    common = max(set(one) & set(other), default=-1)
    if common >= end * NEAR_END:
        return common, common
    return min(one, key=lambda step: abs(step - end)), min(other, key=lambda step: abs(step - end))


def _configuration(differs: Sequence[Setting]) -> str:
    if not differs:
        return "nothing that is known of their configuration differs"
    named: list[str] = []
    for each in differs[:NAMED_SETTINGS]:
        shown = [_short(value) for value in each.values]
        changed = dict.fromkeys(shown) if len(shown) > 2 else shown
        named.append(f"{each.name} {' → '.join(changed)}")
    more = len(differs) - NAMED_SETTINGS
    rest = f", and {more} more" if more > 0 else ""
    return f"configuration: {'; '.join(named)}{rest}"


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    line = value.replace("\n", " ")
    return line if len(line) <= VALUE_CHARS else f"{line[: VALUE_CHARS - 1]}…"


def _share(ratio: float) -> str:
    if ratio >= 2:
        return f"{ratio:.1f} x as long"
    return f"{abs(100 * (ratio - 1)):.0f} % {'longer' if ratio > 1 else 'less time'}"


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
