"""Events and reports of which a test says only what it is about."""

import types
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
Make = Callable[[], Any]


def blank(kind: type[T], **fields: Any) -> T:
    """Return a struct with ``fields``; what else it requires is null, zero or empty."""
    return kind(**{name: make() for name, make in _required(kind) if name not in fields}, **fields)


@cache
def _required(kind: type[msgspec.Struct]) -> list[tuple[str, Make]]:
    hints = get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind)
    return [(each.name, _least(hints[each.name])) for each in fields if each.required]


def _least(hint: Any) -> Make:
    """Return what makes the least value of a type."""
    if get_origin(hint) is Annotated:
        return _least(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        options = get_args(hint)
        return types.NoneType if type(None) in options else _least(options[0])
    plain: type[Any] = getattr(hint, "__supertype__", get_origin(hint) or hint)
    if issubclass(plain, Enum):
        return lambda: next(iter(plain))
    return partial(blank, plain) if issubclass(plain, msgspec.Struct) else plain
