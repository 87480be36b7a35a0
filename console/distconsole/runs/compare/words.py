"""What an engineer wants to know first of runs side by side, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distconsole.model.comparison import LETTERS, Figure, Setting
from distconsole.model.run_summary import RunSummary
from distconsole.runs.compare.tally import Tally
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
    summaries: Sequence[RunSummary],
    tallies: Sequence[Tally],
    figures: Sequence[Figure],
    differs: Sequence[Setting],
) -> Iterator[str]:
    """Yield what is to be said of each run next to the first one, then what was configured otherwise."""
    yield from _outcomes(summaries)
    for index in range(1, len(summaries)):
        yield from _speed(index, summaries, figures)
        yield from _slowness(index, tallies)
        yield from _quality(index, tallies)
    yield _configuration(differs)


def notes_on(summaries: Sequence[RunSummary], tallies: Sequence[Tally]) -> Iterator[str]:
    """Yield what makes the runs comparable in part only."""
    worlds = [each.world_size for each in summaries]
    if len(set(worlds)) > 1:
        listed = ", ".join(
            f"{letter} {world}" for letter, world in zip(LETTERS, worlds, strict=False)
        )
        yield f"numbers of ranks differ ({listed}): compare by samples rather than by steps"
    names = dict.fromkeys(name for tally in tallies for name in tally.steps_of)
    for name in list(names)[:8]:
        has = [name in tally.steps_of for tally in tallies]
        if not all(has):
            without = _letters([at for at, yes in enumerate(has) if not yes])
            yield f"{without} did not report {name}"
    ranges = [
        tally.steps_of.get("loss") or next(iter(tally.steps_of.values()), None)
        for tally in tallies
    ]
    known = [each for each in ranges if each is not None]
    if len(set(known)) > 1:
        listed = ", ".join(
            f"{letter} {each[0]}-{each[1]}"
            for letter, each in zip(LETTERS, ranges, strict=False)
            if each is not None
        )
        yield f"steps differ ({listed}); losses are compared where both were"
    for letter, tally in zip(LETTERS, tallies, strict=False):
        for name, step in tally.broken_at.items():
            yield f"{name} of {letter} was no number from step {step:,} on, for a while at least"
        if tally.step_ms.value is None:
            yield f"{letter} has no step times: it made no steps, or was not watched"
    for letter, summary in zip(LETTERS, summaries, strict=False):
        if summary.state in ("running", "unknown"):
            yield f"{letter} has no end: its figures are of what is stored so far"


def _outcomes(summaries: Sequence[RunSummary]) -> Iterator[str]:
    states = [each.state for each in summaries]
    if len(set(states)) > 1:
        said = ", ".join(
            f"{letter} {_state(summary)}"
            for letter, summary in zip(LETTERS, summaries, strict=False)
        )
        yield said
    for letter, summary in zip(LETTERS, summaries, strict=False):
        first = summary.first_failure
        if first is not None:
            yield f"{letter}: {first.blame}"


def _state(summary: RunSummary) -> str:
    if summary.state in ("succeeded", "failed"):
        return summary.state
    return {"stopped": "was stopped", "running": "goes on"}.get(summary.state, "has no known end")


def _speed(
    index: int, summaries: Sequence[RunSummary], figures: Sequence[Figure]
) -> Iterator[str]:
    by_name = {figure.name: figure for figure in figures}
    letter, first = LETTERS[index], LETTERS[0]
    step = by_name.get("step_ms")
    if step is not None and step.ratios[index] is not None:
        was, now, ratio = (
            step.values[0] or 0.0,
            step.values[index] or 0.0,
            step.ratios[index] or 1.0,
        )
        if abs(ratio - 1) < ALIKE_SHARE:
            yield f"{letter} is as fast per step as {first} ({_ms(was)} and {_ms(now)} ms)"
        else:
            why = ", ".join(_parts(index, by_name, now - was))
            behind = f": {why}" if why else ""
            yield f"{letter} is {_share(ratio)} per step ({_ms(was)} → {_ms(now)} ms){behind}"
    rate = by_name.get("samples_s")
    if rate is not None and (times := rate.ratios[index]) is not None:
        worlds = summaries[index].world_size, summaries[0].world_size
        changed = worlds[0] != worlds[1] and all(worlds)
        if changed or abs(times - 1) >= ALIKE_SHARE:
            linear = ""
            if changed:
                share = 100 * times / (worlds[0] / worlds[1])
                linear = (
                    f"; with {worlds[0]} ranks for {worlds[1]} that is {share:.0f} % of linear"
                )
            yield f"{letter} does {times:.2f} x the samples/s of {first}{linear}"
    use = by_name.get("gpu_util")
    if use is not None and (was_use := use.values[0]) is not None:
        now_use = use.values[index]
        if now_use is not None and abs(now_use - was_use) >= 5:
            yield f"GPU utilisation of {letter}: {was_use:.0f} → {now_use:.0f} %"


def _parts(index: int, figures: dict[str, Figure], whole: float) -> Iterator[str]:
    """Yield the parts of a step that the difference of ``whole`` milliseconds comes from, largest first."""
    moved = []
    for name, title in PARTS.items():
        figure = figures.get(name)
        if figure is None:
            continue
        was, now = figure.values[0], figure.values[index]
        if was is not None and now is not None:
            moved.append((now - was, f"{title} {_ms(was)} → {_ms(now)} ms"))
    same_way = [(by, text) for by, text in moved if by * whole > 0]
    for by, text in sorted(same_way, key=lambda each: -abs(each[0])):
        if abs(by) >= max(PART_MS, PART_SHARE * abs(whole)):
            yield text
    rest = whole - sum(by for by, _ in moved)
    if (
        len(moved) == len(PARTS)
        and rest * whole > 0
        and abs(rest) >= max(PART_MS, 0.5 * abs(whole))
    ):
        yield f"{rest:+.3g} ms outside of the parts that are measured"


PARTS = {
    "data_ms": "data wait",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
}


def _slowness(index: int, tallies: Sequence[Tally]) -> Iterator[str]:
    """Say which rank was slow in one run, where none was in the other."""
    for here, there in ((index, 0), (0, index)):
        found = [
            [f for f in tallies[at].timeline.findings if f.check == STRAGGLER]
            for at in (here, there)
        ]
        if found[0] and not found[1]:
            yield f"in {LETTERS[here]} {found[0][0].summary}; in {LETTERS[there]} no rank is slow"


def _quality(index: int, tallies: Sequence[Tally]) -> Iterator[str]:
    """Say how the losses compare, as they were measured: at the same step, or each at its own."""
    one, other = tallies[0].measured, tallies[index].measured
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


def _letters(places: Sequence[int]) -> str:
    return " and ".join(LETTERS[place] for place in places)


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
