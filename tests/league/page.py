"""The published page of the league table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from league.scoring import asked_table, misses, table
from suite.pages import put_between_marks


def write_page(
    path: Path, rows: Sequence[Mapping[str, Any]], seed: int, host: Mapping[str, Any], commit: str
) -> None:
    """Write the tables of ``rows`` between the page's marks; what a person wrote around them stays, and a table without rows, too."""
    asked = [dict(row) for row in rows if row["case"]["klass"] == "asked"]
    others = [row for row in rows if row["case"]["klass"] != "asked"]
    if others:
        put_between_marks(path, "league", body(others, seed, host, commit))
    if asked:
        where = f"{host['time'][:10]}, commit {commit}, {len(asked)} cases"
        whole = all(row["score"]["all"] for row in asked)
        parts = [f"Measured {where}.", asked_table(asked), "" if whole else misses(asked)]
        put_between_marks(path, "asked", "\n\n".join(filter(None, parts)))


def body(
    rows: Sequence[Mapping[str, Any]], seed: int, host: Mapping[str, Any], commit: str
) -> str:
    """Return what the runner knows: where and when, the table, stalls that were told by themselves, and the misses."""
    plain = [dict(row) for row in rows]
    where = f"{host['time'][:10]}, commit {commit}, seed {seed}, {len(plain)} cases, {host['cpus']} cores ({host['cpu']}), Python {host['python']}"
    parts = [
        f"Measured {where}.",
        table(plain),
        automatic(plain),
        by_hand(plain),
        "### Misses",
        misses(plain),
    ]
    return "\n\n".join(each for each in parts if each)


def automatic(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how long the finding took that came by itself; empty where none was waited for."""
    told = [
        (row["verdict"]["automatic"], row["case"]) for row in rows if row["verdict"]["automatic"]
    ]
    if not told:
        return ""
    right = [own for own, case in told if set(own["ranks"]) == set(case["odd"])]
    seconds = sorted(own["seconds"] for own, _ in told if own["seconds"] is not None)
    when = f"; it came {seconds[0]:.0f} to {seconds[-1]:.0f} s after the fault" if seconds else ""
    return (
        f"In {len(told)} of the hangs the finding that comes by itself (`run.stall`, in the rendezvous `run.rendezvous`) was waited for: it named the culprit in {len(right)}"
        f"{when} (a stall is one after 30 s)."
    )


def by_hand(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what today's tools say of the same hangs; empty where they were not tried."""
    tried = [row for row in rows if row["verdict"].get("by_hand")]
    traced = [row["verdict"]["by_hand"]["torchfrtrace"] for row in tried]
    ran = sum(each["ran"] for each in traced)
    shown = sum(bool(row["verdict"]["by_hand"]["py-spy"].get("line")) for row in tried)
    right = sum(row["score"]["all"] for row in tried)
    named = sum(bool(each.get("right")) for each in traced)
    words = (
        f"Of {len(tried)} hangs that other tools looked at, too, `why` named {right}, torchfrtrace {named} of {ran}"
        " (the others have no flight recorder; on Gloo's dumps it ends with a KeyError, and the members of the groups were added by hand);"
        f" py-spy on every rank showed the culprit's line in {shown}, without its rank."
    )
    return words if tried else ""
