"""The hosts' use of GPUs, processors and network in the last minutes, as curves that end now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from distconsole.formats.figures import bytes_text, number_text
from distconsole.model.run_events import NodeSample
from distconsole.tui.view_models.hosts import (
    EACH_SECONDS,
    KEPT,
    LoadModel,
    Recent,
    percent_of,
    sum_of,
)
from distconsole.tui.views.cluster.rows import HostRow
from distconsole.tui.widgets.curves import Curve, PlotData, mean_of

FEW = (("●", "curve"), ("■", "data"), ("▲", "forward"), ("◆", "optimizer"))
"""Marks and styles of the curves of so many hosts; of more their mean is drawn, with all of them as its band."""
GAP = 2
"""Nothing was measured where more means than these are missing: one falls out where samples come seldom."""
PLOTS = 6
Point = tuple[float, float, float]
"""The value, the lowest and the highest host."""
Kind = tuple[str, Mapping[Any, Recent], list[float | None]]
"""What a plot is of: its title, what is kept of it by host, and the figure of each host now."""


def load_kinds(load: LoadModel, rows: Sequence[HostRow]) -> list[Kind]:
    """Return what is known of ``rows``, the most asked for first; nothing of a past run, of which nothing is kept."""

    def of(get: Callable[[NodeSample], float | None]) -> list[float | None]:
        return [None if row.node is None else get(row.node) for row in rows]

    kinds: list[Kind] = [
        ("GPU %", load.use, [row.gpu_use for row in rows]),
        ("CPU %", load.cpu, of(lambda node: node.cpu)),
        ("Network, bytes/s", load.net, of(lambda node: sum_of(node.net_rx_s, node.net_tx_s))),
        ("GPU memory %", load.gpu_memory, [row.gpu_memory for row in rows]),
        ("Memory %", load.memory, of(lambda node: percent_of(node.mem_used, node.mem_total))),
        ("Disk, bytes/s", load.disk, of(lambda node: sum_of(node.disk_read_s, node.disk_write_s))),
    ]
    return [kind for kind in kinds if any(row.name in kind[1] for row in rows)]


def load_plots(
    load: LoadModel,
    kinds: Sequence[Kind],
    rows: Sequence[HostRow],
    now: float,
    before: Mapping[str, PlotData],
) -> list[PlotData]:
    """Return what is drawn of ``rows`` at ``now`` (monotonic seconds), a plot of each of ``kinds``.

    Args:
        before: Key -> what is drawn of them already: curves stay as they are until there is another mean.
    """
    place = int(now // EACH_SECONDS)
    found = []
    for title, kept, figures in kinds:
        mine = [row.name for row in rows if row.name in kept]
        of_now = [
            None if row.stale else figure
            for row, figure in zip(rows, figures, strict=True)
            if row.name in kept
        ]
        key = f"{title} {id(load)} {place} {' '.join(mine)}"
        curves = before[key].curves if key in before else None
        curves = curves or _curves([kept[name].until(place) for name in mine])
        found.append(_plot(title, dict(zip(mine, of_now, strict=True)), curves, key))
    return found


WAYS = {"Network, bytes/s": "in + out  ", "Disk, bytes/s": "read + written  "}
"""Title -> what is added up."""


def _plot(
    title: str, figures: Mapping[str, float | None], curves: tuple[Curve, ...], key: str
) -> PlotData:
    percent = title.endswith("%")
    text: Callable[[float], str] = number_text if percent else bytes_text
    known = [value for value in figures.values() if value is not None]
    said = [(f"mean {text(mean_of(known))}" if known else "–", "curve")]
    way = WAYS.get(title, "")
    legend = f"{way}━ mean  ░ lowest to highest host"
    if len(figures) <= len(FEW):
        said, legend = [], f"{way}last 5 min"
        for (mark, style), (name, value) in zip(FEW, figures.items(), strict=False):
            said.append((f"{mark} {name} {'–' if value is None else text(value)}", style))
    return PlotData(
        title,
        curves,
        tuple(said),
        since=-KEPT * EACH_SECONDS,
        until=0.0,
        reach=100.0 if percent else None,
        zero=True,
        legend=legend,
        key=key,
    )


def _curves(rows: Sequence[Sequence[float | None]]) -> tuple[Curve, ...]:
    if len(rows) > len(FEW):
        return (_curve([_point(values) for values in zip(*rows, strict=True)], "", "curve"),)
    return tuple(
        _curve([_point([value]) for value in row], mark, style)
        for (mark, style), row in zip(FEW, rows, strict=False)
    )


def _point(values: Sequence[float | None]) -> Point | None:
    known = [value for value in values if value is not None]
    return (mean_of(known), min(known), max(known)) if known else None


def _curve(points: Sequence[Point | None], mark: str, style: str) -> Curve:
    there = [(place, point) for place, point in enumerate(points) if point is not None]
    xs = [(place + 1 - KEPT) * EACH_SECONDS for place, _ in there]
    gaps = [(a, b) for a, b in pairwise(xs) if b - a > GAP * EACH_SECONDS]
    values, lows, highs = ([point[at] for _, point in there] for at in range(3))
    return Curve(xs, values, lows, highs, (), gaps, mark, style)
