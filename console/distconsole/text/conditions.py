"""What conditions found, and the fields that they may name, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distconsole.expression import Fields, Kind, Value
from distconsole.model.events import ConditionJudged, RankListed
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.text.output import Output
from distconsole.text.tables import bytes_text, number_text, table


def show_ranks(output: Output, ranks: Sequence[RankListed]) -> None:
    """Print one line a rank: what it is, and what was asked of it."""
    names = [name for name in ranks[0].shown if name in ranks[0].fields]
    rows = [[value_text(name, each.fields.get(name)) for name in names] for each in ranks]
    kinds = [RANK_FIELDS.find(name) for name in names]
    right = [at for at, kind in enumerate(kinds) if kind is None or kind.kind is Kind.NUMBER]
    for line in table(names, rows, right=right):
        output.data(line)


def judged_text(judged: ConditionJudged) -> str:
    """Say how many match."""
    unknown = f", {judged.unknown} unknown" if judged.unknown else ""
    found = judged.matched or "none"
    return f"{judged.condition}: {found} of {judged.asked} {judged.of}{unknown}"


def value_text(name: str, value: Value) -> str:
    """Return what a rank's field is, with its unit."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ",".join(value)
    field = RANK_FIELDS.find(name)
    unit = "" if field is None else field.unit
    if unit == "B":
        return bytes_text(value)
    if isinstance(value, int) and not unit:
        return str(value)
    return f"{number_text(value)}{'' if unit == '%' else ' ' if unit else ''}{unit}"


def fields_table(fields: Fields[Any]) -> list[str]:
    """Return ``fields`` as the lines of a Markdown table."""
    rows = [
        f"| `{each.name}` | {each.kind.value} | {_unit_text(each.unit, each.bare_unit)} | {each.about} |"
        for each in fields
    ]
    return ["| field | is a | without a unit | what it is |", "|---|---|---|---|", *rows]


def _unit_text(unit: str, bare: str) -> str:
    return bare if unit else ""
