"""``bench collectives`` as text: a table an operation, then what was verified only, and what is amiss."""

from __future__ import annotations

from distconsole.model.events import CollectiveReport, CollectivesMeasured
from distconsole.text.check import show_finding
from distconsole.text.output import Output
from distconsole.text.tables import number_text, table

HEADER = ("size", "time, us", "algbw, GB/s", "busbw, GB/s", "result")
LEAST_GBS = 0.001
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def show_collectives(output: Output, measured: CollectivesMeasured) -> None:
    """Print the tables; what was not measured is told with the reason."""
    output.status("")
    if measured.collectives:
        output.data(
            f"{measured.launcher}/{measured.backend}, {measured.size} ranks on "
            f"{', '.join(measured.hosts)}; busbw by nccl-tests' formulae"
        )
    ops: dict[str, list[CollectiveReport]] = {}
    for entry in measured.collectives:
        ops.setdefault(f"{entry.op} {entry.dtype}", []).append(entry)
    for op, entries in ops.items():
        output.data("")
        output.data(output.paint_out(op, "bold"))
        for line in table(HEADER, [_row(entry) for entry in entries], right=(0, 1, 2, 3)):
            output.data(line)
    output.data("")
    _verified(output, measured)
    if measured.left_out:
        what = "no time for" if measured.collectives else "not measured:"
        more = f" and {len(measured.left_out) - 4} more" if len(measured.left_out) > 4 else ""
        output.data(f"{what} {'; '.join(measured.left_out[:4])}{more}")
    for finding in measured.findings:
        show_finding(output, finding)


def _row(entry: CollectiveReport) -> tuple[str, ...]:
    return (
        size_text(entry.bytes),
        number_text(entry.time_us),
        _bandwidth_text(entry.algbw_gbs) if entry.bytes else "",
        _bandwidth_text(entry.busbw_gbs) if entry.bytes else "",
        "" if not entry.bytes else "exact" if entry.correct else "WRONG",
    )


def _bandwidth_text(gbs: float) -> str:
    return f"{gbs:.3f}" if gbs >= LEAST_GBS else f"< {LEAST_GBS}"


def _verified(output: Output, measured: CollectivesMeasured) -> None:
    exact: dict[str, list[str]] = {}
    lacking: dict[str, list[str]] = {}
    for each in measured.verified:
        if each.unsupported:
            lacking.setdefault(each.unsupported, []).append(f"{each.op} {each.dtype}")
        else:
            verdict = "exact" if each.correct else "WRONG"
            exact.setdefault(f"{each.dtype} ({each.elements} values): {verdict}", []).append(
                each.op
            )
    for what, ops in exact.items():
        output.data(f"{what}: {', '.join(dict.fromkeys(ops))}")
    for why, cases in lacking.items():
        names = list(dict.fromkeys(cases))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        output.data(f"not there: {', '.join(names[:4])}{more} ({why})")


def size_text(count: int) -> str:
    """Return bytes as they were asked for, such as ``4 B``, ``64 KiB`` or ``1 MiB``."""
    for unit, name in UNITS:
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"
