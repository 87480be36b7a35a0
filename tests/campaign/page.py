"""The table of a campaign: by fault, how many were tried, and how many came out wrong."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from suite.pages import put_between_marks


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table; of a seed that was tried again its last row counts."""
    last = {row["seed"]: row for row in rows}.values()
    tried = [row for row in last if not row["skipped"]]
    faults = Counter(row["case"]["fault"] for row in tried)
    failed = Counter(row["case"]["fault"] for row in rows if row["problems"])
    open_ = Counter(row["case"]["fault"] for row in tried if row["problems"])
    lines = ["| fault | tried | once wrong |", "|---|---:|---:|"]
    lines += [
        f"| {fault.replace('_', ' ')} | {count} | {failed[fault]} |"
        for fault, count in sorted(faults.items())
    ]
    lines.append(f"| all | {sum(faults.values())} | {sum(failed.values())} |")
    named = ", ".join(f"{fault} ({count})" for fault, count in sorted(open_.items()))
    return "\n".join([*lines, "", f"Still wrong: {named or 'none'}."])


def write_page(page: Path, rows: list[dict[str, Any]]) -> None:
    """Put the table between the page's two marks."""
    hours = sum(row["seconds"] for row in rows) / 3600
    day = time.strftime("%Y-%m-%d", time.localtime(max(row["t"] for row in rows)))
    head = f"Measured until {day}: {len({row['seed'] for row in rows})} cases, {hours:.1f} hours of runs."
    if answers := sorted(seconds for row in rows for seconds in row.get("answers", ())):
        middle, longest = (
            round(1000 * each) for each in (answers[len(answers) // 2], answers[-1])
        )
        head += (
            f" {len(answers):,} keys were pressed on screens meanwhile: a screen took {middle} ms"
            f" (median) and {longest} ms at most, without what its thread waited for a processor."
        )
    put_between_marks(page, "campaign", f"{head}\n\n{table(rows)}")
