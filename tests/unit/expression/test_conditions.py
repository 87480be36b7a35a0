"""The language of conditions: what matches, what is unknown, and what is refused with its place."""

import math
import random
from dataclasses import dataclass

import pytest

from distconsole.expression import (
    MAX_CHARS,
    MAX_DEPTH,
    ExpressionError,
    Field,
    Fields,
    Value,
    ValueKind,
    parse_condition,
)
from distconsole.expression.units import Measure


@dataclass(frozen=True)
class Thing:
    n: float | None = None
    ms: float | None = None
    mem: float | None = None
    share: float | None = None
    host: str | None = "node1"
    users: tuple[str, ...] | None = ()
    up: bool | None = True


def extra(row: Thing, name: str) -> Value:
    return {"val/loss": row.n}.get(name)


FIELDS: Fields[Thing] = Fields(
    "things",
    (
        Field("n", lambda row: row.n, "a number", twins={Measure.TIME: "ms"}),
        Field("ms", lambda row: row.ms, "a time", unit="ms"),
        Field("ms.p95", lambda row: row.ms, "a time", unit="ms"),
        Field(
            "mem", lambda row: row.mem, "bytes", unit="B", bare="GiB",
            twins={Measure.SHARE: "share"},
        ),
        Field("share", lambda row: row.share, "a share", unit="%"),
        Field("host", lambda row: row.host, "a text", ValueKind.TEXT),
        Field("user", lambda row: row.users, "texts", ValueKind.TEXT),
        Field("me", lambda _row: ("ann", "root"), "texts", ValueKind.TEXT),
        Field("up", lambda row: row.up, "a flag", ValueKind.FLAG),
    ),
    "metric",
    extra,
)  # fmt: skip


def answer(text: str, row: Thing) -> bool | None:
    return parse_condition(text, FIELDS).answers([row])[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0, None])
def test_nan_stands_for_what_is_no_finite_number(value: float | None) -> None:
    row = Thing(n=value)
    odd = None if value is None else value != 1.0
    assert answer("n=nan", row) is odd
    assert answer("n != NaN", row) is (None if odd is None else not odd)
    assert answer("metric.'val/loss' = nan", row) is odd


GIB = 1024.0**3


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("n<10", Thing(n=9), True),
        ("n < 10", Thing(n=10), False),
        ("n = 0.3", Thing(n=0.1 + 0.2), True),
        ("n == 3 && n <> 4", Thing(n=3), True),
        ("ms>20ms", Thing(ms=21), True),
        ("ms>20", Thing(ms=21), True),
        ("ms>0.02s", Thing(ms=19), False),
        ("n>20ms", Thing(n=1, ms=21), True),
        ("n>20", Thing(n=1, ms=21), False),
        ("ms.p95 > 1us", Thing(ms=1), True),
        ("mem>10GiB", Thing(mem=10 * GIB + 1), True),
        ("mem>10", Thing(mem=10 * GIB + 1), True),
        ("mem>10GB", Thing(mem=10 * GIB), True),
        ("mem>90%", Thing(mem=1, share=91), True),
        ("share<12%", Thing(share=11.9), True),
        ("ms > 110% * 20ms", Thing(ms=22.1), True),
        ("ms / 2 > 10ms", Thing(ms=21), True),
        ("ms / 10ms = 2", Thing(ms=20), True),
        ("ms + 1 > 20", Thing(ms=19.5), True),
        ("-n < -3", Thing(n=4), True),
        ("1 + 2 * 3 = 7 and (1 + 2) * 3 = 9", Thing(), True),
        ("host=node1", Thing(), True),
        ("host = NODE1", Thing(), True),
        ("host=node-2.x or up", Thing(up=False, host="node-2.x"), True),
        ("host~de", Thing(), True),
        ("host~gpu0", Thing(host="my-GPU07"), True),
        ("host~^gpu0[1-3]$", Thing(host="gpu02"), True),
        ("host~^pu0", Thing(host="gpu02"), False),
        ("host~n*1$", Thing(), True),
        ("host!~node", Thing(), False),
        ("(host~'two words')", Thing(host="has two words."), True),
        ("user!=me", Thing(users=("ann",)), False),
        ("user!=me", Thing(users=("ann", "bob")), True),
        ("not user=me", Thing(users=("bob",)), True),
        ("user!=me", Thing(users=()), False),
        ("user=bob", Thing(users=("ann", "bob")), True),
        ("up", Thing(), True),
        ("not up", Thing(), False),
        ("not up or n=1 and n=2", Thing(n=2), False),
        ("metric.'val/loss' > 1", Thing(n=2), True),
        ("metric.other > 1", Thing(n=2), None),
    ],
)
def test_a_condition_means_what_it_says(text: str, row: Thing, expected: bool | None) -> None:
    assert answer(text, row) is expected


