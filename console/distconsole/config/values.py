"""A value of ``distconsole.toml`` as its kind has it."""

from __future__ import annotations

import re
from typing import Any

from distconsole.config.schema import Kind
from distconsole.model.names import may_be_user
from distconsole.model.ranks import RankSpans, parse_ranks

BOUNDS = {Kind.COUNT: (0, 2**63), Kind.POSITIVE: (1, 2**63), Kind.PORT: (1, 65535)}
"""Of whole numbers, the least and the most."""


def convert(value: Any, kind: Kind) -> Any:
    """Return ``value`` as ``kind`` has it; None if it is none."""
    number = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case Kind.TEXT | Kind.FILE:
            return value if isinstance(value, str) and value else None
        case Kind.USER:
            return value if isinstance(value, str) and may_be_user(value) else None
        case Kind.FLAG:
            return value if isinstance(value, bool) else None
        case Kind.COUNT | Kind.POSITIVE | Kind.PORT:
            least, most = BOUNDS[kind]
            return value if number and least <= value <= most else None
        case Kind.SECONDS:
            real = number or isinstance(value, float)
            return float(value) if real and 0 <= value < 1e9 else None
        case Kind.NPROC | Kind.NNODES:
            return str(value) if _is_count(value, kind) else None
        case Kind.RANKS:
            return _ranks(value)
        case Kind.WORDS:
            return _words(value)
        case Kind.PAIRS:
            return _pairs(value)
        case _:
            return _convert_expected(value, kind)


def _convert_expected(value: Any, kind: Kind) -> float | str | None:
    from distconsole.config import expect as keys  # noqa: PLC0415 - most expect nothing

    match kind:
        case Kind.VERSION:
            return keys.specifier_of(value)
        case Kind.SIZE:
            return keys.size_of(value)
        case Kind.LIMIT:
            return keys.limit_of(value)
        case _:
            return keys.number_of(value)


def _is_count(value: Any, kind: Kind) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and value >= 1
    if kind is Kind.NPROC:
        return bool(value == "gpu")
    return (
        isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,5}(:[1-9]\d{0,5})?", value) is not None
    )


def _ranks(value: Any) -> RankSpans | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return parse_ranks(str(value))
    except ValueError:
        return None


def _words(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str) and value:
        return (value,)
    whole = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
    return tuple(value) if whole and value else None


def _pairs(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, dict):
        return None
    if not all(isinstance(one, str | int | float) and one is not True for one in value.values()):
        return None
    return tuple(f"{name}={one}" for name, one in value.items())
