"""Timed collectives as tables, one an operation, sizes and bandwidths as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from distconsole.formats.figures import number_text
from distconsole.model.reports import CollectiveReport
from distconsole.text.output import Output
from distconsole.text.tables import show_table

HEADER = ("size", "time, us", "algbw, GB/s", "busbw, GB/s", "result")
LEAST_GBS = 0.001
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def show_tables(output: Output, collectives: Sequence[CollectiveReport]) -> None:
    ops: dict[str, list[CollectiveReport]] = {}
    for entry in collectives:
        title = f"{entry.op} {entry.dtype}, {entry.launcher}/{entry.backend}, {entry.size} ranks"
        ops.setdefault(title, []).append(entry)
    for title, entries in ops.items():
        output.data("")
        output.data(output.paint_out(title, "bold"))
        show_table(output, HEADER, [_row(entry) for entry in entries], right=(0, 1, 2, 3))


def _row(entry: CollectiveReport) -> tuple[str, ...]:
    return (
        size_text(entry.bytes),
        number_text(entry.time_us),
        bandwidth_text(entry.algbw_gbs) if entry.bytes else "",
        bandwidth_text(entry.busbw_gbs) if entry.bytes else "",
        "" if not entry.bytes else "exact" if entry.correct else "WRONG",
    )


def bandwidth_text(gbs: float) -> str:
    """Return 1e9 bytes a second to a thousandth."""
    return f"{gbs:.3f}" if gbs >= LEAST_GBS else f"< {LEAST_GBS}"


def size_text(count: int) -> str:
    """Return bytes as they were asked for, such as ``4 B``, ``64 KiB`` or ``1 MiB``."""
    for unit, name in UNITS:
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"
