"""A value of ``distconsole.toml`` of a kind, and its line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distconsole.config.shortcuts import may_be_line
from distconsole.model.names import RankSpans, may_be_user, parse_ranks
from distconsole.model.options import Kind
from distconsole.model.requests import count_of_hosts

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


def convert(value: Any, kind: Kind) -> Any:
    """Return ``value`` as ``kind`` has it; None if it is none."""
    read: Callable[[Any], Any] = READERS.get(
        kind, lambda value: value if isinstance(value, str) and value else None
    )
    return read(value)


def line_of(text: str, table: tuple[str, ...], key: str) -> int | None:
    """Return the line of ``key`` in ``[table]``, or of the header ``[table.key]``; tomllib keeps neither."""
    current: tuple[str, ...] = ()
    loose = None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\[?(.+?)\]\]?\s*(?:#.*)?$", line)
        if header and not re.match(r"\s*\S+\s*=", line):
            current = _parts(header[1])
            if current[: len(table) + 1] == (*table, key):
                return number
            continue
        assigned = re.match(r"""\s*((?:"[^"]*"|'[^']*'|[\w.-])+)\s*=""", line)
        if assigned and (*current, *_parts(assigned[1]))[: len(table) + 1] == (*table, key):
            return number
        if loose is None and re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])\s*[\"']?\s*=", line):
            loose = number
    return loose


MOST_BYTES = 2**63
"""Of a file, as the kernel counts them."""


def size_of(value: object) -> float | None:
    """Return the bytes of ``8GiB``, ``64K`` or a number; None if it is no size that a file can have. All are powers of 1024."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if 0 <= value < MOST_BYTES else None
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    power = " KMGT".index(found[2].upper() or " ")
    size = float(found[1]) * 1024.0**power
    return size if size < MOST_BYTES else None


def _parts(dotted: str) -> tuple[str, ...]:
    found = re.findall(r""""([^"]*)"|'([^']*)'|([\w-]+)""", dotted)
    return tuple(a or b or c for a, b, c in found)


def _whole(least: int, most: int = 2**63) -> Callable[[Any], int | None]:
    def read(value: Any) -> int | None:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return value if is_number and least <= value <= most else None

    return read


def _number(value: Any, most: float) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < most else None


def _count(pattern: str) -> Callable[[Any], str | None]:
    def read(value: Any) -> str | None:
        if isinstance(value, str):
            return value if re.fullmatch(pattern, value) else None
        return str(value) if _whole(1)(value) else None

    return read


def _nnodes(value: Any) -> str | None:
    found = _count(r"[1-9]\d{0,5}(:[1-9]\d{0,5})?")(value)
    fewest, most = count_of_hosts(found) or (1, 0)
    return found if fewest <= most else None


def _ranks(value: Any) -> RankSpans | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    with suppress(ValueError):
        return parse_ranks(str(value))
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


def _specifier(value: object) -> str | None:
    """Return a version specifier. A bare version means all that begin with it."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - slow to load

    if not isinstance(value, str) or not value.strip():
        return None
    text = value.strip()
    tries = (f"=={text.removesuffix('.*')}.*", f"=={text}") if text[0].isdigit() else (text,)
    for each in tries:
        with suppress(InvalidSpecifier):
            SpecifierSet(each)
            return each
    return None


READERS: dict[Kind, Callable[[Any], Any]] = {
    Kind.USER: lambda value: value if isinstance(value, str) and may_be_user(value) else None,
    Kind.FLAG: lambda value: value if isinstance(value, bool) else None,
    Kind.COUNT: _whole(0),
    Kind.POSITIVE: _whole(1),
    Kind.PORT: _whole(1, 65535),
    Kind.SECONDS: lambda value: _number(value, 1e9),
    Kind.NPROC: _count(r"gpu|[1-9]\d{0,3}"),
    Kind.NNODES: _nnodes,
    Kind.RANKS: _ranks,
    **dict.fromkeys((Kind.WORDS, Kind.GROUPS, Kind.HOST_LIST, Kind.SIZES), _words),
    Kind.PAIRS: _pairs,
    Kind.VERSION: _specifier,
    Kind.SIZE: size_of,
    Kind.LIMIT: lambda value: math.inf if value == "unlimited" else size_of(value),
    Kind.NUMBER: lambda value: _number(value, 1e12) or None,
    Kind.LINE: lambda value: value.strip() or None if may_be_line(value) else None,
    Kind.KEY_LINE: lambda value: value if may_be_line(value) else None,
}
"""What reads a value of a kind; any other is a text."""
