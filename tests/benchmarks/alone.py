"""A benchmark as a program: its options are those of its ``measure``, it prints its rows and keeps its figures. It
measures nothing.
"""

import argparse
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
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
    head, *lines = (f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells)
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([head, rule, *lines])


def text(spread: Mapping[str, float], scale: float = 1.0, digits: int = 2) -> str:
    """Return a spread as it stands in the kept figures: median [lowest-highest]."""
    return Spread(**spread).text(scale, digits)


def at_most(limit: float | None, value: float, unit: str = " s") -> tuple[str, bool | None]:
    """Return the last two cells of a row with this target; without one they are empty."""
    return ("", None) if limit is None else (f"≤ {limit:g}{unit}", value <= limit)


def rows_of_turns(figures: Figures) -> list[Row]:
    """Return a row of each ``measure.Compared`` of what ``measure.compare`` returned."""
    return [_row_of_turns(line, figures) for line in figures.get("lines", ())]


def _row_of_turns(line: Figures, figures: Figures) -> Row:
    seconds, kind, of = figures["seconds"], line["kind"], line["of"]
    beside = [
        f"{name} {text(found[kind])} s"
        for name, found in figures["beside"].items()
        if kind in found
    ]
    measured = f"{text(seconds[kind])} s" + (f" ({', '.join(beside)})" if beside else "")
    target = at_most(line["seconds"], seconds[kind]["median"])
    reference = ""
    if over := line.get("over"):
        reference = f"{text(over)} of {of}, {text(seconds[line['peer']])} s"
        if line["ratio"] is not None:
            target = at_most(line["ratio"], over["median"], f" of {of}")
    return Row(line["figure"], measured, reference, *target)


def program(name: str, *words: object) -> list[str]:
    """Return the command line of a process that is ``be(*words)`` of the benchmark ``name``."""
    return [sys.executable, "-m", "benchmarks", "be", name, *map(str, words)]


def run_alone(benchmark: Any, arguments: Sequence[str] | None = None) -> int:
    """Measure, print the rows, and write the figures where ``--json`` says; return the exit code.

    Args:
        benchmark: A module. Each argument of its ``measure`` that has a default is an option, whose type the default
            has; ``rows`` makes a summary of what it returned, and ``failed``, if it is there, looks for what must
            not be.
    """
    parser = argparse.ArgumentParser(description=benchmark.__doc__)
    parser.add_argument("--json", type=Path)
    for name, option in inspect.signature(benchmark.measure).parameters.items():
        if (usual := option.default) is not option.empty:
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    given = vars(parser.parse_args(arguments))
    file = given.pop("json")
    figures = json.loads(json.dumps(benchmark.measure(**given), default=asdict))
    print(table(benchmark.rows(figures)))
    if skipped := figures.get("skipped"):
        print(f"not measured: {skipped}")
    if file is not None:
        write_json(file, benchmark.__name__.rpartition(".")[2], figures)
    return int(hasattr(benchmark, "failed") and benchmark.failed(figures))
