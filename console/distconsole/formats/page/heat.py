"""The heat map of ranks and moments: a picture, and the figures behind it."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from distconsole.formats.figures import CIVIDIS, number_text, short_time
from distconsole.formats.page.plots import PageTick
from distconsole.model.names import ranks_text
from distconsole.runs.rank_history import STEP, Quantity, RankHistory

MAX_ROWS = 256
"""Rows of the picture; with more ranks a row is that of several, and shows the slowest of them."""
UNKNOWN = 65535
READ_OFF = ("cells", "unit_ms", "ranks", "per_row", "columns", "moment_seconds", "begins")
"""Data of the page's script."""


@dataclass(frozen=True, slots=True)
class PageHeatMap:
    """Numbers of the page.

    Attributes:
        title: Which time it shows.
        picture: A PNG, as base64.
        cells: Step times, row after row of ``ranks``, as little-endian 16-bit numbers of ``unit_ms``,
            65535 where unknown, as base64.
        per_row: Ranks of one row of the picture.
    """

    title: str
    picture: str
    cells: str
    unit_ms: float
    ranks: tuple[int, ...]
    per_row: int
    columns: int
    moment_seconds: float
    begins: float
    low: str
    high: str
    height: int
    rows: tuple[PageTick, ...]
    x_ticks: tuple[PageTick, ...]

    def data(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in READ_OFF}


def heat_map(
    history: RankHistory, started: float, quantity: Quantity = STEP
) -> PageHeatMap | None:
    """Return the map of a run that began at ``started`` (UNIX seconds); None without a step."""
    track = history.whole
    ranks = sorted(track.ranks(quantity.name))
    if not ranks or history.started is None:
        return None
    told = track.rows(quantity.name)
    rows = [[quantity.value(each) for each in told[rank]] for rank in ranks]
    known = sorted(value for row in rows for value in row if math.isfinite(value))
    if not known:
        return None
    unit = max(known[-1], 1e-6) / (UNKNOWN - 1)
    cells = array("H", (_quantise(value, unit) for row in rows for value in row))
    per_row = math.ceil(len(ranks) / MAX_ROWS)
    groups = (rows[first : first + per_row] for first in range(0, len(rows), per_row))
    shown = [
        [max(filter(math.isfinite, each), default=math.nan) for each in zip(*group, strict=True)]
        for group in groups
    ]
    low, high = _scale(known)
    begins = history.started - started
    seconds = track.columns * track.seconds
    return PageHeatMap(
        title=quantity.title.capitalize(),
        picture=_base64(png(shown, low, high)),
        cells=_base64(struct.pack(f"<{len(cells)}H", *cells)),
        unit_ms=unit,
        ranks=tuple(ranks),
        per_row=per_row,
        columns=track.columns,
        moment_seconds=track.seconds,
        begins=begins,
        low=number_text(low, " ms"),
        high=("≥ " if known[-1] > high else "") + number_text(high, " ms"),
        height=max(120, min(420, 18 * len(shown))),
        rows=_row_ticks(ranks, per_row, len(shown)),
        x_ticks=tuple(
            PageTick(100 * share, short_time(begins + share * seconds))
            for share in (0, 0.25, 0.5, 0.75, 1)
        ),
    )


def png(rows: Sequence[Sequence[float]], low: float, high: float) -> bytes:
    """Return values as a picture of as many pixels (PNG, 8-bit palette; NaN is transparent)."""
    width = len(rows[0])
    span = (high - low) or 1.0
    lines = bytearray()
    for row in rows:
        lines.append(0)  # no filter
        for value in row:
            share = (value - low) / span
            lines.append(1 + round(254 * min(1.0, max(0.0, share))) if math.isfinite(value) else 0)
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    palette = bytes([0, 0, 0]) + bytes(each for n in range(255) for each in _colour(n / 254))
    parts = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(bytes(lines), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _colour(share: float) -> tuple[int, int, int]:
    place = share * (len(CIVIDIS) - 1)
    first = min(int(place), len(CIVIDIS) - 2)
    near, far = CIVIDIS[first], CIVIDIS[first + 1]
    red, green, blue = (
        round(a + (b - a) * (place - first)) for a, b in zip(near, far, strict=True)
    )
    return red, green, blue


def _scale(known: Sequence[float]) -> tuple[float, float]:
    """Return the values of the darkest and the lightest colour: a few outliers do not grey all else."""
    low, middle = known[len(known) // 50], known[len(known) // 2]
    high = known[-1] if known[-1] <= 3 * middle else max(known[len(known) * 98 // 100], 2 * middle)
    return low, max(high, low * 1.2)


def _quantise(value: float, unit: float) -> int:
    return min(UNKNOWN - 1, round(max(0.0, value) / unit)) if math.isfinite(value) else UNKNOWN


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _row_ticks(ranks: Sequence[int], per_row: int, count: int) -> tuple[PageTick, ...]:
    each = math.ceil(count / 12)
    return tuple(
        PageTick(100 * (row + 0.5) / count, ranks_text(ranks[row * per_row : (row + 1) * per_row]))
        for row in range(0, count, each)
    )
