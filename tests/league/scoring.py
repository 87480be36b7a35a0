"""What a verdict is worth: who was named, who was named wrongly, and in which parts it was right."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from league.cases import CLASSES, Case
from league.trying import Verdict

PARTS = ("rank", "host", "line", "operation", "kind")
Row = dict[str, Any]


def score(case: Case, verdict: Verdict) -> Row:
    """Return which parts are right (None: not asked), whether ``all`` are, and who was wrongly ``blamed``."""
    if verdict.error:
        return {"all": False, "named": False, "blamed": False, "failed": True}
    if case.klass in ("healthy", "asked"):
        return {"all": not verdict.alarms, "named": False, "blamed": bool(verdict.alarms)}
    whole = "all" in case.name.split("/")
    any_of = "any" in case.name.split("/")
    right = bool(verdict.kind) if whole else set(verdict.ranks) == set(case.odd)
    right = right or (any_of and bool(verdict.ranks))
    parts: dict[str, bool | None] = {
        "rank": right,
        "host": whole or any_of or set(verdict.hosts) == set(case.hosts),
        "line": verdict.place == case.mark if case.mark else None,
        "operation": any(word in (verdict.operation or verdict.said) for word in case.waits)
        if case.waits
        else None,
        "kind": verdict.kind in case.kinds,
    }
    named = bool(verdict.ranks) or (whole and bool(verdict.kind))
    blamed = bool(verdict.ranks) and not right
    return {
        **parts,
        "all": all(each is not False for each in parts.values()),
        "named": named,
        "blamed": blamed,
    }


def table(rows: Iterable[Row]) -> str:
    """Return the league table, as Markdown: a line for each class and half."""
    rows = list(rows)
    head = "| class | cases | rank named | precision | all parts right | wrongly blamed | median time to name | longest |"
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for klass in (each for each in CLASSES if each != "asked"):
        own = [row for row in rows if row["case"]["klass"] == klass]
        held = [row for row in own if row["case"]["held_out"]]
        lines += [_line(*each) for each in ((klass, own), (f"{klass}, held out", held)) if each[1]]
    return "\n".join(lines)


def asked_table(rows: Iterable[Row]) -> str:
    """Return how often busy ranks were asked by each way under each Python, and what that did to them, as Markdown."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        by = row["case"]["place"], row["case"]["launcher"]
        counts.setdefault(by, Counter()).update({"cases": 1, **(row["verdict"]["asked"] or {})})
    columns = ("cases", "ranks", "asks", "answers", "deaths", "changed")
    lines = [
        "| asked by | Python | kinds of rank | ranks | asks | answers | deaths | changed results |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|")
    for way, version in sorted(counts):
        told = (f"{counts[way, version][column]:,}" for column in columns)
        lines.append(f"| {way} | {version} | {' | '.join(told)} |")
    return "\n".join(lines)


def _line(name: str, rows: Sequence[Row]) -> str:
    scores = [row["score"] for row in rows]
    blamed = sum(each["blamed"] for each in scores)
    right, named = (
        sum(bool(each.get("rank")) for each in scores),
        sum(each["named"] for each in scores),
    )
    whole = sum(each["all"] for each in scores)
    if rows[0]["case"]["klass"] == "healthy":
        return (
            f"| {name} | {len(rows)} | | | {whole} ({_share(whole, len(rows))}) | {blamed} | | |"
        )
    times = [row["verdict"]["seconds"] for row in rows if row["verdict"]["seconds"] is not None]
    middle = f"{statistics.median(times):.1f} s" if times else ""
    longest = f"{max(times):.1f} s" if times else ""
    return (
        f"| {name} | {len(rows)} | {right} ({_share(right, len(rows))}) | {_share(right, named)} "
        f"| {whole} ({_share(whole, len(rows))}) | {blamed} | {middle} | {longest} |"
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def misses(rows: Iterable[Row]) -> str:
    """Return each case that is not wholly right, with what was said instead."""
    lines = []
    for row in rows:
        case, verdict, own = row["case"], row["verdict"], row["score"]
        if own["all"]:
            continue
        wrong = ", ".join(part for part in PARTS if own.get(part) is False)
        said = (
            verdict["error"]
            or verdict["said"]
            or "; ".join(verdict["alarms"])
            or "nothing was said"
        )
        said = " ".join(said.split())[:100].replace("|", "/")
        lines.append(
            f"| `{case['name']}` | {_truth(case)} | {wrong or 'blames' if verdict['alarms'] else wrong or 'did not run'} | {said} |"
        )
    head = "| case | truth | wrong | what was said |\n|---|---|---|---|\n"
    return head + "\n".join(lines) if lines else "None."


def _truth(case: Row) -> str:
    if case["klass"] in ("healthy", "asked"):
        return "nobody"
    ranks = ",".join(map(str, case["odd"]))
    return f"rank {ranks} {case['mark']}".strip()
