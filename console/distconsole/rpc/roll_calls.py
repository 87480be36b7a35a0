"""Decodes an agent's reports on its ranks; see ``model.diagnosis.calls``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, structs

from distconsole.errors import AgentError
from distconsole.model.decoding import threadsafe
from distconsole.model.diagnosis.calls import Call

MAX_GROUP = 65535
MAX_CALLS = 4096
"""Ranks that one node can have."""
NEEDED = ("rank",)


def read_call(body: Mapping[str, Any]) -> Call | None:
    """Return a call whose texts are cleaned already; None if it does not even name its rank.

    A field that breaks its bounds is as if it were unknown: the rest may still name the culprit.
    """
    try:
        return _read(body)
    except msgspec.ValidationError:
        pass
    fields = {name: body[name] for name in Call.__struct_fields__ if name in body}
    good = {name: fields[name] for name in NEEDED if name in fields}
    for name, value in fields.items():
        try:
            _read({**good, name: value})
        except msgspec.ValidationError:
            continue
        good[name] = value
    try:
        return _read(good)
    except msgspec.ValidationError:
        return None


def read_calls(result: Mapping[str, Any]) -> list[Call]:
    """Return the calls in an answer of op ``roll_call``, each rank's first; raises AgentError."""
    told = result.get("ranks")
    if not isinstance(told, Sequence) or isinstance(told, str) or len(told) > MAX_CALLS:
        raise AgentError("the agent's answer to roll_call has no ranks that could be read")
    calls: dict[int, Call] = {}
    for body in told:
        call = read_call(body) if isinstance(body, Mapping) else None
        if call is not None:
            calls.setdefault(call.rank, call)
    return list(calls.values())


def _read(body: Mapping[str, Any]) -> Call:
    call = msgspec.convert(body, threadsafe(Call))
    collectives = list(call.collectives)
    for at, told in enumerate(collectives):
        if told.span is not UNSET and not told.ranks:
            ranks = _between(told.span[0], min(told.span[1], told.span[0] + MAX_GROUP))
            collectives[at] = structs.replace(told, ranks=ranks, span=UNSET)
    return structs.replace(call, collectives=tuple(collectives))


@lru_cache(maxsize=64)
def _between(first: int, last: int) -> tuple[int, ...]:
    """Return the ranks from ``first`` to ``last``: one value for all calls with the same ones."""
    return tuple(range(first, last + 1))
