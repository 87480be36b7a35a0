"""A benchmark as a program: its options are numbers or words, it prints its rows and keeps its figures. It measures
nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Spread, write_json

MIB = 2**20
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One figure: what was measured, against what, and what was wanted.

    Attributes:
        met: None where there is no target.
    """

    figure: str
    measured: str
    reference: str = ""
    target: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = "" if self.met is None else ("met" if self.met else "MISSED")
        return (self.figure, self.measured, self.reference, self.target, verdict)


HEAD = ("figure", "measured, median [range]", "against, in the same run", "target", "")


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table that is Markdown and can be read as it is."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    padded = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def text(spread: Mapping[str, float], scale: float = 1.0, digits: int = 2) -> str:
    """Return a spread as it stands in the kept figures: median [lowest-highest]."""
    return Spread(**spread).text(scale, digits)


def run_alone(
    name: str,
    about: str | None,
    measure: Callable[..., Figures],
    rows: Callable[[Any], Sequence[Row]],
    arguments: Sequence[str] | None = None,
    **options: float | str,
) -> Figures:
    """Measure, print the rows, and write the figures where ``--json`` says; return them.

    Args:
        name: The benchmark's, in its file of figures.
        about: What ``--help`` says of it.
        measure: Takes each of ``options`` by its name.
        arguments: The command line's words.
        options: Each option and its default, whose type the option has.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", type=Path)
    for option, usual in options.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(usual), default=usual)
    given = vars(parser.parse_args(arguments))
    file = given.pop("json")
    figures: Figures = json.loads(json.dumps(measure(**given), default=asdict))
    print(table(rows(figures)))
    if skipped := figures.get("skipped"):
        print(f"not measured: {skipped}")
    if file is not None:
        write_json(file, name, figures)
    return figures
