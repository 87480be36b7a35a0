"""A benchmark as a program: its options are numbers, it prints a report and keeps its figures. It measures nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import write_json

Figures = Mapping[str, Any]


def run_alone(
    name: str,
    about: str | None,
    measure: Callable[..., Figures],
    report: Callable[[Any], str],
    arguments: Sequence[str] | None,
    **numbers: float,
) -> Figures:
    """Measure, print the report, and write the figures where ``--json`` says; return them.

    Args:
        name: The benchmark's, in its file of figures.
        about: What ``--help`` says of it.
        measure: Takes each of ``numbers`` by its name.
        arguments: The command line's words.
        numbers: Each option and what it is by default; whole ones stay whole.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", type=Path)
    for option, usual in numbers.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(usual), default=usual)
    given = vars(parser.parse_args(arguments))
    file = given.pop("json")
    figures = measure(**given)
    print(report(figures))
    if file is not None:
        write_json(file, name, figures)
    return figures