@pytest.mark.parametrize(
    "text",
    [
        "n>1", "not n>1", "n!=1", "n+1=1", "n/0>1", "1/(n-n)>1", "ms>1 and up", "host=x",
        "host!~x", "user=me", "not up", "max(n)>1", "mean(ms)>0", "any(n>1)", "all(up)",
    ],
)  # fmt: skip
def test_what_is_unknown_neither_matches_nor_fails(text: str) -> None:
    unknown = Thing(host=None, users=None, up=None)
    assert answer(text, unknown) is None
    assert parse_condition(text, FIELDS).matching([unknown]) == []


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_figure_is_unknown(number: float) -> None:
    assert answer("n>1", Thing(n=number)) is None
    assert answer("not n>1", Thing(n=number)) is None
    assert answer("max(n)>1", Thing(n=number)) is None


def test_one_side_that_decides_is_enough() -> None:
    assert answer("n>1 or up", Thing()) is True
    assert answer("up or n>1", Thing()) is True
    assert answer("n>1 and not up", Thing()) is False
    assert answer("not up and n>1", Thing()) is False


ROWS = [Thing(ms=float(ms), n=float(ms), host=f"node{ms % 2}") for ms in (20, 21, 19, 30)]


def places(text: str, rows: list[Thing] = ROWS) -> list[int]:
    answers = parse_condition(text, FIELDS).answers(rows)
    return [place for place, yes in enumerate(answers) if yes]


def test_figures_are_over_all_rows() -> None:
    assert places("ms > 1.1 * median(ms)") == [3]
    assert places("ms > 110% * median(ms)") == [3]
    assert places("ms = max(ms) or ms = min(ms)") == [2, 3]
    assert places("p95(ms) = 30ms and sum(n) = 90 and mean(ms) = 22.5ms") == [0, 1, 2, 3]
    assert places("count(ms > 20ms) = 2 and count() = 4") == [0, 1, 2, 3]
    assert places("any(ms > 25)") == [0, 1, 2, 3]
    assert places("all(ms > 19)") == []
    assert places("count(ms > 1.1 * median(ms)) >= 1") == [0, 1, 2, 3]
    assert places("median(ms) > 20", [Thing(ms=21), Thing()]) == [0, 1]


def test_of_no_rows_nothing_is_said_of_all() -> None:
    assert parse_condition("all(up)", FIELDS).answers([]) == []
    assert places("count() = 0", []) == []


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("hots=a", 0, ["no field 'hots'", "did you mean host?"]),
        ("up and utl<3", 7, ["no field 'utl'"]),
        ("zzzz<3", 0, ["one of ", "ms.p95"]),
        ("n <", 3, ["something is missing"]),
        ("", 0, ["something is missing"]),
        ("(n<1", 0, ["not closed"]),
        ("n<1)", 3, ["')' cannot stand here"]),
        ("n<1 n", 4, ["'n' cannot stand here"]),
        ("host='a", 5, ["quote is not closed"]),
        ("n<1 ; n", 4, ["';' is not understood"]),
        ("n<1qx", 3, ["'qx' is no unit", "GiB"]),
        ("1<n<3", 3, ["two comparisons", "'and'"]),
        ("n", 0, ["no condition"]),
        ("host", 0, ["no condition"]),
        ("n and up", 0, ["no condition"]),
        ("not n", 4, ["no condition"]),
        ("up > 1", 0, ["no number"]),
        ("host > 1", 5, ["texts are compared by"]),
        ("n ~ x", 2, ["compares texts"]),
        ("n = 3GiB", 2, ["a plain number and an amount of bytes"]),
        ("ms > 3GiB", 3, ["a time and an amount of bytes"]),
        ("ms * ms > 3", 3, ["a time and a time"]),
        ("mem / ms > 3", 4, ["an amount of bytes and a time"]),
        ("foo(n) > 3", 0, ["no function 'foo'", "median"]),
        ("max() > 3", 4, ["')' cannot stand here"]),
        ("any(n)", 4, ["no condition"]),
        ("max(host) > 3", 4, ["no number"]),
        ("metric. > 3", 8, ["a name is missing"]),
        ("__import__('os')", 0, ["no function '__import__'"]),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_with_its_place(
    text: str, at: int, words: list[str]
) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_condition(text, FIELDS)
    error = caught.value
    said = f"{error.message}\n{error.hint}"
    assert [word for word in words if word not in said] == []
    assert error.at == at
    *_, line, caret = error.hint.splitlines()
    assert line[2:] == text
    assert caret.index("^") - 2 == at
    assert "\n" not in error.message


