"""The result of a campaign: by fault, how many were tried, and how many came out wrong."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from suite.pages import put_between_marks


def counts(rows: list[dict[str, Any]]) -> str:
    """Return the counts; of a seed that was tried again its last row counts."""
    last = {row["seed"]: row for row in rows}.values()
    tried = [row for row in last if not row["skipped"]]
    faults = Counter(row["case"]["fault"] for row in tried)
    failed = Counter(row["case"]["fault"] for row in rows if row["problems"])
    open_ = Counter(row["case"]["fault"] for row in tried if row["problems"])
    tried_of = (
        f"{fault.replace('_', ' ')} {count}" + (f" ({failed[fault]})" if failed[fault] else "")
        for fault, count in sorted(faults.items())
    )
    named = ", ".join(f"{fault} ({count})" for fault, count in sorted(open_.items()))
    return (
        f"Tried (once wrong): all {sum(faults.values())} ({sum(failed.values())}): "
        f"{', '.join(tried_of)}.\n\nStill wrong: {named or 'none'}."
    )


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
    put_between_marks(page, "campaign", f"{head}\n\n{counts(rows)}")
