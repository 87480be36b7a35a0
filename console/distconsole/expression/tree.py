"""A condition as a tree, as it was written; it says nothing about what the names are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    """A number, as written with its unit."""

    value: float
    unit: str
    at: int


@dataclass(frozen=True, slots=True)
class Words:
    """A text."""

    value: str
    at: int


@dataclass(frozen=True, slots=True)
class Name:
    """A field."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """``not`` or ``-`` before something."""

    sign: str
    operand: Node
    at: int


@dataclass(frozen=True, slots=True)
class Infix:
    """Something between two others."""

    sign: str
    left: Node
    right: Node
    at: int


@dataclass(frozen=True, slots=True)
class Over:
    """A function over all rows; ``count()`` alone is over nothing."""

    function: str
    inside: Node | None
    at: int


Node: TypeAlias = Number | Words | Name | Prefix | Infix | Over
