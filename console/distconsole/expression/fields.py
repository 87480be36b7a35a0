"""Fields of a row for conditions: a table by name. The tables themselves are beside the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from distconsole.expression.units import UNITS, Measure

Row = TypeVar("Row")

Value: TypeAlias = float | str | bool | tuple[str, ...] | None
"""Value of a field; several texts are a tuple, an unknown one is None."""


class ValueKind(StrEnum):
    """What can be done with a value."""

    NUMBER = "number"
    TEXT = "text"
    FLAG = "yes or no"


@dataclass(frozen=True, slots=True)
class Field(Generic[Row]):
    """A field: ``get`` returns it in ``unit``; ``bare``: a plain number's unit; ``twins``: other fields by measure."""

    name: str
    get: Callable[[Row], Value]
    about: str
    kind: ValueKind = ValueKind.NUMBER
    unit: str = ""
    bare: str = ""
    twins: dict[Measure, str] = field(default_factory=dict)

    @property
    def measure(self) -> Measure:
        return UNITS[self.unit].measure


class Fields(Generic[Row]):
    """The fields of one kind of row (``of``: ``ranks``); names behind ``open_prefix.`` are any, by ``open_get``.

    ``also`` has further names of fields: those of a table's headings.
    """

    def __init__(
        self,
        of: str,
        fields: Iterable[Field[Row]],
        open_prefix: str = "",
        open_get: Callable[[Row, str], Value] | None = None,
        also: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.of = of
        self.open_prefix = open_prefix
        self._open_get = open_get
        self._also = also
        self._fields = {each.name: each for each in fields}

    def __iter__(self) -> Iterator[Field[Row]]:
        return iter(self._fields.values())

    @property
    def names(self) -> list[str]:
        return list(self._fields)

    def find(self, name: str) -> Field[Row] | None:
        found = self._fields.get(self._also.get(name, name))
        if found is not None or self._open_get is None:
            return found
        prefix, dot, rest = name.partition(".")
        if prefix != self.open_prefix or not dot or not rest:
            return None
        get = self._open_get
        return Field(name, lambda row: get(row, rest), f"the {prefix} called {rest}")

    def values(self, row: Row) -> dict[str, Value]:
        return {name: each.get(row) for name, each in self._fields.items()}
