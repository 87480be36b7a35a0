"""Course of a stored run from a few of its entries, for lists."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

from distconsole.rpc.frames import WindowEntry
from distconsole.runs.store.run_file import RunFile
from distconsole.runs.summary import decode_entry

PLACES = 120
"""Places of a host's journal that are looked at: more than a small plot has columns."""


LEAST_POINTS = 2


class Sketch(NamedTuple):
    """One rank's ``loss``, or its ``samples/s`` without a loss, over seconds since the start."""

    name: str
    rank: int
    xs: tuple[float, ...]
    values: tuple[float, ...]


def sketch_of(run_file: RunFile) -> Sketch | None:
    """Return the course of the first rank that is found, None with less than a line; raises sqlite3.Error."""
    record = run_file.record()
    found: list[tuple[float, WindowEntry]] = []
    for stored in run_file.spread_windows(record.hosts[0], PLACES) if record.hosts else ():
        with suppress(ValueError):  # a damaged entry
            entry = decode_entry(stored.body)
            if isinstance(entry, WindowEntry):
                found.append((stored.t - record.started, entry))
    if not found:
        return None
    rank = min(entry.rank for _, entry in found)
    own = [(x, entry) for x, entry in found if entry.rank == rank]
    losses = [(x, entry.metrics.get("loss")) for x, entry in own]
    name = "loss" if any(value is not None for _, value in losses) else "samples/s"
    read = losses if name == "loss" else [(x, entry.samples_s) for x, entry in own]
    points: list[tuple[float, float]] = []
    for x, value in read:
        rises = x >= 0 if not points else x > points[-1][0]
        if value is not None and math.isfinite(value) and rises:
            points.append((x, value))
    if len(points) < LEAST_POINTS:
        return None
    xs, values = zip(*points, strict=True)
    return Sketch(name, rank, xs, values)
