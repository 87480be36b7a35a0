"""What an engineer wants to know first of runs side by side, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from distconsole.model.comparison import LETTERS, Figure, Setting
from distconsole.model.run_summary import RunSummary
from distconsole.runs.compare.statistics import PARTS, Compared
from distconsole.runs.detectors.conclusions import STRAGGLER

ALIKE_SHARE = 0.03
"""Step times that differ by less are said to be alike: two runs of the same differ so."""
PART_SHARE = 0.2
"""A part of a step is named if so much of the difference is its."""
PART_MS = 0.1
NAMED_SETTINGS = 5
VALUE_CHARS = 32
LOSS_SHARE = 0.01
NEAR_END = 0.9
"""Losses are compared at a step that both runs have, if it is so far on in the shorter of them."""


def words_of(
    runs: Sequence[Compared], figures: Sequence[Figure], differs: Sequence[Setting]
) -> Iterator[str]:
    """Yield what is to be said of each run next to the first one, then what was configured otherwise."""
    yield from _outcomes(runs)
    by_name = {figure.name: figure for figure in figures}
    for index in range(1, len(runs)):
        yield from _speed(index, runs, by_name)
        yield from _slowness(index, runs)
        yield from _quality(index, runs)
    yield _configuration(differs)


def notes_on(runs: Sequence[Compared]) -> Iterator[str]:
    """Yield what makes the runs comparable in part only."""
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
    """Return ``A 2, B 4``, without the runs of which there is nothing."""
    return ", ".join(f"{a} {value}" for a, value in zip(LETTERS, values, strict=False) if value)


def _outcomes(runs: Sequence[Compared]) -> Iterator[str]:
    if len({run.summary.state for run in runs}) > 1:
        yield _list(_state(run.summary) for run in runs)
    for letter, run in zip(LETTERS, runs, strict=False):
        if run.summary.first_failure is not None:
            yield f"{letter}: {run.summary.first_failure.blame}"


def _state(summary: RunSummary) -> str:
    if summary.state in ("succeeded", "failed"):
        return summary.state
    return {"stopped": "was stopped", "running": "goes on"}.get(summary.state, "has no known end")


def _speed(index: int, runs: Sequence[Compared], figures: Mapping[str, Figure]) -> Iterator[str]:
    letter, first = LETTERS[index], LETTERS[0]
    was, now, ratio = _of(figures, "step_ms", index)
    if was is not None and now is not None and ratio is not None:
        if abs(ratio - 1) < ALIKE_SHARE:
            yield f"{letter} is as fast per step as {first} ({_ms(was)} and {_ms(now)} ms)"
        else:
            why = ", ".join(_parts(index, figures, now - was))
            behind = f": {why}" if why else ""
            yield f"{letter} is {_share(ratio)} per step ({_ms(was)} → {_ms(now)} ms){behind}"
    _, _, times = _of(figures, "samples_s", index)
    if times is not None:
        world, first_world = runs[index].summary.world_size, runs[0].summary.world_size
        linear = ""
        if world != first_world and world and first_world:
            share = 100 * times / (world / first_world)
            linear = f"; with {world} ranks for {first_world} that is {share:.0f} % of linear"
        if linear or abs(times - 1) >= ALIKE_SHARE:
            yield f"{letter} does {times:.2f} x the samples/s of {first}{linear}"
    was, now, _ = _of(figures, "gpu_util", index)
    if was is not None and now is not None and abs(now - was) >= 5:
        yield f"GPU utilisation of {letter}: {was:.0f} → {now:.0f} %"


def _of(
    figures: Mapping[str, Figure], name: str, index: int
) -> tuple[float | None, float | None, float | None]:
    """Return a figure of the first run and of another one, and their ratio."""
    figure = figures.get(name)
    if figure is None:
        return None, None, None
    return figure.values[0], figure.values[index], figure.ratios[index]


def _parts(index: int, figures: Mapping[str, Figure], whole: float) -> Iterator[str]:
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
    """Say which rank was slow in one run, where none was in the other."""
    for here, there in ((index, 0), (0, index)):
        found = [
            [f for f in runs[at].statistics.timeline.findings if f.check == STRAGGLER]
            for at in (here, there)
        ]
        if found[0] and not found[1]:
            yield f"in {LETTERS[here]} {found[0][0].summary}; in {LETTERS[there]} no rank is slow"


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
    """Return the last step that both have, unless that is long ago; else where the shorter ends and what is nearest."""
    end = min(one[-1], other[-1])
    common = max(set(one) & set(other), default=-1)
    if common >= end * NEAR_END:
        return common, common
    return min(one, key=lambda step: abs(step - end)), min(other, key=lambda step: abs(step - end))


def _configuration(differs: Sequence[Setting]) -> str:
    if not differs:
        return "nothing that is known of their configuration differs"
    named = [f"{each.name} {_arrow(each)}" for each in differs[:NAMED_SETTINGS]]
    more = len(differs) - NAMED_SETTINGS
    rest = f", and {more} more" if more > 0 else ""
    return f"{'; '.join(named)}{rest} differ{'s' if len(differs) == 1 else ''}"


def _arrow(setting: Setting) -> str:
    shown = [_short(value) for value in setting.values]
    changed = list(dict.fromkeys(shown))
    return " → ".join(changed if len(shown) > 2 else shown)


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    line = value.replace("\n", " ")
    return line if len(line) <= VALUE_CHARS else f"{line[: VALUE_CHARS - 1]}…"


def _share(ratio: float) -> str:
    if ratio >= 2:
        return f"{ratio:.1f} x slower"
    if ratio > 1:
        return f"{100 * (ratio - 1):.0f} % slower"
    if ratio <= 0.5:
        return f"{1 / ratio:.1f} x faster"
    return f"{100 * (1 - ratio):.0f} % faster"


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
