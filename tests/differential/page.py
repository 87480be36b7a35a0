"""The table of what differs between a bare and a watched run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from suite.pages import put_between_marks

PASSED = ("passed", "exit code 0")


def write_page(results: Path, page: Path | None) -> str:
    """Return the table, then every test that ended or spoke otherwise; write both between the page's two marks."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    days = sorted({each["day"] for each in found.values()})
    lines = (
        [f"Tried {' to '.join(dict.fromkeys((days[0], days[-1])))}."] if days else ["Not tried."]
    )
    lines += [
        "",
        "| suite | version | tests | passed bare | same | by outcome only | no two bare runs alike | different |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(name, each) for name, each in found.items()]
    others = [
        f"* `{name}`: `{test}`: {_difference(runs)}"
        for name, each in found.items()
        for test, runs in each.get("tests", {}).items()
        if judge(runs) == "different"
    ]
    text = "\n".join(lines + ([""] if others else []) + others)
    if page is not None:
        put_between_marks(page, "differential", text)
    return text


def _row(name: str, found: Mapping[str, object]) -> str:
    tests = found.get("tests")
    if not isinstance(tests, dict):
        return f"| {name} | {found['version']} | not tried: {found['obstacle']} | | | | | |"
    judged = [judge(runs) for runs in tests.values()]
    counts = [judged.count(each) for each in ("same", "outcome", "unsteady", "different")]
    passed = sum(runs[0] is not None and runs[0][0] in PASSED for runs in tests.values())
    return (
        f"| {name} | {found['version']} | {len(tests)} | {passed} | "
        + " | ".join(map(str, counts))
        + " |"
    )


def judge(runs: Sequence[Sequence[str] | None]) -> str:
    """Return how a test's watched run, the second, compares with its bare ones.

    ``same``, ``outcome`` (it ended alike; what the bare runs said is not alike either), ``unsteady`` (the bare
    runs did not end alike), or ``different``.
    """
    first, watched, second = map(_plain, runs)
    if watched in (first, second):
        return "same"
    if first == second or None in (first, watched, second):
        return "different"
    ended = {run[0] for run in (first, second) if run}
    if len(ended) > 1:
        return "unsteady"
    return "outcome" if watched is not None and watched[0] in ended else "different"


def _plain(run: Sequence[str] | None) -> tuple[str, list[str]] | None:
    """Return how a test ended and the letters that it wrote: two ranks may write into each other's lines."""
    return run and (run[0], sorted("".join(run[1].split())))


def _difference(runs: Sequence[Sequence[str] | None]) -> str:
    bare, watched, _ = runs
    if bare is None or watched is None:
        return "only watched" if bare is None else "only bare"
    if bare[0] != watched[0]:
        return f"{bare[0]}, watched {watched[0]}"
    before, after = bare[1].splitlines(), watched[1].splitlines()
    more = [f"+ {line.strip()}" for line in after if line not in before]
    less = [f"- {line.strip()}" for line in before if line not in after]
    return "; ".join((less + more)[:3])[:300] or "the same lines, not as often"
