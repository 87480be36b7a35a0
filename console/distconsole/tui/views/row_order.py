"""Which rows a screen shows, in which order and groups, by the expression language. It draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.expression import Condition, Field, Fields, Kind, Value, parse_condition

Row = TypeVar("Row")

UNKNOWN = "-"
"""What a group is called whose rows do not say."""


@dataclass(frozen=True, slots=True)
class RowOrder(Generic[Row]):
    """What is asked of a screen.

    Attributes:
        condition: Only what matches; None shows all.
        by: The field that is sorted by; None leaves rows in their order.
        downwards: The largest first.
        group: The field that rows are grouped by; None groups nothing.
    """

    condition: Condition[Row] | None = None
    by: Field[Row] | None = None
    downwards: bool = False
    group: Field[Row] | None = None

    @property
    def words(self) -> str:
        """It in words; nothing where everything is shown as it comes."""
        parts = []
        if self.condition is not None:
            parts.append(f"filter {self.condition.text}")
        if self.by is not None:
            parts.append(f"by {self.by.name} {'▾' if self.downwards else '▴'}")
        if self.group is not None:
            parts.append(f"grouped by {self.group.name}")
        return "  ".join(parts)

    def shown(self, rows: Sequence[Row]) -> list[Row]:
        """Return those of ``rows`` that match, in order; what is unknown stands last."""
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

    def with_filter(self, text: str, fields: Fields[Row]) -> RowOrder[Row]:
        """Return it with only what matches ``text``; with all if that is empty.

        Raises:
            UsageError: if it means nothing.
        """
        return replace(self, condition=parse_condition(text, fields) if text else None)

    def is_by(self, name: str) -> bool:
        """Whether the field called ``name`` orders the rows."""
        return self.by is not None and self.by.name == name

    def with_sort(
        self, name: str, fields: Fields[Row], *, downwards: bool | None = None
    ) -> RowOrder[Row]:
        """Return it in the order of the field called ``name``, figures downwards if not said otherwise.

        The same field once more, without a way said, turns the order round.

        Raises:
            UsageError: if there is none.
        """
        by = field_called(name, fields) if name else None
        if downwards is None and self.is_by(name):
            downwards = not self.downwards
        down = by is not None and (by.kind is not Kind.TEXT if downwards is None else downwards)
        return replace(self, by=by, downwards=down)

    def with_group(self, name: str, fields: Fields[Row]) -> RowOrder[Row]:
        """Return it in groups by the field called ``name``; ``none`` ends that.

        Raises:
            UsageError: if there is no such field.
        """
        return replace(self, group=None if name in ("", "none") else field_called(name, fields))


def field_called(name: str, fields: Fields[Row]) -> Field[Row]:
    """Return the field with this name.

    Raises:
        UsageError: if there is none.
    """
    found = fields.find(name)
    if found is None:
        like = nearest(name, fields.names)
        advice = f"did you mean {like}?" if like else f"one of {', '.join(fields.names)}"
        raise UsageError(f"{fields.of} have no field '{name[:40]}'", advice)
    return found


def _place(value: Value) -> tuple[float, str] | None:
    match value:
        case None:
            return None
        case bool() | int() | float():
            return float(value), ""
        case tuple():
            return 0.0, ",".join(value)
        case str():
            return 0.0, value


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
