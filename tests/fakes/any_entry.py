"""Journal entries with anything in them that the wire lets through, by the throw of dice: what a broken
or hostile node may say. It knows the types of ``remote.frames``, and nothing of what they mean."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

from distconsole.rpc import frames

TEXTS = (
    *(
        "",
        "a",
        "\x1b[31mred\x1b[0m",
        "\x1b]0;t\x07",
        "\r10%\r20%",
        "\n\n",
        "x\n",
        "\ud800",
        "\x00",
    ),
    *("\u202eabc", "[b]m[/b]", "a" * 500, "👩‍👩‍👧", "epoch 3/10", "step 9 of 999999999999", "nan"),
    *("a\n\x1b[A\n\x1b[A", "running", "failed", "exited", "killed", "stalled", "starting"),
    *("stopped", "succeeded", "lost", "warn", "fail", "info", "run.node_lost", "import_torch"),
    *("first_step", "out", "err", "n0", "n1"),
)
NAMES = ("loss", "acc", "\x1b[1mx", "[b]", "total_steps")
FLOATS = (
    *(0.0, -0.0, 1e-300, 5e-324, 1e18, -1e18, 1e308, -1e308, -1.0),
    *(float("inf"), float("-inf"), float("nan")),
)
type_info = cache(inspect.type_info)
KINDS = type_info(frames.JournalEntry).types  # type: ignore[attr-defined]


def any_entries(dice: random.Random, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield host and entry, as JSON has them; most at a moment that follows from the one before."""
    t, seq = 1000.0, {"n0": 0, "n1": 0}
    while count:
        kind = dice.choice(KINDS)
        if kind.tag == "end" and dice.random() < 0.9:
            continue
        host = dice.choice(("n0", "n1"))
        seq[host] += 1
        t += dice.choice((0.0, 0.1, 1.0, 11.0))
        entry = _any(kind, dice) | {"seq": seq[host]}
        if dice.random() < 0.95:
            entry["t"] = t
        yield host, entry
        count -= 1


def any_value(kind: type, dice: random.Random) -> Any:
    """Return a value that the wire lets through as ``kind``, as JSON has it."""
    return _any(type_info(kind), dice)


def _any(kind: Any, dice: random.Random) -> Any:
    match kind:
        case inspect.StructType():
            wanted = (each for each in kind.fields if each.required or dice.random() < 0.6)
            fields = {each.encode_name: _any(each.type, dice) for each in wanted}
            return {kind.tag_field: kind.tag, **fields} if kind.tag_field else fields
        case inspect.NamedTupleType():
            return [_any(each.type, dice) for each in kind.fields]
        case inspect.TupleType():
            return [_any(each, dice) for each in kind.item_types]
        case inspect.VarTupleType() | inspect.ListType():
            return [_any(kind.item_type, dice) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
        case inspect.DictType():
            some = range(dice.choice((0, 1, 2)))
            return {dice.choice(NAMES): _any(kind.value_type, dice) for _ in some}
        case inspect.UnionType():
            return _any(dice.choice(kind.types), dice)
        case inspect.IntType():
            few = (0, 1, 2, 3, 4) if dice.random() < 0.7 else (kind.ge, kind.le, 2**31, 2**60)
            return dice.choice([n for n in few if n is not None and _within(n, kind)] or [kind.ge])
        case inspect.FloatType():
            some_floats = (0.0, 1.0, 2.5, 100.0) if dice.random() < 0.6 else FLOATS
            return dice.choice([x for x in some_floats if _within(x, kind)])
        case inspect.StrType():
            return dice.choice(TEXTS)[: kind.max_length]
        case inspect.BoolType():
            return dice.random() < 0.5
        case _:
            return None


def _within(number: float, kind: Any) -> bool:
    return (kind.ge is None or number >= kind.ge) and (kind.le is None or number <= kind.le)
