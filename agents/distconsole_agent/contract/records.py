"""Reads and writes the contract's JSON as NamedTuples: the annotation of a field is the rule for its value.

Dataclasses would do the same, but their module imports ``inspect``, which takes longer than all else that a bridge loads.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Callable, NamedTuple, TypeVar

Word = str
"""In an annotation: text without a zero byte, as for an argument, a path or a variable."""

Port = int
Positive = int
"""In an annotation: a whole number from 1 to 65535; one from 1."""

MORE = "more"
"""The field with all keys that this version does not know; a record may lack it."""

MAX_INT, MAX_FLOAT = 1 << 63, 1e300

_Record = TypeVar("_Record", bound=NamedTuple)


class RecordError(ValueError):
    """A value that breaks its field's rule; the text begins with the path of the field."""


def read(cls: type[_Record], raw: object, path: str = "") -> _Record:
    """Return a value of JSON as the record ``cls``, or raise RecordError.

    A missing key and a null give the default, or None where the annotation allows it.
    """
    if not isinstance(raw, dict):
        raise RecordError(f"{path or 'it'} is not an object")
    rules = _rules(cls)
    values: dict[str, Any] = {}
    for name, (optional, rule) in rules.items():
        value, where = raw.get(name), f"{path}.{name}" if path else name
        if value is not None:
            values[name] = rule(value, where)
        elif name not in cls._field_defaults:
            if not optional:
                raise RecordError(f"{where} is missing")
            values[name] = None
    if MORE in cls._fields:
        values[MORE] = {name: value for name, value in raw.items() if name not in rules}
    make: Callable[..., _Record] = cls
    return make(**values)


def read_file(cls: type[_Record], path: str) -> _Record | None:
    """Return the record in a file; None if it cannot be read, or holds anything else."""
    try:
        with open(path, "rb") as file:
            return read(cls, json.load(file))
    except (OSError, ValueError, RecursionError):
        return None


def write(record: NamedTuple) -> dict[str, Any]:
    """Return the JSON object of a record, without fields that are None by default."""
    defaults = record._field_defaults
    made = {
        name: _plain(value)
        for name, value in zip(record._fields, record)
        if name != MORE and (value is not None or defaults.get(name, 0) is not None)
    }
    return {**made, **getattr(record, MORE, {})}


def _plain(value: Any) -> Any:
    if hasattr(value, "_fields"):
        return write(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value.hex() if isinstance(value, bytes) else value


Rule = Callable[[Any, str], Any]
"""Returns a value of JSON as the field has it; gets the field's path for RecordError."""


@cache
def _rules(cls: Any) -> dict[str, tuple[bool, Rule]]:
    """Return the rule of each field, and whether it may be None. Annotations are text: Python 3.9 cannot evaluate them."""
    found = {}
    for name, annotation in cls.__annotations__.items():
        if name != MORE:
            text = getattr(annotation, "__forward_arg__", annotation)
            found[name] = (
                text.endswith("| None"),
                _rule_of(text, vars(sys.modules[cls.__module__])),
            )
    return found


def _rule_of(text: str, names: Mapping[str, Any]) -> Rule:
    text = text.removesuffix(" | None")
    if text.startswith("tuple["):
        return partial(_list, _rule_of(text[len("tuple[") : -len(", ...]")], names))
    if text.startswith("Mapping[str, "):
        return partial(_object, _rule_of(text[len("Mapping[str, ") : -1], names))
    return partial(_plain_value, text) if text in _KINDS else partial(read, names[text])


def _list(rule: Rule, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise RecordError(f"{path} is not a list")
    return tuple([rule(each, f"{path}[{index}]") for index, each in enumerate(value)])


def _object(rule: Rule, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{path} is not an object")
    return {name: rule(each, f"{path}.{name}") for name, each in value.items()}


def _plain_value(kind: str, value: Any, path: str) -> Any:
    types, holds, words = _KINDS[kind]
    # Not isinstance: true is an int.
    if (types and type(value) not in types) or not holds(value):
        raise RecordError(f"{path} {words}")
    if kind == "float":
        return float(value)
    return bytes.fromhex(value) if kind == "bytes" else value


_KINDS: dict[str, tuple[tuple[type, ...], Callable[[Any], object], str]] = {
    "int": ((int,), lambda value: -MAX_INT <= value < MAX_INT, "is not a whole number"),
    "Port": ((int,), lambda value: 0 < value < 1 << 16, "is not a port"),
    "Positive": ((int,), lambda value: 0 < value < MAX_INT, "is not a whole number from 1"),
    "float": ((int, float), lambda value: abs(value) < MAX_FLOAT, "is not a number"),
    "bool": ((bool,), lambda _value: True, "is neither true nor false"),
    "str": ((str,), lambda _value: True, "is not text"),
    "Word": ((str,), lambda value: "\0" not in value, "is not text without a zero byte"),
    "bytes": ((str,), re.compile("(?:[0-9a-fA-F]{2})*\\Z").match, "is not hexadecimal"),
    "object": ((), lambda _value: True, ""),
}
"""By the annotation: types of the value, its bounds, and what a wrong one is."""
