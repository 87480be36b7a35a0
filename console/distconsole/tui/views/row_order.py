"""Filter, order and groups of a view's rows, by the expression language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from textual.containers import Vertical

from distconsole.config.spelling import suggest
from distconsole.errors import UsageError
from distconsole.expression import Condition, Field, Fields, Value, ValueKind, parse_condition
from distconsole.tui.widgets.line_table import LineTable

Row = TypeVar("Row")

UNKNOWN = "-"
"""Title of a group of rows without a value."""


@dataclass(frozen=True, slots=True)
class RowOrder(Generic[Row]):
    """The rows of a screen: filter, order, and grouping, each by a field."""

    condition: Condition[Row] | None = None
    by: Field[Row] | None = None
    downwards: bool = False
    group: Field[Row] | None = None

    @property
    def words(self) -> str:
        """It in words; empty for the default."""
        parts = []
        if self.condition is not None:
            parts.append(f"filter {self.condition.text}")
        if self.by is not None:
            parts.append(f"by {self.by.name} {'▾' if self.downwards else '▴'}")
        if self.group is not None:
            parts.append(f"grouped by {self.group.name}")
        return "  ".join(parts)

    def shown(self, rows: Sequence[Row]) -> list[Row]:
        """Return those of ``rows`` that match, in order; unknown values last."""
        left = list(rows) if self.condition is None else self.condition.matching(rows)
        by = self.by
        if by is None:
            return left
        known = [row for row in left if _place(by.get(row)) is not None]
        unknown = [row for row in left if _place(by.get(row)) is None]
        known.sort(key=lambda row: _place(by.get(row)) or (0.0, ""), reverse=self.downwards)
        return known + unknown

    def grouped(self, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
        """Return ``rows`` by group, groups in the order of their first; one without a name if not asked."""
        if self.group is None:
            return [("", list(rows))]
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(_group_name(self.group.get(row)), []).append(row)
        return list(groups.items())

    def is_by(self, name: str) -> bool:
        return self.by is not None and self.by.name == name


class OrderedView(Vertical, Generic[Row]):
    """A view with rows filtered, sorted and grouped by ``fields``; each raises ``UsageError`` for an unknown one."""

    fields: ClassVar[Fields[Any]]
    usual = ""
    """The field of the default order."""
    order: RowOrder[Row] = RowOrder()

    def filter(self, text: str) -> None:
        self._take(
            replace(self.order, condition=parse_condition(text, self.fields) if text else None)
        )

    def sort(self, name: str, *, downwards: bool | None = None) -> None:
        """Order the rows by the field called ``name``, figures downwards; the same once more turns the order round."""
        name = "" if name == self.usual else name
        by = find_field(name, self.fields) if name else None
        if downwards is None and self.order.is_by(name):
            downwards = not self.order.downwards
        down = by is not None and (
            by.kind is not ValueKind.TEXT if downwards is None else downwards
        )
        self._take(replace(self.order, by=by, downwards=down))

    def group(self, name: str) -> None:
        """Group rows by the field called ``name``; ``none`` ends that."""
        none = name in ("", "none")
        self._take(replace(self.order, group=None if none else find_field(name, self.fields)))

    def _take(self, order: RowOrder[Row]) -> None:
        self.order = order
        table: LineTable[Any]
        for table in self.query(LineTable):
            table.filtered = order.condition is not None
            table.sorted_by = order.by.name if order.by is not None else ""
            table.to_top()


def find_field(name: str, fields: Fields[Row]) -> Field[Row]:
    """Return the field with this name; raises ``UsageError`` if there is none."""
    found = fields.find(name)
    if found is None:
        advice = suggest(name, fields.names, f"one of {', '.join(fields.names)}")
        raise UsageError(f"{fields.of} have no field '{name[:40]}'", advice)
    return found


def _place(value: Value) -> tuple[float, str] | None:
    match value:
        case None:
            return None
        case tuple():
            return 0.0, ",".join(value)
        case str():
            return 0.0, value
        case _:
            return float(value), ""


def _group_name(value: Value) -> str:
    match value:
        case None | () | "":
            return UNKNOWN
        case tuple():
            return ",".join(dict.fromkeys(value))
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)
