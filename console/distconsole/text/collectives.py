"""``bench collectives`` as text: a table an operation, then what was verified only, and what is amiss."""

from __future__ import annotations

from distconsole.model.events import CollectivesMeasured
from distconsole.text.bandwidths import show_tables
from distconsole.text.check import show_finding
from distconsole.text.output import Output


def show_collectives(output: Output, measured: CollectivesMeasured) -> None:
    """Print the tables; what was not measured is told with the reason."""
    output.status("")
    if measured.collectives:
        output.data(
            f"{measured.launcher}/{measured.backend}, {measured.size} ranks on "
            f"{', '.join(measured.hosts)}; busbw by nccl-tests' formulae"
        )
    show_tables(output, measured.collectives)
    output.data("")
    _verified(output, measured)
    if measured.left_out:
        what = "no time for" if measured.collectives else "not measured:"
        more = f" and {len(measured.left_out) - 4} more" if len(measured.left_out) > 4 else ""
        output.data(f"{what} {'; '.join(measured.left_out[:4])}{more}")
    for finding in measured.findings:
        show_finding(output, finding)


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