def test_a_long_text_is_shown_around_the_mistake() -> None:
    text = " and ".join(["up"] * 60) + " and nothing<3"
    with pytest.raises(ExpressionError) as caught:
        parse_condition(text, FIELDS)
    *_, line, caret = caught.value.hint.splitlines()
    assert len(line) <= 62
    assert line[caret.index("^") :].startswith("nothing")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "up",
        "not " * (MAX_DEPTH + 1) + "up",
        "n < " + "-" * (MAX_DEPTH + 1) + "1",
        " or ".join(["up"] * 310),
        "up or " * (MAX_CHARS // 6) + "   up",
        *("n*2=nan", "n<nan", "nan=n"),
    ],
)
def test_what_is_too_much_and_nan_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_condition(text, FIELDS)


def test_a_pattern_and_a_text_that_would_make_others_search_for_ever() -> None:
    row = Thing(host="a" * 100_000)
    assert answer("host~" + "a*" * 200 + "b", row) is False


class Grown:
    """A random condition, as a text and as what Python makes of the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def flag(self, depth: int) -> tuple[str, str]:
        choice = self._random.randrange(4 if depth else 1)
        if choice == 0:
            left, right = self.number(depth), self.number(depth)
            sign = self._random.choice(["<", "<=", ">", ">=", "=", "!="])
            return f"{left[0]} {sign} {right[0]}", f"_cmp('{sign}', {left[1]}, {right[1]})"
        if choice == 1:
            inner = self.flag(depth - 1)
            return f"not ({inner[0]})", f"_not({inner[1]})"
        word = "and" if choice == 2 else "or"
        left, right = self.flag(depth - 1), self.flag(depth - 1)
        return f"({left[0]}) {word} ({right[0]})", f"_{word}({left[1]}, {right[1]})"

    def number(self, depth: int) -> tuple[str, str]:
        choice = self._random.randrange(4 if depth else 2)
        if choice == 0:
            value = self._random.choice(["0", "1", "2.5", "7", "1e3"])
            return value, value
        if choice == 1:
            return "n", "n"
        if choice == 2:
            figure = self._random.choice(["min", "max", "sum"])
            return f"{figure}(n)", f"_{figure}"
        left, right = self.number(depth - 1), self.number(depth - 1)
        sign = self._random.choice("+-*/")
        return f"({left[0]} {sign} {right[0]})", f"_work('{sign}', {left[1]}, {right[1]})"


def _cmp(sign: str, one: float | None, other: float | None) -> bool | None:
    if one is None or other is None:
        return None
    same = math.isclose(one, other, rel_tol=1e-9)
    return {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}.get(
        sign, same if sign == "=" else not same
    )


def _work(sign: str, one: float | None, other: float | None) -> float | None:
    if one is None or other is None or (sign == "/" and not other):
        return None
    return {
        "+": lambda: one + other,
        "-": lambda: one - other,
        "*": lambda: one * other,
        "/": lambda: one / other,
    }[sign]()


def _and(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _not(one: bool | None) -> bool | None:
    return None if one is None else not one


def test_any_condition_is_judged_as_its_definition_says() -> None:
    for seed in range(600):
        judge_as_defined(seed)


def judge_as_defined(seed: int) -> None:
    text, definition = Grown(seed).flag(4)
    if len(text) > MAX_CHARS:
        text, definition = Grown(seed).flag(1)
    chance = random.Random(seed)
    rows = [Thing(n=chance.choice([None, 0.0, 1.0, 2.5, -3.0])) for _ in range(4)]
    known = [row.n for row in rows if row.n is not None]
    names = {
        "_cmp": _cmp, "_work": _work, "_and": _and, "_not": _not,
        "_or": lambda a, b: _not(_and(_not(a), _not(b))),
        "_min": min(known, default=None),
        "_max": max(known, default=None),
        "_sum": sum(known) if known else None,
    }  # fmt: skip
    expected = [eval(definition, names | {"n": row.n}) for row in rows]  # noqa: S307
    assert parse_condition(text, FIELDS).answers(rows) == expected, (seed, text)


ALPHABET = [
    "n", "ms", "host", "up", "user", "me", "(", ")", "<", "=", "~", "!", "and", "or", "not", "+",
    "-", "*", "/", "10", "20ms", "%", "'", '"', ".", "any(", "median(", "count(", " ", "\x1b", "é",
    "metric.", ",", "1e999", "5GiB",
]  # fmt: skip


def test_no_text_breaks_it() -> None:
    chance = random.Random(5)
    refused: list[int] = []
    for _ in range(6000):
        text = "".join(chance.choices(ALPHABET, k=chance.randrange(1, 12)))
        try:
            answers = parse_condition(text, FIELDS).answers([Thing(n=1, ms=2), Thing(host=None)])
        except ExpressionError as error:
            refused.append(error.at)
            continue
        assert set(answers) <= {True, False, None}
    assert len(refused) > 1000
    assert min(refused) == 0
