"""The table of platforms, made of what pytest reported of each."""

import re
import time
from pathlib import Path
from xml.etree import ElementTree

from platforms.rows import CLAIMS, ROWS

VERSIONS = ("debian", "python", "torch", "mpirun", "slurm", "openssh", "horovod")


def make_table(results: Path) -> str:
    """Return one column for each platform of which there are results: its versions, then its claims."""
    tried = [row.name for row in ROWS if (results / f"{row.name}.xml").exists()]
    columns = [_column(results, name) for name in tried]
    tried_at = (time.gmtime((results / f"{name}.xml").stat().st_mtime) for name in tried)
    days = sorted({time.strftime("%Y-%m-%d", each) for each in tried_at})
    alike = [
        claim for claim in CLAIMS if columns and {each[claim] for each in columns} == {"real"}
    ]
    names = [*VERSIONS, *(claim for claim in CLAIMS if claim not in alike)]
    lines = [
        f"Tried {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else "Not tried.",
        f"Real on each: {', '.join(alike) or '–'}.",
        "",
        "| | " + " | ".join(str(number) for number in range(1, len(tried) + 1)) + " |",
        "|---" * (len(tried) + 1) + "|",
        *(
            f"| {name} | " + " | ".join(column[name] for column in columns) + " |"
            for name in names
        ),
    ]
    return "\n".join(lines)


def _column(results: Path, name: str) -> dict[str, str]:
    told = (results / f"{name}.versions").read_text().splitlines()
    column = dict.fromkeys(VERSIONS, "–")
    column |= {key: value for key, _, value in (line.partition(": ") for line in told) if value}
    found = _outcomes(results / f"{name}.xml")
    for claim, tests in CLAIMS.items():
        keys = (re.sub(r"^tests/|\.py", "", test).replace("/", ".") for test in tests)
        column[claim] = _judge([found.get(key) for key in keys])
    return column


def _outcomes(path: Path) -> dict[str, str]:
    """Return by test, and by file, ``passed``, ``failed``, or why it was skipped."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - pytest wrote it
        outcome = "passed"
        if (skipped := case.find("skipped")) is not None:
            outcome = skipped.get("message", "")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        file = case.get("classname", "").removeprefix("tests.")
        name = re.sub(r"@[\w-]+$", "", case.get("name", ""))  # xdist adds the group
        for key in (f"{file}::{name}", file):
            found[key] = outcome if found.get(key, "passed") == "passed" else found[key]
    return found


def _judge(outcomes: list[str | None]) -> str:
    """Return ``real`` if every test of a claim passed, ``**fails**`` if one failed."""
    if all(each == "passed" for each in outcomes):
        return "real"
    return "**fails**" if "failed" in outcomes else "not tried"
